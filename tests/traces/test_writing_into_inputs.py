"""A block that writes into the tokens it is given is measured as its twin that makes new ones, in every verb."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds


class Block(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.norm_1, self.norm_2, self.qkv = nn.LayerNorm(32), nn.LayerNorm(32), nn.Linear(32, 96)
        self.out, self.up, self.down = nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(64, 32)

    def attend(self, X: Tensor) -> Tensor:
        q, k, v = (x.unflatten(-1, (4, 8)).transpose(1, 2) for x in self.qkv(X).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, X: Tensor) -> Tensor:
        if self.in_place:
            X.add_(self.attend(self.norm_1(X)))
            X.add_(self.down(F.gelu(self.up(self.norm_2(X)))))
            return X
        X = X + self.attend(self.norm_1(X))
        return X + self.down(F.gelu(self.up(self.norm_2(X))))


def model(in_place: bool) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*(Block(in_place) for _ in range(3))).eval()


def test_every_verb_gives_what_it_gives_for_the_twin() -> None:
    X = torch.randn(3, 10, 32) + torch.randn(3, 1, 32)
    given = X.clone()
    verbs = {
        "scan": lambda m: ds.scan(m, X)["t_sim"],
        "forecast": lambda m: ds.forecast(m, X).t_sim,
        "paths": lambda m: ds.paths(m, X).share,
        "spectrum": lambda m: ds.spectrum(m, X).margin,
        "bounds": lambda m: torch.tensor([block.D for block in ds.bounds(m, X).blocks]),
        "ablate": lambda m: torch.stack([row.scan["t_sim"] for row in ds.ablate(m, X).rows]),
    }
    wrong = [name for name, verb in verbs.items() if not torch.allclose(verb(model(True)), verb(model(False)))]
    assert not wrong
    assert torch.equal(X, given)  # and the user's own tensor is as it was


def test_a_remedy_meets_the_same_tokens_from_the_first_call_on() -> None:
    X = torch.randn(3, 10, 32)
    twins = [model(True), model(False)]
    for at in ("sa_sum", "ffn_in", "block_out"):
        outputs = []
        for twin in twins:
            with ds.fix_(twin, ds.remedies.DeEscalate(0.7), at=at), torch.no_grad():
                outputs += [twin(X.clone()), twin(X.clone())]
        assert all(torch.allclose(outputs[0], other, atol=1e-6) for other in outputs[1:]), at
