"""What spectrum() says of real models, against dense matrices, against repeating the very block, and against records."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.circuits.attention_eigenvalues import attention_eigenvalues
from depthscope.circuits.attention_layer import Layer, layer_of
from depthscope.circuits.circuit import read_circuit
from depthscope.circuits.growth_of_differences import growth_apart
from depthscope.circuits.skip_and_norm import SkipAndNorm, norm_in, read_skips_and_norms
from depthscope.circuits.spectrum import spectrum
from depthscope.circuits.spectrum_record import Spectrum
from depthscope.circuits.subject import subject_of
from depthscope.circuits.weights import HeadWeights
from depthscope.errors import HookError, RecordError, StochasticError, UsageError
from depthscope.experiments.spectra import cyclic_attention
from depthscope.models.resolve import presets
from depthscope.models.sizes import Sizes
from depthscope.reports.spectrum import in_words
from loops import over

DEPTH, D, H, N, B = 3, 32, 4, 12, 3


def family(name: str, std: float = 0.3) -> tuple[nn.Module, Tensor]:
    """A preset with biases, and norms whose scales differ and are partly negative."""
    torch.manual_seed(0)
    model, inputs = presets()[name](Sizes(DEPTH, D, H, N, B, 0))
    for p in model.parameters():
        nn.init.normal_(p, std=std) if p.ndim > 1 else nn.init.normal_(p, mean=0.5, std=0.4)
    return model.double(), inputs.double() if inputs.is_floating_point() else inputs


def dense(layer: Layer, P: Tensor) -> tuple[float, float]:
    """log growth of the constant part and of the rest, from the n d x n d matrix of the whole layer, heads apart."""
    n, d = P.shape[-1], len(layer.M)
    G = torch.diag(torch.ones(d, dtype=torch.float64) if layer.G is None else layer.G)
    G = (torch.eye(d) - 1 / d).double() @ G if layer.centres else G
    step = torch.eye(n * d, dtype=torch.float64)
    for A, W_V, W_O in zip(P, layer.W_V, layer.W_O, strict=True):
        step = step + layer.factor * torch.kron(
            A.contiguous(), (W_V @ W_O).T.contiguous()
        )  # vec of rows: (A X M)_vec = (A kron M^T) x_vec
    step = torch.kron(torch.eye(n, dtype=torch.float64), G.T.contiguous()) @ step
    Pi_2 = torch.kron(torch.eye(n) - torch.ones(n, n) / n, torch.eye(d)).double()
    constant = torch.linalg.eigvals((torch.eye(d) + layer.factor * layer.M) @ G).abs().max()
    return math.log(constant), math.log(torch.linalg.eigvals(Pi_2 @ step).abs().max())


@over("name", ["classic", "gpt2"], long=["pre_norm", "torch_encoder", "bert", "albert", "xlnet", "llama", "vit"])
def test_margin_is_that_of_the_dense_layer(name: str) -> None:
    """With all heads' attention set to their mean, the block is a Kronecker sum that a dense solver can take whole."""
    model, inputs = family(name)
    found = spectrum(model, inputs)
    circuit, reads = read_circuit(model, inputs), read_skips_and_norms(subject_of(model, inputs))
    for index in range(DEPTH):
        layer = layer_of(circuit.weights[index], reads[index], circuit.mask)
        P = circuit.P[index]
        alike = [p.mean(0, keepdim=True).expand_as(p) for p in P]
        order = found.margins[index].argsort()
        constant, rest = dense(layer, alike[int(order[(B - 1) // 2])])
        assert float(found.margin[index]) == pytest.approx(constant - rest, abs=1e-6)


def test_heads_apart_equal_the_dense_layer() -> None:
    model, inputs = family("gpt2")
    circuit, reads = read_circuit(model, inputs), read_skips_and_norms(subject_of(model, inputs))
    for index in range(DEPTH):
        layer, P = layer_of(circuit.weights[index], reads[index], None), circuit.P[index][0]
        found, moved = growth_apart(layer, P, steps=2000)
        assert found == pytest.approx(dense(layer, P)[1], abs=max(2e-3, 2 * moved))


@over("sign", [1.0, -1.0])
def test_the_verdict_is_what_repeating_a_post_norm_block_does(sign: float) -> None:
    """X -> LayerNorm(X + A X H) 2,000 times, with the norm itself: tokens become equal, or do not.

    H makes five times as much of the channels' mean, which the norm takes away again: that part decides nothing.
    """
    torch.manual_seed(3)
    Q = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64)).Q
    eigenvalues = sign * (0.2 + 0.7 * torch.rand(D, dtype=torch.float64))
    H = (Q * eigenvalues) @ Q.T + 5 / D
    W_V, W_O = H.unsqueeze(0), torch.eye(D, dtype=torch.float64).unsqueeze(0)
    gamma = 1 + 0.02 * torch.randn(D, dtype=torch.float64)
    nothing = torch.zeros(D, dtype=torch.float64)
    weights = HeadWeights(W_V, W_O, nothing[None], nothing, gamma_out=gamma)
    X = torch.randn(B, N, D, dtype=torch.float64)
    layer = layer_of(weights, SkipAndNorm(summed=X, normed=nn.functional.layer_norm(X, (D,)) * gamma), None)
    assert layer.centres and not layer.notes and len(layer.eigenvalues()) == layer.head_eigenvalues().shape[1] == D - 1
    A = torch.randn(N, N, dtype=torch.float64).softmax(-1)
    rest = max(layer.growth(complex(a)) for a in attention_eigenvalues(A) if abs(complex(a) - 1) > 1e-9)
    for _ in range(2000):
        X = nn.functional.layer_norm(X + A @ X @ H, (D,)) * gamma
    assert math.copysign(1.0, layer.growth(1 + 0j) - rest) == sign
    assert bool(((ds.metrics.t_sim(X) > 0.999) == (sign > 0)).all())


def test_any_eigenvalue_of_attention_may_lead_behind_an_uneven_norm() -> None:
    for case in range(40):
        torch.manual_seed(case)
        M = torch.randn(16, 16, dtype=torch.float64) / 4 - torch.rand(1, dtype=torch.float64) * torch.eye(16)
        G = 0.5 + 0.4 * torch.randn(16, dtype=torch.float64)
        layer = Layer(M, M[None], torch.eye(16, dtype=torch.float64)[None], 1.0, G, "post", 0.0, centres=case % 2 == 0)
        a = attention_eigenvalues(cyclic_attention(1, N)[0])
        others = a[(a - 1).abs() > 1e-9]
        first, growth = layer.fastest(others)
        assert growth == pytest.approx(max(layer.growth(complex(one)) for one in others), abs=1e-9)
        assert layer.growth(first) == growth


class Written(nn.Module):
    """A block in plain PyTorch; how: where its norm stands, and how it and the sum are written."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.qkv, self.out = how, nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.norm, self.ffn = nn.LayerNorm(D), nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.ReLU())
        nn.init.normal_(self.norm.weight)

    def attend(self, X: Tensor) -> Tensor:
        q, k, v = (x.unflatten(-1, (H, -1)).transpose(1, 2) for x in self.qkv(X).chunk(3, -1))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, X: Tensor) -> Tensor:
        place, _, way = self.how.partition(" ")
        norm = self.norm
        if way == "function":
            norm = lambda x: nn.functional.layer_norm(x, (D,), self.norm.weight, self.norm.bias)  # noqa: E731
        if place == "post":
            X = norm(X + self.attend(X))
        elif place == "multiple":
            X = X + self.attend(0.1 * X)
        elif place == "none":
            X = X + self.attend(X)
        elif way == "alpha":
            X = torch.add(X, self.attend(norm(X)), alpha=0.25)
        else:
            X = X + (0.25 if way == "times" else 1.0) * self.attend(norm(X))
        return X + self.ffn(X)


def written(how: str) -> Spectrum:
    torch.manual_seed(0)
    return spectrum(nn.Sequential(*[Written(how) for _ in range(DEPTH)]).double(), 5 * torch.randn(B, N, D).double())


@over("one, other", [("pre module", "pre function"), ("post module", "post function"), ("pre times", "pre alpha")])
def test_how_a_block_is_written_changes_nothing(one: str, other: str) -> None:
    """Norms that are called as functions, and sums that multiply the branch themselves."""
    left, right = written(one), written(other)
    assert left.placement == right.placement == [one[: one.index(" ")]] * DEPTH and not left.notes + right.notes
    for name in ("margin", "margin_apart", "head_margins", "negative_scales", "margins"):
        assert torch.allclose(getattr(left, name), getattr(right, name), atol=1e-7), name


def test_a_negative_scale_turns_the_eigenvalues_round() -> None:
    """diag(-1) H has the eigenvalues of -H: a smoothing head becomes a sharpening one."""
    eye, nothing = torch.eye(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)
    X = torch.randn(B, N, D, dtype=torch.float64)
    read = X / X.square().mean(-1, keepdim=True).sqrt()
    for sign in (1.0, -1.0):
        gamma = torch.full((D,), sign, dtype=torch.float64)
        weights = HeadWeights(0.3 * eye[None], eye[None], nothing[None], nothing, gamma_in=gamma)
        layer = layer_of(weights, SkipAndNorm(X, sign * read), None)
        assert torch.allclose(layer.eigenvalues().real, torch.full((D,), 0.3 * sign, dtype=torch.float64))
        assert layer.negative == (sign < 0) and layer.placement == "pre" and not layer.notes


@over("centres", [True, False])
def test_the_norm_is_told_from_what_it_does(centres: bool) -> None:
    torch.manual_seed(0)
    X, gamma, beta = torch.randn(B, N, D).double() * 3 + 1, torch.randn(D).double(), torch.randn(D).double()
    kept = X - X.mean(-1, keepdim=True) if centres else X
    size = kept.square().mean(-1, keepdim=True).sqrt()
    found = norm_in(X, gamma * kept / size + beta, gamma)
    assert found.centres == centres and found.error < 1e-12
    assert found.rate == pytest.approx(float((1 / size).mean()))


def test_small_tokens_are_divided_by_epsilon_too() -> None:
    X = 0.003 * torch.randn(B, N, D, dtype=torch.float64)
    found = norm_in(X, nn.functional.layer_norm(X, (D,)), torch.ones(D, dtype=torch.float64))
    size = (X.var(-1, correction=0) + 1e-5).sqrt()
    assert found.centres and found.error < 0.03 and found.rate == pytest.approx(float((1 / size).mean()), rel=0.01)


def test_skips_are_weighed_and_what_is_no_skip_is_said() -> None:
    model, inputs = family("classic")
    assert all(
        read.skip == pytest.approx(1.0) and read.unexplained < 1e-9
        for read in read_skips_and_norms(subject_of(model, inputs))
    )
    deep = ds.models.classic(depth=2, d=D, h=H, wiring="deep_norm", alpha=1.0)
    with ds.fix_(deep, ds.remedies.DeEscalate(tau=0.5), at="block_out"):
        assert "not in the verdict" in spectrum(deep, torch.randn(B, N, D)).notes[0]
    assert all(read.skip > 1.1 for read in read_skips_and_norms(subject_of(deep, torch.randn(B, N, D))))
    eye, nothing = torch.eye(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)
    odd = layer_of(
        HeadWeights(eye[None], eye[None], nothing[None], nothing), SkipAndNorm(unexplained=0.5, skip=3.0), None
    )
    assert odd.factor == 1.0 and "skips count as 1" in odd.notes[0]


def test_the_norm_of_the_feed_forward_network_is_none_of_attentions() -> None:
    found = written("none")  # as ModernBERT's first block: the sum goes on beside the only norm
    assert found.placement == ["none"] * DEPTH and found.eigenvalues.shape == (DEPTH, D)
    model, inputs = presets()["modernbert"](Sizes(2, D, H, N, B, 0))
    assert spectrum(model, inputs).placement == ["none", "pre"]


def test_a_multiple_of_the_stream_is_refused() -> None:
    with pytest.raises(HookError, match="block 0 gives it a multiple"):
        written("multiple")


def test_head_eigenvalues_are_those_of_the_whole_matrix_and_zeros() -> None:
    model, inputs = family("bert")
    found, weights = spectrum(model, inputs), read_circuit(model, inputs).weights
    for index, own in enumerate(weights):
        product = own.product() - own.product().mean(-1, keepdim=True)  # the norm behind the sum centres the channels
        for head, whole in enumerate(torch.linalg.eigvals(product)):
            largest = whole.abs().sort(descending=True).values
            ours = found.head_eigenvalues[index, head].abs().sort(descending=True).values
            assert torch.allclose(ours, largest[: len(ours)], atol=1e-9) and float(largest[len(ours)]) < 1e-6


def test_padding_changes_nothing() -> None:
    model, inputs = family("bert")
    alone = spectrum(model, {"input_ids": inputs, "attention_mask": torch.ones_like(inputs)})
    longer = torch.cat([inputs, torch.randint(1, 90, (B, 5))], 1)
    mask = torch.cat([torch.ones_like(inputs), torch.zeros(B, 5, dtype=torch.long)], 1)
    padded = spectrum(model, {"input_ids": longer, "attention_mask": mask})
    for name in ("margin", "head_margins", "lowest", "hfc_lfc", "response", "margin_apart"):
        assert torch.allclose(getattr(padded, name), getattr(alone, name), atol=1e-6), name


@over("kept", [0, 1])
def test_a_sequence_of_padding_is_refused(kept: int) -> None:
    model, inputs = family("bert")
    mask = torch.ones_like(inputs)
    mask[1, kept:] = 0
    with pytest.raises(UsageError, match=f"sequence 2 has {kept}"):
        spectrum(model, {"input_ids": inputs, "attention_mask": mask})


def test_attention_that_mixes_nothing_does_neither() -> None:
    model, inputs = family("torch_encoder")
    found = spectrum(model, {"src": inputs, "mask": ~torch.eye(N, dtype=torch.bool)})
    assert found.verdicts == ["neither"] * DEPTH and "grow at the same rate" in in_words(found)[0]
    assert found.draw() is not None


def test_hfc_lfc_is_yu_and_zhangs_measure() -> None:
    model, inputs = family("vit")
    found, seen = spectrum(model, inputs[:1]), ds.scan(model, inputs[:1], metrics=["t_sim", "t_div"], attention=False)
    assert torch.allclose(found.hfc_lfc, (seen["t_div"] / seen["t_sim"]).sqrt(), rtol=1e-6)


def test_only_the_first_batch_of_an_iterator_is_read() -> None:
    model, inputs = family("gpt2")
    assert torch.equal(spectrum(model, iter([inputs, inputs.flip(0)])).margin, spectrum(model, inputs).margin)
    with pytest.raises(UsageError, match="at least one batch"):
        spectrum(model, iter([]))


def test_a_causal_pattern_gives_its_diagonal() -> None:
    P = torch.randn(2, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).softmax(-1).double()
    found = attention_eigenvalues(P)
    assert torch.allclose(found.real, P.diagonal(dim1=-2, dim2=-1)) and not bool(found.imag.any())
    with pytest.raises(StochasticError, match="must sum to 1"):
        attention_eigenvalues(0.5 * P)


def test_record_comes_back(tmp_path: Path) -> None:
    model, inputs = family("bert")
    found = ds.spectrum(model, inputs)
    found.save(tmp_path / "s.json")
    again = ds.Spectrum.load(tmp_path / "s.json")
    assert again.to_dict() == found.to_dict() and torch.equal(again.eigenvalues, found.eigenvalues)
    assert sum(found.shares.values()) == pytest.approx(1.0) and found.depth == DEPTH and found.heads == H
    assert all(word in str(found) for word in ("smooth", "lambda_H", "BertModel", "over"))
    with pytest.raises(RecordError, match="must say format"):
        Spectrum.from_dict({"format": "other"})
    record = json.loads((tmp_path / "s.json").read_text())
    del record["rank_gap"]
    with pytest.raises(RecordError, match="rank_gap"):
        Spectrum.from_dict(record)
    with pytest.raises(RecordError, match=r"must be JSON|must exist"):
        Spectrum.load(tmp_path / "nothing.json")
