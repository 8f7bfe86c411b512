"""Numbers of states, taken the moment they are seen; small ones are copied and measured together."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from depthscope.checks import check_mask, measurable
from depthscope.metrics.chunks import CHUNK, pieces
from depthscope.metrics.massive import massive, rest, sizes
from depthscope.metrics.room import Room
from depthscope.registry import MetricFacts
from depthscope.scans.state_numbers import Measured, StateNumbers, fetched

SMALL = CHUNK // 2  # elements up to which a copy of a state costs less than calls for it alone
MANY = 32  # states, from which on more together save no calls worth their memory


class Tray:
    """Copies of states of one shape, side by side, that wait to be measured together."""

    def __init__(self, state: Tensor, places: int) -> None:
        self.tokens = state.new_empty((places * len(state), *state.shape[1:]))
        self.places = self.tokens.split(len(state))
        self.numbers: list[StateNumbers] = []
        self.samples = len(state)

    def put(self, state: Tensor, numbers: StateNumbers) -> bool:
        """Whether that was the last free place."""
        self.places[len(self.numbers)].copy_(state)  # the model may write into it
        self.numbers.append(numbers)
        return len(self.numbers) == len(self.places)


class StateReader:
    """Measures tokens (..., n, d): energies in passing, all asked-for state metrics at the end of a block.

    A call of a torch function costs as much as reading some ten thousand numbers. So small states wait as copies, for a
    chunk of them together or for finish(). Numbers that are on an accelerator stay there until finish().
    """

    def __init__(self, metrics: list[Any], mask: Tensor | None) -> None:
        self.metrics, self.mask = metrics, mask
        self._trays: dict[Any, Tray] = {}
        self._room = Room()
        self._far: list[Measured] = []  # on an accelerator
        self._masks: dict[torch.device, Tensor] = {}

    def __call__(self, tokens: Tensor, numbers: StateNumbers | None, whole: bool) -> StateNumbers:
        if numbers is not None and (numbers.whole or not whole):
            return numbers
        tokens = measurable(tokens)
        shape = tokens.shape
        fits = self.mask is not None and self.mask.shape == shape[:-1]
        # a state seen before, in passing, stays the same record: the hook for its gradient belongs to it
        numbers = StateNumbers(fits) if numbers is None else numbers
        numbers.whole = whole
        flat = tokens.detach()
        if len(shape) != 3:
            flat = flat.reshape(-1, *shape[-2:])
            shape = flat.shape
        size = flat.numel()
        if size > SMALL:
            self._measure(flat, [numbers], whole)
            return numbers
        key = (whole, shape, flat.dtype, flat.device, fits)
        tray = self._trays.get(key)
        if tray is None:
            tray = self._trays[key] = Tray(flat, min(MANY, max(1, 2 * SMALL // size)))
        if tray.put(flat, numbers):
            self._empty(tray, whole)
        return numbers

    def finish(self) -> None:
        """Measure what is left: the pass has ended."""
        for key, tray in self._trays.items():
            self._empty(tray, whole=key[0])
        self._trays.clear()
        self._room = Room()
        near = iter(fetched([tensor for found in self._far for tensor in found.tensors]))
        for found in self._far:
            found.near(near).fill()
        self._far.clear()

    def _empty(self, tray: Tray, whole: bool) -> None:
        numbers, tray.numbers = tray.numbers, []
        if any(one.whole == whole for one in numbers):  # others were met again, as ends of blocks
            self._measure(tray.tokens[: len(numbers) * tray.samples], numbers, whole)

    def _measure(self, tokens: Tensor, numbers: list[StateNumbers], whole: bool) -> None:
        """Fill the numbers of states of one shape, tokens (states * samples, n, d)."""
        valid = self._valid(tokens.device, len(numbers)) if numbers[0].masked else None
        wanted: list[MetricFacts] = [f.facts for f in self.metrics] if whole else []
        columns: defaultdict[str, list[Tensor]] = defaultdict(list)
        directions: list[Tensor] = []
        times: list[Tensor] = []
        for chunk in pieces(tokens, valid, self._room):
            columns["common"].append(chunk.energies.common)
            columns["centred"].append(chunk.energies.centred)
            columns["tokens"].append(chunk.n)
            for facts in wanted:
                columns[facts.name].append(facts.formula(chunk))  # type: ignore[misc]
            if whole:
                times.append(torch.where(chunk.once(massive), chunk.once(sizes), 0.0))
                directions.append(normalize(chunk.once(rest).mean.squeeze(-2), dim=-1))
        found = Measured(
            numbers,
            len(tokens) // len(numbers),
            list(columns),
            torch.stack([_joined(column) for column in columns.values()]),
            _joined(directions).unflatten(0, (len(numbers), -1)).sum(1) if whole else None,
            _joined(times) if whole else None,
            valid if valid is None else valid.squeeze(-1),
        )
        if tokens.device.type == "cpu":
            found.fill()
        else:
            self._far.append(found)

    def _valid(self, device: torch.device, states: int) -> Tensor:
        """The mask for several states, (states * samples, n, 1)."""
        if device not in self._masks:
            mask: Tensor = self.mask  # type: ignore[assignment]
            self._masks[device] = check_mask(mask, mask.shape, where="scan").reshape(-1, mask.shape[-1], 1).to(device)
        return self._masks[device].repeat(states, 1, 1)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
