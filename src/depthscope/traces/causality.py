"""Whether a stream is causal: when a later token is changed, does an earlier one move?

A cut c of a sequence is tight when no token before c depends on those from c on. A mean over all tokens shows the
future wherever there is a tight cut that content crosses in the other direction. All cuts are settled in a few passes:
when the tokens from c on are changed and the first that moves is i < c, every cut in (i, c] is open, and the search
goes on at i. A causal model shows a tight cut at once; a bidirectional one lets the last token move the first.
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from depthscope.traces.blocks import template
from depthscope.traces.signature import closes, length_of, masks_in, read_in, tensors_in, uniform
from depthscope.traces.trial import SHARE, Trial

APART = 3  # tokens at the end that see no other, after which no more is expected
NEARLY = 1e-2  # of what flows forth: what flows back is no more than a soft mask, or rounding
HOPS = 8  # cuts that are tried at most; a stream that is open at all of them is taken for open everywhere


@dataclass(frozen=True)
class Causality:
    """What the trials of a stream showed.

    kind: "causal", no token sees a later one; "in part": some cut is tight and others are open (a prefix, chunks);
    "open": no cut is tight; "unknown". why: what is unknown, or in doubt. cuts: for each sequence that was tried and
    has one, the blocks, the sequence, and how many of its tokens are before a tight cut. held: patterns had to be held,
    as they are changed after the softmax. passes: of one sequence, mostly. length: of the sequences that were tried.
    """

    kind: str
    why: str = ""
    cuts: tuple[tuple[tuple[str, ...], int, int], ...] = ()
    held: bool = False
    passes: int = 0
    length: int = 0

    @property
    def causal(self) -> bool | None:
        """True and False for a stream that is causal, or open; None in part, or where nothing tells."""
        return {"causal": True, "open": False}.get(self.kind)

    @property
    def hides_future(self) -> bool:
        """Whether some cut is tight: a mean over all tokens would show what the model does not."""
        return self.kind in ("causal", "in part")

    def holds(self, length: int) -> bool:
        """Whether it holds for sequences of another length: chunks and prefixes show in longer ones than themselves."""
        return self.kind != "open" or length <= self.length


KNOWN: weakref.WeakKeyDictionary[nn.Module, dict[Any, Causality]] = weakref.WeakKeyDictionary()


def known_causality(
    model: nn.Module, key: Any, blocks: Iterable[str], axis: int, args: tuple, kwargs: dict, mask: Tensor | None
) -> Causality:
    """What is known of a model that is called like this (signature.py); tried when it is called so the first time."""
    blocks, length = tuple(blocks), length_of(args, kwargs, axis)
    found = KNOWN.setdefault(model, {}).get((key, blocks))
    if found is None or not found.holds(length):
        found = replace(causality(model, blocks, axis, args, kwargs, mask), length=length)
        if found.kind != "unknown":
            KNOWN[model][key, blocks] = found
    return found


def causality(
    model: nn.Module, blocks: Iterable[str], axis: int, args: tuple, kwargs: dict, mask: Tensor | None
) -> Causality:
    """Try the stream of each family of blocks (an encoder and a decoder have their own). What hides the future wins.

    mask (B, n): True where a token counts.
    """
    families: dict[str, list[str]] = {}
    for path in blocks:
        families.setdefault(template(path), []).append(path)
    found = [
        _of_sequence(model, tuple(paths), axis, args, kwargs, mask, row)
        for paths in families.values()
        for row in rows_to_try(axis, args, kwargs, mask)
    ]
    kinds = {one.kind for one in found}
    kind = kinds.pop() if len(kinds) == 1 else "in part" if kinds & {"causal", "in part"} else "unknown"
    why = next((one.why for one in found if one.why), "")
    cuts, passes = tuple(cut for one in found for cut in one.cuts), sum(one.passes for one in found)
    return Causality(kind, why, cuts, any(one.held for one in found), passes)


def rows_to_try(axis: int, args: tuple, kwargs: dict, mask: Tensor | None) -> list[int]:
    """The sequence with most tokens; one for each way in which the masks (B, .., n, n) of a batch close the future."""
    batch = batch_of(axis, args, kwargs)
    masks = [
        x.reshape(batch, -1, *x.shape[-2:])
        for x in masks_in(args, kwargs)
        if x.ndim > 2 and batch > 1 and x.shape[0] % batch == 0
    ]
    kinds = [x for x in tensors_in((args, kwargs)) if x.ndim == 2 and x.shape[0] == batch > 1]
    lengths = mask.sum(-1).tolist() if mask is not None and len(mask) == batch else [0] * batch
    groups: dict[Any, int] = {}
    for row in sorted(range(batch), key=lambda row: -lengths[row]):
        groups.setdefault((*(closes(x[row]) for x in masks), *(uniform(x[row]) for x in kinds)), row)
    return list(groups.values())[:HOPS]


def batch_of(axis: int, args: tuple, kwargs: dict) -> int:
    """How many sequences there are."""
    first = next((x for x in read_in(args, kwargs) if x.ndim), None)
    along = 1 if axis == 0 else 0
    return 1 if first is None or first.ndim <= along else first.shape[along]


def trial_of(
    model: nn.Module, blocks: Iterable[str], axis: int, args: tuple, kwargs: dict, row: int, **how: Any
) -> Trial:
    """A trial of one sequence: alone, where the inputs can be cut; else in its batch."""
    batch = batch_of(axis, args, kwargs)
    if batch == 1:
        return Trial(model, blocks, axis, args, kwargs, **how)
    square = any(x.ndim > 1 and x.shape[0] == x.shape[1] == batch for x in tensors_in((args, kwargs)))

    def cut(value: Any) -> Any:
        return value[row : row + 1] if isinstance(value, Tensor) and value.ndim and len(value) == batch else value

    if axis != 0 and not square:
        try:
            alone = tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()}
            trial = Trial(model, blocks, axis, *alone, **how)
            if trial.tokens is not None and trial.base:
                return trial
        except Exception:  # a model that minds: masks of other shapes, one sequence alone, ...
            pass
    return Trial(model, blocks, axis, args, kwargs, row=row, **how)


def places_of(trial: Trial, mask: Tensor | None, row: int) -> list[int]:
    """Where the tokens of a sequence are that count, in order."""
    fits = mask is not None and mask.shape[-1] == trial.n and row < len(mask)
    return mask[row].nonzero().flatten().tolist() if fits else list(range(trial.n))  # type: ignore[index]


def _of_sequence(
    model: nn.Module, blocks: tuple[str, ...], axis: int, args: tuple, kwargs: dict, mask: Tensor | None, row: int
) -> Causality:
    trial = trial_of(model, blocks, axis, args, kwargs, row)
    passes = 0
    if trial.retouched:
        passes, trial = trial.passes, trial_of(model, blocks, axis, args, kwargs, row, hold=True)
    places = places_of(trial, mask, row)
    if len(places) < 2 or not trial.base:
        return Causality("unknown", "its blocks were not seen to work over two tokens or more", passes=trial.passes)
    kind, cut, why = _search(trial, places)
    cuts = () if cut is None else ((blocks, row, cut),)
    return Causality(kind, why, cuts, trial.hold, passes + trial.passes)


def _search(trial: Trial, places: list[int]) -> tuple[str, int | None, str]:
    """The kind of the stream, the number of tokens before a tight cut that content crosses, and what is in doubt."""
    cut, opened, apart, by_attention = len(places) - 1, False, 0, None
    for _ in range(HOPS):
        moves = trial.moved(places[cut:], places[:cut])
        if moves is None:
            return "unknown", None, "its tokens are not finite"
        stream, attention = moves
        small = float(stream.max())
        if trial.rounding < small < NEARLY:  # a soft mask, rounded activations: much less than flows the other way?
            crossed, first_moves, _, forth = _crossed(trial, places, cut)
            if crossed and small < NEARLY * forth:
                why = f"later tokens move earlier ones by {small:.0e} of their length"
                return ("in part" if opened or first_moves > NEARLY * forth else "causal"), cut, why
        far = (stream > trial.rounding) | ((attention > max(SHARE, trial.rounding)) & (stream > 0))
        if bool(far.any()):
            opened, cut = True, int(far.nonzero()[0])
        else:
            crossed, first_moves, felt, _ = _crossed(trial, places, cut)
            if crossed:
                why = f"later tokens move earlier ones by {small:.0e} of their length" if small else ""
                return ("in part" if opened or first_moves > trial.rounding else "causal"), cut, why
            if by_attention is None:
                by_attention = _by_attention(attention, felt, trial.rounding), cut
            cut, apart = cut - 1, apart + 1  # the parts do not see each other at all: windows, or texts side by side
        if cut < 1 or (apart == APART and not opened):
            break
    if opened:
        return "open", None, ""
    kind, cut = by_attention or ("unknown", 0)
    return kind, cut if kind == "causal" else None, "no token was seen to move another" if kind == "unknown" else ""


def _crossed(trial: Trial, places: list[int], cut: int) -> tuple[bool, float, float, float]:
    """Whether the last token before a cut moves those after it, and whether the second token moves the first.

    And how far what attention gives after the cut moves.
    """
    changed = sorted({min(1, cut - 1), cut - 1})
    moves = trial.moved([places[i] for i in changed], [places[0], *places[cut:]])
    if moves is None:
        return False, 0.0, 0.0, 0.0
    stream, attention = moves
    crossed = bool((stream[1:] > trial.rounding).any())
    return crossed, float(stream[0]) if changed[0] == 1 else 0.0, float(attention[1:].max()), float(stream[1:].max())


def _by_attention(attention: Tensor, felt: float, rounding: float) -> str:
    """Of branches that add nothing yet (weights that start at zero): what attention gives tells which way it looks."""
    most = max(SHARE, rounding)
    if bool((attention > most).any()):
        return "open" if bool(attention[0] > most) else "unknown"
    return "causal" if felt > most else "unknown"
