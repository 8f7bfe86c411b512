"""SpectralH: W_V W_O given by its eigenvalues, which decide whether attention smooths (Dovonon et al. 2024)."""

from typing import Any

import torch
from torch import Tensor, nn

from depthscope.checks import measurable
from depthscope.errors import ShapeError, UnknownNameError, UsageError
from depthscope.registry import shelve, unknown
from depthscope.remedies.eigenvalues import (
    BOUNDS,
    condition_of,
    eigenvalues,
    from_symmetric,
    inverse,
    nearest,
    orthogonal,
)
from depthscope.remedies.value_remedy import ValueRemedy

OWN = "own"  # the mode that leaves a block as it is


@shelve("remedy")
class SpectralH(ValueRemedy):
    """H = W_V W_O = V diag(lambda) V^-1,  lambda forced to smooth or to sharpen.    Dovonon et al. 2024 (2401.04301)

    W_V = V, each head has some of its columns, and W_O = diag(lambda) V^-1; biases, norms, a weight of the branch stay.
    mode: "sharpen" lambda = clip(psi, -1, 0), "sharpen_square" -psi^2 (below -2 that smooths again, with alternating
    sign), "smooth" +psi^2, "free" psi, "own" the block as it is. Several with "/" between are taken by the blocks in
    turn: "sharpen/own" forces every second one.
    form: "symmetric" has an orthogonal V, the Q of a free matrix; "direct" a free V, refused when cond_1(V) > 0.01/eps
    (8e4 in float32). Both start at the model's own W_V W_O, as near as mode and form allow: start_error says how near.
    The model's own two rest from then on: their gradient is zero, but weight decay still shrinks them.
    learnable=False has no numbers of its own: V and lambda are those of the weights in each pass (symmetric only).

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.SpectralH()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    source = "Dovonon et al. 2024 (2401.04301)"
    off = {"mode": OWN}
    choices = {"form": ("symmetric", "direct")}

    def __init__(self, mode: str = "sharpen", *, form: str = "symmetric", learnable: bool = True) -> None:
        super().__init__()
        self.mode, self.form, self.learnable = str(mode), self._choose("form", form), learnable
        self.modes = self.mode.split("/")
        for one in self.modes:
            if one not in (*BOUNDS, OWN):
                raise UnknownNameError("SpectralH: " + unknown("mode", one, (*BOUNDS, OWN)))
        if not learnable and form == "direct":
            raise UsageError(
                "SpectralH: the direct form must be learned, as eigenvectors of any matrix have no gradient that can "
                "be trusted; got learnable=False. Use form='symmetric'."
            )
        self.here = self.modes[0]  # the mode of this copy's block
        self.start_error: float | None = None  # |H - H_0| / |H_0| at the start, Frobenius

    @property
    def is_off(self) -> bool:
        return set(self.modes) == {OWN}

    @property
    def acts(self) -> bool:
        return self.here != OWN

    def place_(self, d: int, turn: int, like: Tensor) -> None:
        self.here = self.modes[turn % len(self.modes)]
        if self.learnable and self.acts:
            # infinite until it has started or was loaded
            self.psi = nn.Parameter(torch.full((d,), torch.inf, dtype=like.dtype, device=like.device))
            self.Theta = nn.Parameter(torch.eye(d, dtype=like.dtype, device=like.device))

    @torch.no_grad()
    def start_(self, W_V: Tensor, W_O: Tensor, heads: int) -> None:
        if self.learnable and self.psi.shape != W_V.shape[:1]:
            raise ShapeError(
                f"SpectralH: attention must have the width that most matrices of its block have, {len(self.psi)}; got "
                f"{W_V.shape[0]}. Pass blocks= with modules that hold attention and its residual stream."
            )
        H_0 = measurable(W_V).double() @ measurable(W_O).double()
        if self.learnable and bool(self.psi.isinf().all()):
            psi, V = nearest(H_0, self.form, self.here, heads, _wide(W_V).dtype)
            self.psi.copy_(psi)
            self.Theta.copy_(V)
        V, U = self.values(W_V, W_O, heads)
        self.start_error = float((measurable(V).double() @ measurable(U).double() - H_0).norm() / H_0.norm())

    def values(self, W_V: Tensor, W_O: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        """V (d, d) and diag(lambda) V^-1 (d, d), in float32 or wider."""
        if not self.learnable:
            lam, V = from_symmetric(_wide(W_V) @ _wide(W_O), heads)
            return V, lam.clamp(*BOUNDS[self.here]).unsqueeze(-1) * V.mT
        V, V_inverse = self.basis()
        return V, self.eigenvalues().unsqueeze(-1) * V_inverse

    def eigenvalues(self) -> Tensor:
        """lambda (d,), as the block has them now."""
        return eigenvalues(_wide(self.psi), self.here)

    def basis(self) -> tuple[Tensor, Tensor]:
        """V and V^-1, (d, d) each."""
        Theta = _wide(self.Theta)
        if self.form == "direct":
            return Theta, inverse(Theta, "SpectralH")
        V = orthogonal(Theta)
        return V, V.mT

    def condition(self) -> float:
        """cond_1(V) of the direct form, cond_1(Theta) of the symmetric one: what its gradient is divided by."""
        Theta: Any = _wide(self.Theta.detach())
        return condition_of(Theta, torch.linalg.inv_ex(Theta)[0])


def _wide(W: Tensor) -> Tensor:
    return W.float() if W.dtype in (torch.float16, torch.bfloat16) else W
