"""Constructed traps: massive tokens, equal tokens, clusters, lines, and sequences of which some are lost."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from depthscope.models.gallery.coded import KEPT, MARK, Coded, coded_tokens
from depthscope.models.gallery.entry import COLLAPSED, DIVERSE, ESCALATING, HEALTHY, ON_THE_WAY, Built, Shelf
from depthscope.models.gallery.writers import Line, Neuron, Shared

Write = Callable[[int], nn.Module | None]


@dataclass(frozen=True)
class Sizes:
    """Of a constructed stack: B sequences of n tokens of width d through depth blocks that mix by `mix`."""

    B: int
    n: int
    d: int
    depth: int
    mix: float

    @classmethod
    def drawn(cls, r: random.Random) -> "Sizes":
        """t_div falls by (1 - mix)^2 a block: to less than 1e-4 in 10 blocks and more."""
        return cls(r.choice([1, 2, 4]), r.choice([16, 24, 32, 48]), r.choice([40, 48, 64]), r.choice([10, 16, 24]), 0.4)


def alone(B: int, n: int) -> Tensor:
    """Every token has a code of its own: (B, n)."""
    return torch.arange(n).expand(B, n)


def first_alone(B: int, n: int, k: int, at: Sequence[int] | None = None) -> Tensor:
    """k tokens (the first, or those at given places) have codes of their own, all others one code."""
    groups = torch.zeros(B, n, dtype=torch.int64)
    groups[:, list(range(k) if at is None else at)] = torch.arange(1, k + 1)
    return groups


def built(s: Sizes, groups: Tensor, write: Write = lambda index: None, marked: Sequence[int] = ()) -> Built:
    return Coded(s.d, [s.mix] * s.depth, write=write), coded_tokens(groups, s.d, marked=marked)


def add_traps(shelf: Shelf) -> None:
    for add in (_equal, _few_tokens, _massive, _sequences, _lines, _clusters, _shared):
        add(shelf)


def _equal(shelf: Shelf) -> None:
    """Some or all tokens become the same."""
    for name, share, allowed, why in (
        ("all tokens the same", 0, COLLAPSED, "All tokens take their common mean in every block."),
        ("all tokens but one the same", 1, COLLAPSED, "All tokens but one take their common mean in every block."),
        ("all tokens but two the same", 2, COLLAPSED, "All tokens but two take their common mean in every block."),
        (
            "three quarters the same",
            0.25,
            ON_THE_WAY,
            "Three of four tokens are one, the rest are free: people differ.",
        ),
        ("half the same", 0.5, HEALTHY, "Half of the tokens are one token, the other half stay apart."),
        ("none the same", 1.0, DIVERSE, "Every token looks at itself alone, and keeps its Gaussian channels."),
    ):
        r = shelf.draw(name)
        s = Sizes.drawn(r)
        k = share if isinstance(share, int) else round(share * s.n)
        at = sorted(r.sample(range(s.n), k))
        shelf.add(name, "equal tokens", allowed, why, partial(_some_alone, s, at))


def _some_alone(s: Sizes, at: Sequence[int]) -> Built:
    return built(s, first_alone(s.B, s.n, len(at), at))


def _few_tokens(shelf: Shelf) -> None:
    """Two tokens always lie on a line, and three in three points: that alone is no collapse."""
    for n in (2, 3, 4):
        for lost in (True, False):
            name = f"{n} tokens, {'equal' if lost else 'healthy'}"
            s = Sizes.drawn(shelf.draw(name))
            why = f"Each of {n} tokens " + ("takes their mean in every block." if lost else "looks at itself alone.")
            make = partial(_some_alone, Sizes(6, n, s.d, s.depth, s.mix), [] if lost else list(range(n)))
            shelf.add(name, "few tokens", COLLAPSED if lost else HEALTHY, why, make)


def _massive(shelf: Shelf) -> None:
    """Massive tokens over others that are the same, and over others that are healthy."""
    for lost in (True, False):
        over = "over equal tokens" if lost else "over healthy tokens"
        for what, count in (("one at the start", 1), ("one in the middle", 1), ("one at the end", 1), ("three", 3)):
            name = f"massive: {what} {over}"
            r = shelf.draw(name)
            s = Sizes.drawn(r)
            start = {"one at the start": [0], "one at the end": [s.n - 1]}
            at = start.get(what) or sorted(r.sample(range(1, s.n - 1), count))
            born, size = r.randint(1, s.depth), r.choice([15.0, 30.0, 100.0, 1000.0])
            why = f"Tokens {at} get {size:g} times their size in block {born}; all others " + (
                "take their common mean in every block." if lost else "look at themselves alone."
            )
            allowed = COLLAPSED if lost else DIVERSE
            shelf.add(name, "massive tokens", allowed, why, partial(_with_massive, s, at, born, size, lost))
    for lost in (True, False):
        name = f"massive: one in each sequence at a place of its own, {'equal' if lost else 'healthy'} tokens"
        r = shelf.draw(name)
        s = Sizes.drawn(r)
        s = Sizes(4, s.n, s.d, s.depth, s.mix)
        why = "Every sequence has its massive token elsewhere; the others are as " + ("one." if lost else "they came.")
        make = partial(_own_places, s, [r.randrange(s.n) for _ in range(4)], r.choice([30.0, 300.0]), lost)
        shelf.add(name, "massive tokens", COLLAPSED if lost else DIVERSE, why, make)
    for lost in (True, False):
        name = f"massive: {'lost' if lost else 'healthy'} tokens, the massive one goes again"
        r = shelf.draw(name)
        s = Sizes.drawn(r)
        why = "A token is massive in the middle of the stack and is taken back before its end, as in trained Llamas."
        make = partial(_passing, s, r.randrange(s.n), 300.0, lost)
        shelf.add(name, "massive tokens", COLLAPSED if lost else DIVERSE, why, make)


def _with_massive(s: Sizes, at: Sequence[int], born: int, size: float, lost: bool) -> Built:
    v = size * torch.randn(s.d)
    v[:KEPT] = 0
    groups = first_alone(s.B, s.n, len(at), at) if lost else alone(s.B, s.n)
    return built(s, groups, lambda index: Neuron(v) if index == born else None, at)


def _own_places(s: Sizes, places: Sequence[int], size: float, lost: bool) -> Built:
    v = size * torch.randn(s.d)
    v[:KEPT] = 0
    groups = torch.zeros(s.B, s.n, dtype=torch.int64) if lost else alone(s.B, s.n).clone()
    groups[range(s.B), places] = s.n
    X = coded_tokens(groups, s.d)
    X[range(s.B), places, MARK] = 1
    return Coded(s.d, [s.mix] * s.depth, write=lambda index: Neuron(v) if index == s.depth // 2 else None), X


def _passing(s: Sizes, at: int, size: float, lost: bool) -> Built:
    v = size * torch.randn(s.d)
    v[:KEPT] = 0
    signs = {s.depth // 3: 1.0, s.depth - 1: -1.0}
    groups = first_alone(s.B, s.n, 1, [at]) if lost else alone(s.B, s.n)
    return built(s, groups, lambda index: Neuron(signs[index] * v) if index in signs else None, [at])


def _sequences(shelf: Shelf) -> None:
    """Of several sequences some are lost, in places that are drawn."""
    for bad, of in ((1, 2), (3, 4), (7, 8), (4, 8), (1, 8), (1, 4), (3, 8), (0, 8)):
        name = f"sequences: {bad} of {of} lost"
        r = shelf.draw(name)
        s = Sizes.drawn(r)
        s = Sizes(of, s.n, s.d, s.depth, s.mix)
        rows = sorted(r.sample(range(of), bad))
        allowed = COLLAPSED if 2 * bad >= of else ESCALATING if bad else DIVERSE
        why = f"In sequences {rows} of {of} all tokens have one code and take their mean; in the others all stay apart."
        shelf.add(name, "some sequences", allowed, why, partial(_lost_rows, s, rows))


def _lost_rows(s: Sizes, rows: Sequence[int]) -> Built:
    groups = alone(s.B, s.n).clone()
    groups[list(rows)] = 0
    return built(s, groups)


def _lines(shelf: Shelf) -> None:
    """What differs ends on one line; or stays in many dimensions."""
    for name, k, beside, allowed, why in (
        ("line: through the origin", 1, None, COLLAPSED, "All but one direction fades: tokens are multiples of it."),
        ("line: beside a common vector", 1, 1, COLLAPSED, "Tokens end at a common vector plus multiples of another."),
        ("line: one direction, many sizes", 1, 0, COLLAPSED, "Tokens end in one direction and differ in size alone."),
        ("many dimensions are kept", 24, None, DIVERSE, "All but 24 directions fade: 24 are left to differ in."),
    ):
        r = shelf.draw(name)
        s = Sizes.drawn(r)
        s = Sizes(s.B, max(s.n, 32), s.d, s.depth, 0.01)
        shelf.add(name, "few dimensions", allowed, why, partial(_on_a_line, s, k, beside))


def _on_a_line(s: Sizes, k: int, beside: int | None) -> Built:
    """beside: the column of U along which all tokens are shifted, in all blocks together by about 4."""
    U = torch.linalg.qr(torch.randn(s.d, k + 1)).Q
    line, shift = Line(U[:, :k], 0.4), Shared(torch.zeros(s.d) if beside is None else 4 / s.depth * U[:, beside])
    model = Coded(s.d, [s.mix] * s.depth, gain=0.0, write=lambda index: nn.Sequential(line, shift))
    return model, coded_tokens(alone(s.B, s.n), s.d)


def _clusters(shelf: Shelf) -> None:
    """All tokens end in a few points."""
    for count, allowed in ((2, COLLAPSED), (3, ON_THE_WAY), (4, ON_THE_WAY)):
        for even in (True, False):
            name = f"{count} clusters, {'even' if even else 'uneven'}"
            r = shelf.draw(name)
            s = Sizes.drawn(r)
            least = list(range(count)) * (s.n // count if even else 2)
            groups = least + [r.randrange(count) if even else 0 for _ in range(s.n - len(least))]
            r.shuffle(groups)
            why = f"There are {count} codes, and the tokens of a code take their mean: {count} points are left."
            shelf.add(name, "clusters", allowed, why, partial(_clustered, s, groups))
    name = "words that come twice"
    s = Sizes.drawn(shelf.draw(name))
    why = "Every word comes twice, and equal words have equal tokens without positions: half as many points as tokens."
    shelf.add(name, "clusters", HEALTHY, why, partial(_clustered, s, [i // 2 for i in range(s.n)]))


def _clustered(s: Sizes, groups: Sequence[int]) -> Built:
    return built(s, torch.tensor(groups).expand(s.B, s.n))


def _shared(shelf: Shelf) -> None:
    """A direction that all tokens share grows; what differs beside it stays, or is lost."""
    for what, lost, ratio in (
        ("one channel", False, 30.0),
        ("one channel, huge", False, 200.0),
        ("four channels", False, 60.0),
        ("a rotated direction", False, 40.0),
        ("one channel", True, 20.0),
        ("a rotated direction", True, 40.0),
    ):
        name = f"shared: {what} over {'equal' if lost else 'healthy'} tokens"
        r = shelf.draw(name)
        s = Sizes.drawn(r)
        s = Sizes(s.B, max(s.n, 32), s.d, s.depth, s.mix)
        channels = [] if "rotated" in what else r.sample(range(KEPT, s.d), 4 if "four" in what else 1)
        why = f"A vector common to all tokens grows to {ratio:g} times a token; beside it the tokens " + (
            "take their mean in every block." if lost else "keep all that differed, in more than 20 dimensions."
        )
        allowed = COLLAPSED if lost else HEALTHY
        shelf.add(name, "shared direction", allowed, why, partial(_with_shared, s, channels, ratio, lost))


def _with_shared(s: Sizes, channels: Sequence[int], ratio: float, lost: bool) -> Built:
    v = torch.zeros(s.d)
    v[list(channels) or slice(KEPT, None)] = torch.randn(len(channels) or s.d - KEPT)
    v *= ratio * s.d**0.5 / s.depth / v.norm()
    groups = torch.zeros(s.B, s.n, dtype=torch.int64) if lost else alone(s.B, s.n)
    return built(s, groups, lambda index: Shared(v))
