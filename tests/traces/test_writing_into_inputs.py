"""A block that writes into the tokens it is given is measured as its twin that makes new ones, in every verb."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds
from depthscope.traces.inputs import fresh
from loops import crossed


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


@dataclass(frozen=True)
class Given:
    tokens: Tensor
    others: list


class WritesIntoInputs(nn.Module):
    """Blocks after something that writes into what the user gave, in every way there is."""

    def __init__(self, way: str, in_place: bool) -> None:
        super().__init__()
        self.way, self.in_place = way, in_place
        self.layers = nn.ModuleList(Block(False) for _ in range(2))
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Any, bias: Any = None) -> Tensor:
        tokens, other = self.opened(x)
        if self.in_place:
            tokens += 1.0
            tokens.mul_(0.7)
            other.clamp_(-0.1, 0.1)
            tokens.add_(other)
        else:
            other = other.clamp(-0.1, 0.1)
            tokens = (tokens + 1.0) * 0.7 + other
        for layer in self.layers:
            tokens = layer(self.drop(tokens))
        return tokens

    def opened(self, x: Any) -> tuple[Tensor, Tensor]:
        if self.way == "dict":
            return x["tokens"], x["others"][0]
        if self.way == "dataclass":
            return x.tokens, x.others[0]
        return (x[0], x[1]["other"]) if self.way == "list" else (x, x[:, :1])


def handed(way: str, tokens: Tensor, other: Tensor) -> Any:
    if way == "dict":
        return {"x": {"tokens": tokens, "others": [other]}}
    if way == "dataclass":
        return {"x": Given(tokens, [other])}
    return {"x": [tokens, {"other": other}]} if way == "list" else {"x": tokens}


VERBS = {
    "scan": lambda m, x: ds.scan(m, x)["t_sim"],
    "scan with dropout": lambda m, x: torch.stack([ds.scan(dropping(m), x).without_dropout]),
    "paths": lambda m, x: ds.paths(m, x).share,
    "spectrum": lambda m, x: ds.spectrum(m, x).margin,
    "bounds": lambda m, x: torch.tensor([block.D for block in ds.bounds(m, x).blocks]),
    "ablate": lambda m, x: torch.stack([row.scan["t_sim"] for row in ds.ablate(m, x).rows]),
    "fix_": lambda m, x: fixed(m, x),
}


def dropping(model: nn.Module) -> nn.Module:
    model.train()
    model.drop.p = 0.5
    return model


def fixed(model: nn.Module, inputs: dict) -> Tensor:
    with ds.fix_(model, ds.remedies.DeEscalate(0.7)), torch.no_grad():
        return model(**fresh((), inputs)[1])


# ten sequences of ten tokens: a shorter pass tells the axis
@crossed("verb, way, B", list(VERBS), ["plain", "list", "dict", "dataclass"], [3, 10])
def test_every_extra_pass_starts_from_what_was_given(way, verb, B):
    tokens, other = torch.randn(B, 10, 32), torch.randn(B, 1, 32)
    kept = tokens.clone(), other.clone()
    found = []
    for in_place in (True, False):
        torch.manual_seed(1)
        model = WritesIntoInputs(way, in_place).eval()
        found.append(VERBS[verb](model, handed(way, tokens, other)))
        assert torch.equal(tokens, kept[0]) and torch.equal(other, kept[1]), "the user's tensors were written into"
        if way == "plain":
            break
    if way != "plain":
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


class WritesIntoIds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(50, 32), nn.ModuleList(Block(False) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        ids.add_(1)
        x = self.embed(ids.clamp_(0, 49))
        for layer in self.layers:
            x = layer(x)
        return x


def test_ids_are_written_into_once_a_pass():
    ids = torch.randint(0, 40, (10, 10))
    kept = ids.clone()
    for verb in (ds.scan, ds.forecast, ds.paths, ds.bounds, ds.spectrum):
        verb(WritesIntoIds().eval(), ids)
        assert torch.equal(ids, kept), verb


def test_copies_keep_what_was_one_tensor_and_the_kind_of_every_record():
    x = torch.randn(2)
    args, kwargs = fresh((x, [x, {"a": (x, 3)}]), {"g": Given(x, [x]), "n": None})
    copy = args[0]
    assert copy is not x and torch.equal(copy, x)
    assert args[1][0] is copy and args[1][1]["a"][0] is copy and kwargs["g"].tokens is copy
    assert isinstance(kwargs["g"], Given) and kwargs["n"] is None
