"""FeatScale: weigh the mean token and the deviations from it apart, channel by channel (Wang et al. 2022)."""

from torch import Tensor

from depthscope.errors import ShapeError
from depthscope.interventions.means import MEANS, Stretch, token_mean
from depthscope.registry import shelve
from depthscope.remedies.remedy import Remedy


@shelve("remedy")
class FeatScale(Remedy):
    """Y = X + s M + t (X - M),  M = mean token, s and t per channel.    Wang et al. 2022, FeatScale.

    X (..., n, d) -> Y (..., n, d). s and t are learned from 0, where it is the identity; learnable=False keeps the
    given numbers. form "repo" counts both parts twice, as one version of the official code does (featscale.py
    at 969b564; its other files do not): 1 + 2 s, 1 + 2 t.
    mean: "full" as published; "prefix", "sink" and "past" use earlier tokens only. d is the width.
    As in the paper it acts on the output of attention, before the residual is added.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.FeatScale(d=8)):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    at = "sa_out"
    source = "Wang et al. 2022 (2203.05962), FeatScale; code VITA-Group/ViT-Anti-Oversmoothing"
    off = {"s": 0.0, "t": 0.0}
    choices = {"form": ("paper", "repo"), "mean": MEANS}
    learns = ("s", "t")
    causal = {"mean": "sink"}

    def __init__(
        self,
        d: int,
        *,
        s: float = 0.0,
        t: float = 0.0,
        form: str = "paper",
        mean: str = "full",
        learnable: bool = True,
    ) -> None:
        super().__init__()
        self.d, self.learnable = self._count("d", d), learnable
        self.form, self.mean = self._choose("form", form), self._choose("mean", mean)
        within = (-1e3, 1e3, "0 does nothing.")
        self.s = self._strength("s", self._within("s", s, *within), d)
        self.t = self._strength("t", self._within("t", t, *within), d)

    @property
    def causal_safe(self) -> bool:
        return self.is_off or self.mean != "full"

    def act(self, X: Tensor, stretch: Stretch) -> Tensor:
        if X.shape[-1] != self.d:
            raise ShapeError(
                f"FeatScale: X must have the width d = {self.d} it was built for; got {tuple(X.shape)}. "
                f"Build FeatScale({X.shape[-1]})."
            )
        times = 1 if self.form == "paper" else 2
        return X * (1 + times * self.t) + times * (self.s - self.t) * token_mean(X, self.mean, stretch)
