"""NeuTRENO: pull every layer's values back to those of the first (Nguyen et al. 2023)."""

from torch import Tensor

from depthscope.registry import shelve
from depthscope.remedies.attention_remedy import AttentionRemedy


@shelve("remedy")
class NeuTRENO(AttentionRemedy):
    """SA_l = P v_l + lam (v_1 - v_l), v_1 the values of the first layer.    Nguyen et al. 2023 (2312.00751)

    With blocks= the first is the first of those.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.NeuTRENO()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    source = "Nguyen, Nguyen & Baraniuk 2023 (2312.00751); lam 0.6 for DeiT"
    off = {"lam": 0.0}
    carries = True

    def __init__(self, lam: float = 0.6) -> None:
        super().__init__()
        self.lam = self._within("lam", lam, 0.0, 1e3, "0 does nothing.")
        self._first: Tensor | None = None

    def begin(self) -> None:
        self._first = None

    def mix(self, P: Tensor, v: Tensor) -> Tensor:
        if self._first is None:
            self._first = v
        return P @ v + self.lam * (self._first - v)
