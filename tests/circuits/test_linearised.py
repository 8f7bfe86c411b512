"""The frozen model against the model, and its path lengths against a list of all paths."""

import itertools

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.circuits.linearised import linearise
from depthscope.circuits.subject import subject_of
from depthscope.errors import HookError
from loops import over
from scans.families import FAMILIES

NAMES = [name for name in FAMILIES if not name.endswith("-train")]


def split(model: nn.Module, X: Tensor, line: str = "secant"):
    return linearise(subject_of(model, X), line=line)


@over("name, line", itertools.product(NAMES, ["secant", "tangent"]), every=5)
def test_the_lengths_of_every_family_are_its_output(name: str, line: str) -> None:
    family = FAMILIES[name]()
    found = split(family.model, family.inputs, line)
    assert found.parts.shape[0] == 4 and found.heads == [4, 4, 4]
    assert found.error < 2e-5
    ends: list[Tensor] = []
    handle = family.ends[-1].register_forward_hook(
        lambda module, args, output: ends.append(output[0] if isinstance(output, tuple) else output)
    )
    with torch.no_grad():
        family.model(family.inputs)
    handle.remove()
    true = ends[-1].transpose(0, 1) if family.time_first else ends[-1]
    torch.testing.assert_close(found.output, true.double(), atol=1e-5, rtol=1e-5)
    assert all(float(part.norm()) > 0 for part in found.parts)


class Chosen(nn.Module):
    """A block of ours whose attention takes part or not, and which can be told to hold what it computes."""

    def __init__(self, block: nn.Module, held: dict, attends: bool) -> None:
        super().__init__()
        self.block, self.held, self.attends = block, held, attends

    def forward(self, X: Tensor) -> Tensor:
        """post_norm and pre_norm by their formulas, with P, 1 / std of the norms and the signs of ReLU as given."""
        wiring, attention, ffn, held = self.block.wiring, self.block.attention, self.block.ffn, self.held

        def norm(layer: nn.LayerNorm, x: Tensor, key: str) -> Tensor:
            r = held.setdefault(key, (x.var(-1, unbiased=False, keepdim=True) + layer.eps).rsqrt())
            return (x - x.mean(-1, keepdim=True)) * r * layer.weight + layer.bias

        def SA(x: Tensor) -> Tensor:
            P = held.setdefault("P", attention.pattern(x))
            v = attention._split(attention.W(x))
            mixed = (P @ v).transpose(-2, -3).flatten(-2)
            return mixed if attention.W_O is None else attention.W_O(mixed)

        def FFN(y: Tensor) -> Tensor:
            u = ffn.W_1(y)
            return ffn.W_2(u * held.setdefault("gate", (u > 0).to(u)))

        pre = type(wiring).__name__ == "PreNorm"
        reads = norm(wiring.norm_1, X, "norm_1") if pre else X
        Y = X + wiring.alpha * SA(reads) if self.attends else X
        if pre:
            return Y + FFN(norm(wiring.norm_2, Y, "norm_2"))
        Y = norm(wiring.norm_1, Y, "norm_1")
        return norm(wiring.norm_2, Y + FFN(Y), "norm_2")


