"""How well numbers tell which designs train: fits on one half, ranks and factors on the other."""

import torch
from torch import Tensor

RIDGE = 1e-3  # keeps a fit finite where one number tells all cases apart
STEPS = 50  # of Newton's method


def logistic(X: Tensor, y: Tensor) -> Tensor:
    """Weights (f + 1,), the last is the constant, for which sigmoid(X w + b) tells y (N,) best; X (N, f)."""
    A, y = torch.cat([X, torch.ones(len(X), 1, dtype=X.dtype)], 1).double(), y.double()
    w, keep = torch.zeros(A.shape[1], dtype=torch.float64), RIDGE * torch.eye(A.shape[1], dtype=torch.float64)
    for _ in range(STEPS):
        p = (A @ w).sigmoid()
        w = w + torch.linalg.solve((A.T * (p * (1 - p))) @ A + keep, A.T @ (y - p) - keep @ w)
    return w


def told(X: Tensor, w: Tensor) -> Tensor:
    """The logits of cases X (..., f) by weights (f + 1,)."""
    return X.double() @ w[:-1] + w[-1]


def auc(score: Tensor, y: Tensor) -> float:
    """The area under the ROC curve: how often a case that is true has the higher score, ties count half."""
    yes, no = score[y.bool()].unsqueeze(1), score[~y.bool()].unsqueeze(0)
    return float(((yes > no).double() + (yes == no).double() / 2).mean())


def auc_interval(score: Tensor, y: Tensor, groups: Tensor, draws: int = 1000) -> tuple[float, float]:
    """Between which values the area lies in 95 of 100 draws of whole groups (designs) with replacement."""
    chance, found = torch.Generator().manual_seed(0), []
    members = [(groups == g).nonzero().flatten() for g in groups.unique()]
    for _ in range(draws):
        drawn = torch.randint(len(members), (len(members),), generator=chance)
        rows = torch.cat([members[int(k)] for k in drawn])
        if 0 < int(y[rows].sum()) < len(rows):
            found.append(auc(score[rows], y[rows]))
    low, high = torch.tensor(found or [torch.nan]).quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high


def within(forecast: Tensor, largest: Tensor, factor: float) -> Tensor:
    """Whether a forecast of the largest rate is within a factor of the largest on the ladder that trains, (N,)."""
    return (forecast / largest).log().abs() <= torch.tensor(factor).log() + 1e-6


def share_interval(yes: Tensor) -> tuple[float, float]:
    """Wilson's interval of a share, 95 %; yes (N,)."""
    n, p, z = max(1, len(yes)), float(yes.double().mean()), 1.96
    middle, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
