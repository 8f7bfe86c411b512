"""Stacks that break: numbers that overflow, a pooled vector that vanishes, padding, and sums that nobody sees."""

from functools import partial

import torch
from torch import Tensor, nn

from depthscope.models.gallery.coded import MARK, Coded, coded_tokens
from depthscope.models.gallery.entry import COLLAPSED, DIVERSE, HEALTHY, NOT_A_NUMBER, VANISHED, Built, Shelf
from depthscope.models.gallery.traps import Sizes, alone
from depthscope.models.gallery.writers import Centre, HiddenBlock, MeanHead, Overflow
from depthscope.models.transformer import classic


def add_damage(shelf: Shelf) -> None:
    for add in (_overflow, _vanished, _padding, _hidden):
        add(shelf)


def _overflow(shelf: Shelf) -> None:
    for what in ("in all sequences", "in one of four sequences"):
        for lost in (False, True):
            name = f"overflow {what}, {'equal' if lost else 'healthy'} tokens"
            r = shelf.draw(name)
            s = Sizes.drawn(r)
            block = r.randint(2, s.depth)
            why = f"One token {what} becomes infinite in block {block}: nothing after it has a meaning."
            only = 0 if "one" in what else None
            make = partial(_overflowing, Sizes(4, s.n, s.d, s.depth, s.mix), block, only, lost)
            shelf.add(name, "not a number", NOT_A_NUMBER, why, make)


def _overflowing(s: Sizes, block: int, only: int | None, lost: bool) -> Built:
    groups = torch.zeros(s.B, s.n, dtype=torch.int64) if lost else alone(s.B, s.n)
    X = coded_tokens(groups, s.d, marked=[s.n // 2])
    if only is not None:
        X[only + 1 :, :, MARK] = 0
    if lost:
        X[..., MARK] *= s.n  # what a token shares with the others in its group still overflows
    return Coded(s.d, [s.mix] * s.depth, write=lambda i: Overflow() if i == block else None), X


def _vanished(shelf: Shelf) -> None:
    for everywhere in (False, True):
        name = f"vanished: the mean is removed {'in every block' if everywhere else 'in the last block'}"
        s = Sizes.drawn(shelf.draw(name))
        why = "The tokens are healthy, but their mean, which the head reads, is removed: only rounding is left of it."
        shelf.add(name, "vanished", VANISHED, why, partial(_pooled, s, everywhere))
    name = "pooled, and nothing vanishes"
    why = "The tokens are healthy and the head reads their mean, which nobody removes."
    s = Sizes.drawn(shelf.draw(name))
    shelf.add(name, "vanished", DIVERSE, why, partial(_pooled, s, None))


def _pooled(s: Sizes, everywhere: bool | None) -> Built:
    def write(index: int) -> nn.Module | None:
        return Centre() if everywhere or (everywhere is False and index == s.depth) else None

    return Coded(s.d, [s.mix] * s.depth, write=write, head=MeanHead(s.d)), coded_tokens(alone(s.B, s.n), s.d)


def _padding(shelf: Shelf) -> None:
    """Most places are padding, and padding is the opposite of what the tokens are."""
    for lost in (True, False):
        for share in (0.6, 0.8):
            name = f"padding: {share:.0%}, {'equal' if lost else 'healthy'} tokens"
            r = shelf.draw(name)
            s = Sizes.drawn(r)
            n = r.choice([40, 60])
            why = f"{share:.0%} of all places are padding; the tokens " + (
                "take their mean, while the padding stays diverse." if lost else "stay apart, while all padding is one."
            )
            allowed = COLLAPSED if lost else DIVERSE
            shelf.add(name, "padding", allowed, why, partial(_padded, s, n, share, lost, r.choice([0, 1])))


def _padded(s: Sizes, n: int, share: float, lost: bool, left: int) -> Built:
    used = round((1 - share) * n)
    lengths = torch.tensor([used + 2 * (i % 2) for i in range(s.B)])
    real = torch.arange(n) < lengths[:, None]
    real = real.flip(1) if left else real
    one, many = torch.zeros(s.B, n, dtype=torch.int64), torch.arange(1, n + 1).expand(s.B, n)
    groups = torch.where(real == lost, one, many)
    X = coded_tokens(groups, s.d)
    return Coded(s.d, [s.mix] * s.depth), {"X": X, "attention_mask": real.long()}


class Hidden(nn.Module):
    """Post-norm blocks on embedded tokens whose residual sums are made out of sight."""

    def __init__(self, depth: int, d: int, scale: float) -> None:
        super().__init__()
        parts = classic(depth, d, 4, q=2 * d)
        self.blocks = nn.ModuleList(HiddenBlock(b.attention, b.ffn, d, scale) for b in parts)

    def forward(self, X: Tensor) -> Tensor:
        for block in self.blocks:
            X = block(X)
        return X


def _hidden(shelf: Shelf) -> None:
    for lost, depths, scale in ((True, (24, 32), 1.0), (False, (6, 10), 0.15)):
        name = f"hidden sums: {'deep post-norm' if lost else 'weak branches'}"
        r = shelf.draw(name)
        depth, n, d = r.choice(depths), r.choice([16, 32]), r.choice([48, 64])
        why = "No step inside a block can be followed. " + (
            f"{depth} post-norm blocks halve t_div each." if lost else "Branches of weight .15 hardly mix the tokens."
        )
        make = partial(_hidden_model, depth, n, d, scale)
        shelf.add(name, "hidden steps", COLLAPSED if lost else HEALTHY, why, make)


def _hidden_model(depth: int, n: int, d: int, scale: float) -> Built:
    return Hidden(depth, d, scale), torch.randn(3, n, d)