@over("wiring", ["post_norm", "pre_norm"])
def test_lengths_equal_the_sum_over_all_choices_of_blocks_that_attend(wiring: str) -> None:
    """The frozen network written by hand, run once for each of the 2^L sets of blocks in which attention acts.

    A set S contributes the sum over its subsets T of (-1)^(|S| - |T|) net_T (inclusion and exclusion), less what
    comes from zeros; the model has no biases but attention's own are 0 here.
    """
    torch.manual_seed(3)
    L = 3
    model = ds.models.classic(L, 16, 4, wiring=wiring, alpha=0.7).double().eval()
    X = torch.randn(2, 5, 16, dtype=torch.float64)
    found = split(model, X)
    held: list[dict] = [{} for _ in range(L)]

    def run(attending: tuple[bool, ...]) -> Tensor:
        Y = X
        for block, own, attends in zip(model.blocks, held, attending, strict=True):
            Y = Chosen(block, own, attends)(Y)
        return Y

    with torch.no_grad():
        whole = run((True,) * L)  # the first run holds everything at its values
        torch.testing.assert_close(found.output, whole, atol=1e-12, rtol=0)
        nets = {choice: run(choice) for choice in itertools.product((False, True), repeat=L)}
    listed = torch.zeros(L + 1, *X.shape, dtype=torch.float64)
    for chosen in nets:
        smaller = [t for t in nets if all(a <= b for a, b in zip(t, chosen, strict=True))]
        listed[sum(chosen)] += sum((-1) ** (sum(chosen) - sum(t)) * nets[t] for t in smaller)
    torch.testing.assert_close(found.parts, listed, atol=1e-11, rtol=0)
    assert found.error < 1e-14


def test_biases_are_apart_from_all_lengths() -> None:
    torch.manual_seed(0)
    model = ds.models.classic(2, 16, 4, bias=True, output=True).double().eval()
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter, std=0.5)
    found = split(model, torch.randn(2, 5, 16, dtype=torch.float64))
    assert float(found.constant.norm() / found.output.norm()) > 0.1
    torch.testing.assert_close(found.constant + found.parts.sum(0), found.output)


def test_without_curved_parts_secant_and_tangent_agree_and_the_response_is_exact() -> None:
    """Attention with P that does not depend on tokens, no norms: the model is linear, so freezing changes nothing."""

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.W_v, self.W = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, X: Tensor) -> Tensor:
            q = torch.zeros(X.shape[0], 2, X.shape[1], 4, dtype=X.dtype)
            v = self.W_v(X).unflatten(-1, (2, 4)).transpose(1, 2)
            mixed = nn.functional.scaled_dot_product_attention(q, q, v).transpose(1, 2).flatten(2)
            return X + self.W(mixed)

    model = nn.Sequential(*(Linear() for _ in range(3))).double()
    X = torch.randn(2, 5, 8, dtype=torch.float64)
    one, other = split(model, X), split(model, X, "tangent")
    torch.testing.assert_close(one.parts, other.parts)
    assert one.response_error < 1e-10 and one.error < 1e-14


def test_the_model_is_left_as_it_was_and_so_are_its_inputs() -> None:
    family = FAMILIES["x-pre"]()
    before, given = {k: v.clone() for k, v in family.model.state_dict().items()}, family.inputs.clone()
    with torch.no_grad():
        out = family.model(family.inputs)
    split(family.model, family.inputs)
    assert torch.equal(family.inputs, given)
    assert all(torch.equal(v, before[k]) for k, v in family.model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in family.model.modules())
    with torch.no_grad():
        assert torch.equal(family.model(family.inputs), out)


class Squares(nn.Module):
    """A block with a nonlinear step that has no known name."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, X: Tensor) -> Tensor:
        Y = self.layer(X)
        return Y + torch.sin(3 * Y)


def test_a_function_that_cannot_be_frozen_is_loud() -> None:
    layer = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0) for _ in range(2)]
    model = nn.Sequential(*(Squares(one) for one in layer)).eval()
    with pytest.raises(HookError, match=r"must give its own output; it misses it by .* use form='attention'"):
        ds.paths(model, torch.randn(2, 5, 8))


def test_parallel_attention_is_refused() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTNeoXConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=99
    )
    model = transformers.GPTNeoXModel(config).eval()
    with pytest.raises(HookError, match="must join a residual stream in every block"):
        ds.paths(model, torch.randint(0, 99, (2, 7)))


@over("wiring", ["admin", "hyper_connections"])
def test_a_skip_that_more_than_a_number_scales_is_refused(wiring: str) -> None:
    model = ds.models.classic(2, 16, 4, wiring=wiring).eval()
    with pytest.raises(HookError, match="lengths cannot be told"):
        ds.paths(model, torch.randn(2, 5, 16))


class Restless(nn.Module):
    """A block that computes something else for other tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)

    def forward(self, X: Tensor) -> Tensor:
        return self.layer(X) if X.any() else torch.tanh(self.layer(X))


