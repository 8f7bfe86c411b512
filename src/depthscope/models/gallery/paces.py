"""Stacks that lose their tokens slowly, late, or only in appearance; and those at the end of what a dtype can tell."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from depthscope.models.gallery.coded import KEPT, Coded, coded_tokens
from depthscope.models.gallery.entry import COLLAPSED, DIVERSE, ESCALATING, HEALTHY, ON_THE_WAY, Built, Shelf
from depthscope.models.gallery.traps import alone
from depthscope.models.gallery.writers import Shared


def add_paces(shelf: Shelf) -> None:
    for add in (_slow_crossing, _slow_end, _offsets, _dtypes):
        add(shelf)


def _slow_crossing(shelf: Shelf) -> None:
    """Slow where 1 % is crossed, fast afterwards: who looks at the crossing alone sees nothing."""
    for end in (1e-4, 1e-6, 1e-8):
        name = f"pace: slow at 1 %, then down to {end:g}"
        r = shelf.draw(name)
        slow, fast, d = r.choice([12, 16]), r.choice([12, 20]), r.choice([40, 64])
        paces = [1.015] * slow + [(0.01 / end) ** (1 / fast)] * fast
        why = (
            f"t_div crosses 0.01 at 1.5 % a block, and shrinks by {paces[-1]:.2f} a block after it: differences are "
            "averaged away."
        )
        shelf.add(name, "pace", COLLAPSED, why, partial(_paced, r.choice([16, 32]), d, 0.011, paces))


def _slow_end(shelf: Shelf) -> None:
    """Lost early and fast, then slow to the end; or slow all the way and not lost."""
    name = "pace: lost early, slow for the rest"
    r = shelf.draw(name)
    early, rest = r.choice([4, 6]), r.choice([16, 26])
    paces = [(0.1 / 2e-7) ** (1 / early)] * early + [1.01] * rest
    why = f"Averaging loses the tokens in {early} blocks (t_div 2e-7), and goes on by 1 % a block."
    shelf.add(name, "pace", COLLAPSED, why, partial(_paced, 32, 48, 0.1, paces))
    name = "pace: slow from the start, far from lost"
    depth = shelf.draw(name).choice([16, 24, 32])
    why = "Averaging takes 1 % of what differs in a block, and more than a fifth of the signal is left in the end."
    shelf.add(name, "pace", HEALTHY, why, partial(_paced, 24, 48, 0.3, [1.01] * depth))
    name = "pace: on the way, not there yet"
    r = shelf.draw(name)
    depth, pace = r.choice([8, 12]), r.choice([1.25, 1.4])
    why = (
        f"Averaging divides what differs by {pace:g} a block: 4 % are left, and 8 more blocks would leave less than 1."
    )
    shelf.add(name, "pace", ESCALATING, why, partial(_paced, 32, 48, _before(0.04, pace, depth), [pace] * depth))
    name = "pace: alike and slow"
    depth = shelf.draw(name).choice([12, 20])
    why = "A twentieth of what differs is averaged away in a block, to t_div of about 0.003: lost or nearly so."
    shelf.add(name, "pace", ON_THE_WAY, why, partial(_paced, 24, 48, _before(0.0035, 1.05, depth), [1.05] * depth))


def _before(end: float, pace: float, depth: int) -> float:
    """t_div of which `end` is left when its odds are divided by pace in every block."""
    odds = end / (1 - end) * pace**depth
    return odds / (1 + odds)


def _paced(n: int, d: int, t_div: float, paces: Sequence[float]) -> Built:
    """All tokens have one code, and what differs (in energy) is divided by a pace in each block."""
    mixes = [1 - pace**-0.5 for pace in paces]
    return Coded(d, mixes, gain=0.0), common_and_differing(n, d, t_div)


def common_and_differing(n: int, d: int, t_div: float) -> Tensor:
    """Two sequences of tokens of one code that are a common vector and differences with this share of the energy."""
    X = coded_tokens(torch.zeros(2, n, dtype=torch.int64), d)
    mean = X.mean(-2, keepdim=True)
    apart = X - mean
    common = coded_tokens(torch.zeros(2, 1, dtype=torch.int64), d)
    common[..., : KEPT - 1] = X[:, :1, : KEPT - 1]
    energy = t_div / (1 - t_div) * n * common.square().sum((-2, -1), keepdim=True)
    return common + apart * (energy / apart.square().sum((-2, -1), keepdim=True)).sqrt()


def _offsets(shelf: Shelf) -> None:
    """Every block adds an offset of its own to all tokens: alike by .9 to .98, as deep pre-norm models are."""
    for t_sim in (0.9, 0.96, 0.98):
        name = f"pace: slow offsets up to t_sim {t_sim:g}"
        r = shelf.draw(name)
        depth, n, d = r.choice([24, 36, 48]), r.choice([24, 32]), r.choice([48, 64])
        why = f"Offsets of all blocks add up at random to t_sim {t_sim:g}; what differs between tokens stays as it was."
        shelf.add(name, "pace", HEALTHY, why, partial(_offset, depth, n, d, t_sim))


def _offset(depth: int, n: int, d: int, t_sim: float) -> Built:
    size = (t_sim / (1 - t_sim) / depth) ** 0.5  # of an offset, relative to a token: squares of random vectors add up

    def write(index: int) -> nn.Module:
        v = size * torch.randn(d)
        v[:KEPT] = 0
        return Shared(v * (d / (d - KEPT)) ** 0.5)

    return Coded(d, [0.3] * depth, write=write), coded_tokens(alone(2, n), d)


def _dtypes(shelf: Shelf) -> None:
    """The same stack in several dtypes: at the floor of its dtype, or above it."""
    for dtype, depth in (("float32", 60), ("float64", 60), ("float64", 20), ("bfloat16", 30)):
        name = f"floor: {dtype} after {depth} blocks of averaging"
        r = shelf.draw(name)
        mix = r.choice([0.4, 0.5])
        why = f"t_div shrinks by {(1 - mix) ** -2:.1f} in each of {depth} blocks, as far as {dtype} can tell."
        shelf.add(name, "floor", COLLAPSED, why, partial(_in_dtype, dtype, depth, mix, r.choice([16, 32])))
    for dtype in ("bfloat16", "float64"):
        name = f"floor: healthy in {dtype}"
        r = shelf.draw(name)
        why = f"Every token looks at itself alone, in {dtype}."
        shelf.add(name, "floor", DIVERSE, why, partial(_in_dtype, dtype, r.choice([8, 16]), 0.4, r.choice([16, 32]), 1))


def _in_dtype(dtype: str, depth: int, mix: float, n: int, codes: int = 0) -> Built:
    """codes: 0, one for all tokens; 1, one for each."""
    kind = getattr(torch, dtype)
    return Coded(48, [mix] * depth, gain=0.0).to(kind), coded_tokens(codes * alone(2, n), 48).to(kind)
