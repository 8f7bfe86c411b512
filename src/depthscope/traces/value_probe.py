"""The matrix that carries values from token to token, found by moving values: M_ij = d out_i / d value_j.

Attention, however it is computed, a pool, a recurrence over tokens: each channel of what comes out is a sum over tokens
of the same channel of what went in. So all channels of one token can be moved at once, and n copies of a sequence, each
with another token moved, show all of M in one pass. Where a value moves several channels of another token there is no
such matrix, and none is given. Places where values may be moved: what matrices and norms give inside a block. Places
where it is read: what matrices are given, and what is added.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.traces.cut_weights import forward_of
from depthscope.traces.inputs import fresh
from depthscope.traces.probe_pass import Move, Places, ProbePass, Read
from depthscope.traces.slow_path import slow_path
from depthscope.traces.survey import evaluated, hooks_away
from depthscope.traces.untouched import untouched
from depthscope.traces.watcher import Watcher, unwatched

COPIES = 32  # of a sequence, in one pass
STILL = 1e-5  # of the size of the tokens: what moves less has not moved
SMALL_STEP = 1e-2  # of the size of values, where what comes out is no linear function of them
LINEAR = 1e-3  # M times the values must give what came out but for this, to be called linear


@dataclass
class Route:
    """From what a block's source gives to what its target reads: value channel c + offset becomes channel c."""

    source: int
    target: int
    offset: int
    width: int
    alone: bool = True  # nothing else mixes tokens in the block before the target


@dataclass
class Carried:
    """M (d, n, n) of one block, the values (n, d), what came out (n, d), and the tokens X (n, .) that were read."""

    M: Tensor
    values: Tensor
    out: Tensor
    X: Tensor

    @property
    def is_linear(self) -> bool:
        found = torch.einsum("cij,jc->ic", self.M.double(), self.values.double())
        return float((found - self.out).norm()) <= LINEAR * float(self.out.double().norm())


@dataclass
class _Trial:
    """One channel of one source that was moved at one token, and the first place where other tokens move."""

    channel: int
    channels: int
    open: bool = True  # neither mixed, nor back in the stream
    mixed_at: int | None = None
    joined: bool = False  # that place is the sum with the stream
    reached: list[int] = field(default_factory=list)  # channels that move there
    width: int = 0

    def route(self, source: int) -> Route | None:
        if self.mixed_at is None or len(self.reached) != 1:
            return None
        offset = self.channel - self.reached[0]
        fits = 0 <= offset <= self.channels - self.width
        return Route(source, self.mixed_at, offset, self.width) if fits else None


