"""PairNorm: centre the tokens and give them a fixed mean length (Zhao & Akoglu 2020)."""

from torch import Tensor

from depthscope.interventions.means import MEANS, Stretch, running_mean, token_mean
from depthscope.registry import shelve
from depthscope.remedies.remedy import Remedy


@shelve("remedy")
class PairNorm(Remedy):
    """Y = s C / sqrt(mean_i |c_i|^2),  C = X - mean token.    Zhao & Akoglu 2020, eq. (10) and (11).

    X (..., n, d) -> Y (..., n, d). form "pn" scales all tokens alike, so that their squared lengths have the mean s^2;
    "pn_si" gives each token the length s. mean: "full" as published; "prefix", "sink" and "past" use earlier tokens
    only, in the mean and in the scale. strength (ours) mixes, (1 - strength) X + strength Y; 1 is the paper, 0 is off.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.PairNorm()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    at = "block_out"
    source = "Zhao & Akoglu 2020 (1909.12223), eq. (10)-(11); PN-SI section 3.3; code LingxiaoShawn/PairNorm"
    off = {"strength": 0.0}
    choices = {"form": ("pn", "pn_si"), "mean": MEANS}
    causal = {"mean": "sink"}

    def __init__(
        self, scale: float = 1.0, *, strength: float = 1.0, form: str = "pn", mean: str = "full", eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.scale = self._within("scale", scale, 0.0, 1e6, "The length that tokens are given.")
        self.eps = self._within("eps", eps, 0.0, 1.0, "It keeps zeros from being divided by.")
        self.strength = self._within("strength", strength, 0.0, 1.0, "1 is PairNorm, 0 does nothing.")
        self.form, self.mean = self._choose("form", form), self._choose("mean", mean)

    @property
    def causal_safe(self) -> bool:
        return self.is_off or self.mean != "full"

    def act(self, X: Tensor, stretch: Stretch) -> Tensor:
        C = X - token_mean(X, self.mean, stretch)
        length = C.square().sum(-1)  # (..., n), squared
        if self.form == "pn":
            real = length if stretch.mask is None else length * stretch.mask
            length = running_mean(real, self.mean, stretch)
        Y = self.scale * C * (length + self.eps).rsqrt().unsqueeze(-1)
        return X.lerp(Y, self.strength)