def test_a_model_that_runs_differently_the_second_time_is_refused() -> None:
    model = nn.Sequential(Restless(), Restless()).eval()
    with pytest.raises(HookError, match="the same functions in the same order every time; tanh came where"):
        ds.paths(model, torch.randn(2, 5, 8))


class Gated(nn.Module):
    """A pre-norm block with SwiGLU, in several orders."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.attention = kind, nn.MultiheadAttention(8, 2, batch_first=True)
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))

    def attend(self, X: Tensor) -> Tensor:
        return self.attention(X, X, X, need_weights=False)[0]

    def ffn(self, Y: Tensor) -> Tensor:
        gate, up = nn.functional.silu(self.gate(Y)), self.up(Y)
        if self.kind == "in place":
            return self.down(gate.mul_(up))
        return self.down(up * gate if self.kind == "swapped" else gate * up)

    def forward(self, X: Tensor) -> Tensor:
        read = self.norms[0](X)
        if self.kind in ("ffn first", "ffn added"):
            ffn, attended = self.ffn(read), self.attend(read)
            return X + ffn + attended if self.kind == "ffn first" else X + (attended + ffn)
        Y = X + self.attend(read)
        if self.kind == "attends twice":
            Y = Y + self.attend(self.norms[1](Y))
        return Y + self.ffn(self.norms[1](Y))


def gated(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Gated(kind) for _ in range(3))).double().eval()


@over("kind", ["swapped", "in place"])
@over("line", ["secant", "tangent"])
def test_how_a_gate_is_multiplied_makes_no_difference(kind: str, line: str) -> None:
    X = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(split(gated(kind), X, line).parts, split(gated("plain"), X, line).parts)


def test_a_network_that_is_added_to_attention_is_refused() -> None:
    with pytest.raises(HookError, match=r"paths: attention must join a residual stream in every block; .* parallel"):
        ds.paths(gated("ffn added"), torch.randn(2, 5, 8, dtype=torch.float64))


@over("kind", ["ffn first", "attends twice"])
def test_what_would_be_counted_at_a_wrong_length_is_refused(kind: str) -> None:
    X = torch.randn(2, 5, 8, dtype=torch.float64)
    assert split(gated("plain"), X).uncounted < 1e-12 and split(gated(kind), X).uncounted > 0.1
    with pytest.raises(HookError, match="must attend once"):
        ds.paths(gated(kind), X)


def test_tokens_that_later_blocks_read_again_come_from_the_tokens() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = gated("plain")

        def forward(self, X: Tensor) -> Tensor:
            Y = X
            for layer in self.layers:
                Y = layer(Y) + X
            return Y

    X = torch.randn(2, 5, 8, dtype=torch.float64)
    model = Again()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.zeros_(parameter)
    for layer in model.layers:
        nn.init.ones_(layer.norms[0].weight)
        nn.init.ones_(layer.norms[1].weight)
    found = split(model, X)
    assert found.error < 1e-14 and not found.constant.any()


def test_activations_written_in_place_are_frozen_too() -> None:
    class Writes(nn.Module):
        def __init__(self, inplace: bool) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.W, self.inplace = nn.Linear(8, 8), inplace

        def forward(self, X: Tensor) -> Tensor:
            Y = X + self.attention(X, X, X, need_weights=False)[0]
            u = self.W(Y)
            return Y + (torch.relu_(u) if self.inplace else nn.functional.relu(u))

    torch.manual_seed(0)
    models = [nn.Sequential(Writes(inplace), Writes(inplace)).double() for inplace in (False, True)]
    models[1].load_state_dict(models[0].state_dict())
    X = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(split(models[0], X).parts, split(models[1], X).parts)
