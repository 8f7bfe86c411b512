"""What became of the tokens, measured literally with numpy: pairs, groups and singular values, no shortcut.

It asks what the rules of a verdict ask (the same, a line, a few points, kept beside an offset) and shares no code with
them: it finds errors of measuring, and not of what is asked.
"""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Tokens = NDArray[np.float64]  # (n, d): of one sequence
Fate = Literal["lost", "some lost", "kept", "not a number", "nothing to pool"]

SAME = 0.01  # of the energy of a token: two tokens that differ by less are the same
FEW = 3  # clusters that are few
MASSIVE = 10.0  # times the median size
VANISHED = 1e-5  # of the size of a token: in float32 this is rounding


def end_states(model: nn.Module, inputs: Any) -> tuple[Tensor, Tensor]:
    """The tokens before the first and after the last block of the longest list of blocks, (B, n, d) each."""
    blocks = max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=len)
    before: list[Tensor] = []
    after: list[Tensor] = []

    def enters(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before.append(args[0] if args else kwargs["hidden_states"])

    def leaves(_: nn.Module, args: Any, out: Any) -> None:
        after.append(out[0] if isinstance(out, tuple) else out)

    hooks = [
        blocks[0].register_forward_pre_hook(enters, with_kwargs=True),
        blocks[-1].register_forward_hook(leaves),
    ]
    try:
        with torch.no_grad():
            model(**inputs) if hasattr(inputs, "keys") else model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return before[0], after[-1]


def fate(model: nn.Module, inputs: Any) -> Fate:
    """What became of the sequences of a batch."""
    mask = inputs.get("attention_mask") if hasattr(inputs, "keys") else None
    sequences = len(next(iter(inputs.values())) if hasattr(inputs, "keys") else inputs)
    states = (X if len(X) == sequences else X.transpose(0, 1) for X in end_states(model, inputs))  # XLNet: tokens first
    start, end = (X.double().numpy() for X in states)
    rows = [slice(None) if mask is None else mask[i].bool().numpy() for i in range(len(end))]
    if not all(np.isfinite(X[own]).all() for X, own in zip(end, rows, strict=True)):
        return "not a number"
    lost = [is_lost(Y[own], X[own]) for X, Y, own in zip(start, end, rows, strict=True)]
    if 2 * sum(lost) >= len(lost):
        return "lost"
    if any(lost):
        return "some lost"
    pooled = max(pooled_share(Y[own]) for Y, own in zip(end, rows, strict=True))
    return "nothing to pool" if pooled < VANISHED else "kept"


def pooled_share(Y: Tokens) -> float:
    """How large the mean token is beside the tokens."""
    return float(np.linalg.norm(Y.mean(0)) / np.linalg.norm(Y, axis=1).mean())


def is_lost(Y: Tokens, X: Tokens) -> bool:
    """Whether the tokens Y that X became are the same (nearly all), lie on a line, or in a few points."""
    ordinary = without_massive(Y)
    apart = distances(ordinary)
    n, size = len(ordinary), np.square(ordinary).sum(1).mean()
    typical = np.median(apart[np.triu_indices(n, 1)])
    if typical <= 2 * SAME * size and not kept_apart(ordinary, X):
        return True
    return (n > 2 and on_a_line(ordinary)) or len(clusters(ordinary, apart)) <= min(FEW, n // 4)


def without_massive(Y: Tokens) -> Tokens:
    """Tokens whose size is at most MASSIVE times the median."""
    sizes = np.linalg.norm(Y, axis=1)
    return Y[sizes <= MASSIVE * np.median(sizes)]


def distances(Y: Tokens) -> NDArray[np.float64]:
    """|y_i - y_j|^2 for every pair: (n, n)."""
    return np.square(Y[:, None] - Y).sum(-1)


def kept_apart(Y: Tokens, X: Tokens) -> bool:
    """Whether tokens differ as much as at the start, in many dimensions: something common was added to them."""
    typical = [np.median(distances(Z)[np.triu_indices(len(Z), 1)]) for Z in (X, Y)]
    return bool(typical[1] > 0.25 * typical[0] and dimensions(Y) > 5)


def singular(Y: Tokens) -> NDArray[np.float64]:
    """Shares of what differs along its principal directions, largest first."""
    squares = np.square(np.linalg.svd(Y - Y.mean(0), compute_uv=False))
    return squares / max(squares.sum(), np.finfo(float).tiny)  # tokens that are the same to the last bit: zeros


def on_a_line(Y: Tokens) -> bool:
    return bool(singular(Y)[0] > 1 - SAME)


def dimensions(Y: Tokens) -> float:
    """exp of the entropy of the shares: in how many directions tokens differ."""
    shares = singular(Y)
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def clusters(Y: Tokens, apart: NDArray[np.float64]) -> list[set[int]]:
    """Groups of tokens that chains of small steps join: shorter than a tenth of the typical distance from the mean."""
    step = SAME * np.square(Y - Y.mean(0)).sum(1).mean()
    left, found = set(range(len(Y))), []
    while left:
        group, edge = set(), {left.pop()}
        while edge:
            token = edge.pop()
            group.add(token)
            near = {j for j in left if apart[token, j] < step}
            left -= near
            edge |= near
        found.append(group)
    return found
