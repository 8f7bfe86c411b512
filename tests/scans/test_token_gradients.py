"""scan["token_gradient_norm"]: the norm of dL/dX after every block, as autograd has it, with a remedy in between."""

import torch

import depthscope as ds
from loops import over


@over("tau", [0.0, 0.6])
@over("wiring", ["post_norm", "pre_norm"])
def test_token_gradients_are_those_of_autograd(wiring: str, tau: float) -> None:
    torch.manual_seed(0)
    model, X = ds.models.classic(4, 32, 4, wiring=wiring), torch.randn(3, 9, 32)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return out[:, 0].sin().sum()

    with ds.fix_(model, ds.remedies.DeEscalate(tau)):
        seen = ds.scan(model, X, attention=False, gradients=loss)["token_gradient_norm"]
    states = [X]
    for block in model:
        Y = block(states[-1])
        states.append(Y - tau * Y.mean(-2, keepdim=True))
    found = torch.autograd.grad(loss(model.ending(states[-1])), states[1:])
    torch.testing.assert_close(seen[1:], torch.stack([g.double().norm() for g in found]), rtol=1e-4, atol=0.0)
    assert seen[0].isnan()  # the tokens that the caller gave are no function of any weight
