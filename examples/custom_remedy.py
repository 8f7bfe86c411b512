"""Write a remedy of your own, put it into a model, and compare it with one from the shelf.

python examples/custom_remedy.py
"""

import torch
from torch import Tensor

import depthscope as ds
from depthscope.interventions.means import Stretch, token_mean
from depthscope.registry import shelve
from depthscope.remedies.remedy import Remedy


@shelve("remedy")
class PushApart(Remedy):
    """Y = X + by (X - m),  m: the mean of the tokens,  by in [0, 1]."""

    at = "block_out"
    source = "an example of depthscope"
    off = {"by": 0.0}
    causal = {"form": "sink"}  # what fix_ takes instead where tokens may not see their future

    def __init__(self, by: float = 0.2, *, form: str = "full") -> None:
        super().__init__()
        self.by, self.form = self._within("by", by, 0.0, 1.0, "0 does nothing."), form

    @property
    def causal_safe(self) -> bool:
        return self.form != "full"

    def act(self, X: Tensor, stretch: Stretch) -> Tensor:
        return X + self.by * (X - token_mean(X, self.form, stretch))  # padding is left out of the mean


def main() -> None:
    torch.manual_seed(0)
    model, tokens = ds.models.classic(depth=24, d=64, h=4, weights="xavier"), torch.randn(4, 32, 64)
    plain = model(tokens)
    for remedy in (None, PushApart(0.2), PushApart(0.6), ds.remedies.DeEscalate(0.3)):
        if remedy is None:
            scan = ds.scan(model, tokens, attention=False)  # heads are not asked for
        else:
            with ds.fix_(model, remedy):
                scan = ds.scan(model, tokens, attention=False)
        name, left = str(remedy or "no remedy"), float(scan["t_div"][-1])
        print(f"{name:24} token diversity {left:.2g} at block 24: {scan.verdict.status}")
    assert torch.equal(model(tokens), plain)  # every remedy is undone bit for bit


if __name__ == "__main__":
    main()
