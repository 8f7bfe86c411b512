"""A network of attention blocks as a sum over its paths (Dong et al. 2021, Theorem 2.1 and section 3).

X (..., n, d) are the tokens that enter. Block l has attention matrices P_l (..., H, n, n), seen on a pass through the
network and then held fixed, and weights W_V_l (H, d, d_v), W_O_l (H, d_v, d); head h multiplies by W_h = W_V,h W_O,h.
A path names one head of every block, counted from 0, or None for the skip connection. Norms, feed-forward networks and
biases are no part of this.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from depthscope.errors import ShapeError, UsageError
from depthscope.theory.path_counts import path_counts

Path = tuple[int | None, ...]
Blocks = Sequence[Tensor]  # one tensor for each block
LIMIT = 4096  # paths that are listed one by one, unless more are asked for


def attend(P: Tensor, W_V: Tensor, W_O: Tensor, X: Tensor) -> Tensor:
    """What one attention block gives back: all its heads, skip connection not included.

    attend(X) = sum_h P_h X W_V,h W_O,h

    X (..., n, d) -> (..., n, d), linear in X. Costs n^2 d + n d^2: the d x d matrices W_h are never built.

    Examples:
        >>> P, W = torch.full((2, 4, 4), 0.25), torch.eye(3).expand(2, 3, 3)  # two heads, 4 tokens of width 3
        >>> ds.theory.attend(P, W, W, torch.ones(4, 3)).shape
        torch.Size([4, 3])
    """
    _check_block(P, W_V, W_O, X)
    H, d, d_v = W_V.shape
    values = X @ W_V.transpose(0, 1).reshape(d, H * d_v)  # (..., n, H d_v)
    mixed = P @ values.unflatten(-1, (H, d_v)).transpose(-2, -3)  # (..., H, n, d_v)
    return mixed.transpose(-2, -3).flatten(-2) @ W_O.reshape(H * d_v, -1)


def by_length(X: Tensor, P: Blocks, W_V: Blocks, W_O: Blocks, *, skips: bool = True) -> Tensor:
    """The exact sum over all paths of each length 0 .. L, which together are the network's output.

    X_k <- X_k + attend_l(X_{k-1})  for l = 1 .. L,    X_0 = X and X_k = 0 before block 1

    X (..., n, d) -> (L + 1, ..., n, d): L (L + 1) / 2 applications of a block in place of (1 + H)^L paths. Without
    skips every path has length L. Dong et al. 2021, section 3, where paths are drawn instead.

    Examples:
        >>> P, W = torch.full((1, 4, 4), 0.25), torch.eye(3)[None]  # one head, 4 tokens of width 3
        >>> parts = ds.theory.by_length(torch.ones(4, 3), [P] * 2, [W] * 2, [W] * 2)  # two blocks
        >>> parts.shape, parts[:, 0, 0].tolist()  # one path of length 0, two of length 1, one of length 2
        (torch.Size([3, 4, 3]), [1.0, 2.0, 1.0])
    """
    check_blocks(P, W_V, W_O, where="by_length")
    L = len(P)
    if not skips:
        for block in zip(P, W_V, W_O, strict=True):
            X = attend(*block, X)
        return torch.stack([*(torch.zeros_like(X) for _ in range(L)), X])
    parts = [X, *(torch.zeros_like(X) for _ in range(L))]
    for done, block in enumerate(zip(P, W_V, W_O, strict=True)):
        for k in range(done + 1, 0, -1):  # downwards, so that X_{k-1} is still that of the block before
            parts[k] = parts[k] + attend(*block, parts[k - 1])
    return torch.stack(parts)


def along_path(path: Path, X: Tensor, P: Blocks, W_V: Blocks, W_O: Blocks) -> Tensor:
    """What one path contributes: P_path X W_path, without building either.  X (..., n, d) -> (..., n, d).

    Examples:
        >>> P, W = torch.full((1, 4, 4), 0.25), torch.eye(3)[None]
        >>> ds.theory.along_path((0, None), torch.ones(4, 3), [P] * 2, [W] * 2, [W] * 2).shape  # head 0, then the skip
        torch.Size([4, 3])
    """
    _check_path(path, P, W_V, W_O)
    for h, *block in zip(path, P, W_V, W_O, strict=True):
        if h is not None:
            P_l, V_l, O_l = block
            X = P_l[..., h, :, :] @ (X @ V_l[h]) @ O_l[h]
    return X


def path_matrices(path: Path, P: Blocks, W_V: Blocks, W_O: Blocks) -> tuple[Tensor, Tensor]:
    """The two matrices of a path: what it does to tokens, and to channels.

    P_path = P^L_{h_L} ... P^1_{h_1},    W_path = W^1_{h_1} ... W^L_{h_L},    the identity in place of a skip

    -> (..., n, n), rows that sum to 1, and (d, d), which the input does not change. Dong et al. 2021, Theorem 2.1.

    Examples:
        >>> P, W = torch.full((1, 4, 4), 0.25), torch.eye(3)[None]
        >>> [matrix.shape for matrix in ds.theory.path_matrices((0, None), [P] * 2, [W] * 2, [W] * 2)]
        [torch.Size([4, 4]), torch.Size([3, 3])]
    """
    _check_path(path, P, W_V, W_O)
    n, d = P[0].shape[-1], W_V[0].shape[-2]
    P_path = torch.eye(n, dtype=P[0].dtype, device=P[0].device).expand((*P[0].shape[:-3], n, n))
    W_path = torch.eye(d, dtype=W_V[0].dtype, device=W_V[0].device)
    for h, P_l, V_l, O_l in zip(path, P, W_V, W_O, strict=True):
        if h is not None:
            P_path, W_path = P_l[..., h, :, :] @ P_path, W_path @ V_l[h] @ O_l[h]
    return P_path, W_path


def every_path(heads: Sequence[int], *, skips: bool = True, limit: int = LIMIT) -> Iterator[Path]:
    """All paths through blocks of so many heads, one by one; UsageError when there are more than `limit`.

    Examples:
        >>> list(ds.theory.every_path([1, 2]))  # None is the skip
        [(None, None), (None, 0), (None, 1), (0, None), (0, 0), (0, 1)]
    """
    log10_total = path_counts(heads=heads, skips=skips).log10_total
    if log10_total > math.log10(limit) + 1e-9:
        raise UsageError(
            f"every_path: there must be at most {limit} paths to list; {len(heads)} blocks have 10^{log10_total:.1f}. "
            "Use by_length, which is exact for any number, or sampled_paths; or raise limit."
        )
    choices = [(*((None,) if skips else ()), *range(H)) for H in heads]
    return iter(product(*choices))


def _check_block(P: Tensor, W_V: Tensor, W_O: Tensor, X: Tensor) -> None:
    H, n, d = P.shape[-3] if P.ndim >= 3 else 0, X.shape[-2], X.shape[-1]
    fits = P.shape[-2:] == (n, n) and W_V.ndim == 3 == W_O.ndim and W_V.shape[:2] == (H, d)
    if not fits or W_O.shape != (H, W_V.shape[-1], d):
        raise ShapeError(
            "attend: P must be (..., H, n, n), W_V (H, d, d_v) and W_O (H, d_v, d) for tokens (..., n, d); got "
            f"{tuple(P.shape)}, {tuple(W_V.shape)} and {tuple(W_O.shape)} for {tuple(X.shape)}. Heads precede tokens."
        )


def check_blocks(P: Blocks, W_V: Blocks, W_O: Blocks, *, where: str) -> list[int]:
    """The heads of every block."""
    if not len(P) == len(W_V) == len(W_O) or not len(P):
        raise UsageError(
            f"{where}: P, W_V and W_O must have one tensor for each block; got {len(P)}, {len(W_V)} and {len(W_O)}. "
            "Give lists, the first block first."
        )
    return [W.shape[0] for W in W_V]


def _check_path(path: Path, P: Blocks, W_V: Blocks, W_O: Blocks) -> None:
    heads = check_blocks(P, W_V, W_O, where="path")
    fits = len(path) == len(heads) and all(h is None or 0 <= h < H for h, H in zip(path, heads, strict=True))
    if not fits:
        raise UsageError(
            f"path: must name a head of every block, counted from 0, or None for its skip; got {path} for "
            f"{len(heads)} blocks of {', '.join(map(str, sorted(set(heads))))} heads."
        )