class ValueProbe:
    """Passes over copies of one sequence. args, kwargs: a call with one sequence, the first axis of its tensors."""

    def __init__(self, model: nn.Module, blocks: list[Places], wanted: set[int], args: tuple, kwargs: dict) -> None:
        self.model, self.blocks, self.wanted = model, blocks, wanted
        self.args, self.kwargs = args, kwargs

    def carried(self, places: list[int]) -> dict[int, Carried]:
        """What each wanted block has, by its number. places: the tokens that count, which are moved one by one."""
        counts: dict[int, int] = {}
        self._run(1, lambda block, source, *_: counts.__setitem__(block, source + 1), lambda *_: None)
        routes = self._routes(max(counts.values(), default=0), places[len(places) // 2])
        found = self._matrices(routes, places, step=1.0, sides=(1.0,))
        curved = {block: routes[block] for block, one in found.items() if not one.is_linear}
        curved = {block: route for block, route in curved.items() if route.alone}  # else a gate, and no values
        linear = {block: one for block, one in found.items() if one.is_linear}
        return {**linear, **(self._matrices(curved, places, step=SMALL_STEP, sides=(1.0, -1.0)) if curved else {})}

    def _routes(self, sources: int, token: int) -> dict[int, Route]:
        """One value is moved in each copy: the last source whose value moves one channel of other tokens, and where.

        What reads it there must be the end of the mixing: nothing that follows, up to the stream, mixes once more.
        """
        trials: dict[tuple[int, int], _Trial] = {}

        def move(block: int, source: int, tokens: Tensor, _: Tensor) -> None:
            d, size = tokens.shape[-1], _size(tokens)
            for third in range(3):  # queries, keys and values may come from one matrix
                channel = (2 * third + 1) * d // 6
                tokens[1 + 3 * source + third, token, channel] += size
                trials[block, 1 + 3 * source + third] = _Trial(channel, d)

        def read(block: int, target: int, tokens: Tensor, joins: bool) -> None:
            far = (tokens - tokens[:1]).abs() > STILL * _size(tokens)
            moves = far.any(-1)  # (copies, n)
            others = moves.clone()
            others[:, token] = False
            for copy in moves.any(-1).nonzero().flatten().tolist():
                trial = trials.get((block, copy))
                if trial is not None and trial.open:
                    trial.open = not joins
                    if bool(others[copy].any()):
                        trial.mixed_at, trial.joined, trial.open = target, joins, False
                        trial.reached = far[copy][others[copy]].any(0).nonzero().flatten().tolist()
                        trial.width = tokens.shape[-1]

        run = self._run(1 + 3 * sources, move, read)
        found: dict[int, Route] = {}
        unfinished: set[int] = set()
        for (block, copy), trial in trials.items():
            if trial.mixed_at is None:
                continue
            after = run.after[block, trial.mixed_at]
            goes_on = [trials.get((block, 1 + 3 * after + third)) for third in range(3)]
            if not trial.joined and any(one is not None and one.mixed_at is not None for one in goes_on):
                unfinished.add(block)
                continue
            route = trial.route((copy - 1) // 3)
            if route is not None:
                found[block] = replace(route, alone=block not in unfinished)
        return found

    def _matrices(
        self, routes: dict[int, Route], places: list[int], *, step: float, sides: tuple[float, ...]
    ) -> dict[int, Carried]:
        found: dict[int, Carried] = {}
        for side in sides:
            for first in range(0, len(places), COPIES):
                self._columns(routes, places, places[first : first + COPIES], side * step, len(sides), found)
        return found

    def _columns(
        self,
        routes: dict[int, Route],
        places: list[int],
        moving: list[int],
        step: float,
        sides: int,
        found: dict[int, Carried],
    ) -> None:
        """The columns M_.j for the tokens j that move, added to what was found."""
        kept = torch.tensor(places)
        columns = torch.tensor([places.index(j) for j in moving])
        steps: dict[int, Tensor] = {}
        values: dict[int, tuple[Tensor, Tensor]] = {}

        def move(block: int, source: int, tokens: Tensor, before: Tensor) -> None:
            route = routes.get(block)
            if route is None or route.source != source:
                return
            part = slice(route.offset, route.offset + route.width)
            steps[block] = step * _size(tokens[..., part])
            values[block] = tokens[0, :, part].detach().clone(), before[0].detach().clone()
            for copy, j in enumerate(moving, start=1):
                tokens[copy, j, part] += steps[block]

        def read(block: int, target: int, tokens: Tensor, _: bool) -> None:
            route = routes.get(block)
            if route is None or route.target != target or block not in steps:
                return
            change = ((tokens[1:] - tokens[:1]).double() / steps[block] / sides)[:, kept]  # (moving, n, d)
            if block not in found:
                n, (value, X) = len(places), values[block]
                empty = change.new_zeros(route.width, n, n)
                found[block] = Carried(empty, value[kept], tokens[0, kept].detach().clone(), X[kept])
            found[block].M[:, :, columns] += change.permute(2, 1, 0)

        self._run(1 + len(moving), move, read)

    def _run(self, copies: int, move: Move, read: Read) -> ProbePass:
        run = ProbePass(self.model, self.blocks, self.wanted, move, read)
        model = self.model
        with ExitStack() as stack:
            for quiet in (untouched(model), evaluated(model), hooks_away(model), unwatched(), slow_path()):
                stack.enter_context(quiet)
            stack.enter_context(torch.no_grad())
            args, kwargs = fresh(*_copied(self.args, self.kwargs, copies))
            stack.enter_context(Watcher(run))
            forward_of(model)(*args, **kwargs)
        return run


def _copied(args: tuple, kwargs: dict[str, Any], copies: int) -> tuple[tuple, dict[str, Any]]:
    """One sequence, several times."""

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.ndim or len(value) != 1:
            return value
        return value.expand(copies, *value.shape[1:]).clone()

    return tuple(map(copied, args)), {name: copied(value) for name, value in kwargs.items()}


def _size(tokens: Tensor) -> Tensor:
    """The root mean square of the first copy's entries."""
    return tokens[0].double().square().mean().sqrt().clamp_min(1e-30).to(tokens.dtype)
