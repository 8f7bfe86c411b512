"""One block against Algorithm 1 and (19) written row by row, and against torch's own layer."""

import math

import torch
from torch import nn
from torch.func import functional_call

from depthscope.models import Block, Design
from depthscope.models.design import shelves, streams_of
from depthscope.registry import TABLES
from loops import over

shelves()
ACTIVATIONS = sorted(TABLES["activation"])
WIRINGS = ("post_norm", "pre_norm")
PHI = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def block_of(n=5, d=6, **choices):
    """A block whose norms and scalars are not those of the start, and an input for it."""
    block = Block(Design(1, d, **{"h": 2, "q": 7, "weights": "xavier"} | choices)).double()
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            if "wiring" in name or "norm" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return block, torch.randn(n, d, dtype=torch.float64)


# Algorithm 1, written literally


def times(X, matrix):
    """X W (+ bias), W being the transpose of what nn.Linear keeps."""
    Y = X @ matrix.weight.detach().T
    return Y if matrix.bias is None else Y + matrix.bias.detach()


def self_attention(attention, X, h):
    n, d = X.shape
    q, k, v = times(X, attention.W_q), times(X, attention.W_k), times(X, attention.W)
    out = torch.zeros(n, d, dtype=X.dtype)
    for head in range(h):
        columns = range(head * d // h, (head + 1) * d // h)
        for i in range(n):
            e = [math.exp(sum(q[i, c] * k[j, c] for c in columns) / math.sqrt(d / h)) for j in range(n)]
            for c in columns:
                out[i, c] = sum(e[j] / sum(e) * v[j, c] for j in range(n))
    return out if attention.W_O is None else times(out, attention.W_O)


def layer_norm(norm, X):
    Y = torch.zeros_like(X)
    for i, x in enumerate(X):
        mean = sum(x) / len(x)
        sigma = math.sqrt(sum((x - mean) ** 2) / len(x) + 1e-5)
        Y[i] = (x - mean) / sigma * norm.weight.detach() + norm.bias.detach()
    return Y


def phi(name, Y):
    return torch.tensor([[PHI[name](y) for y in row] for row in Y.tolist()], dtype=Y.dtype)


def feed_forward(ffn, Y, activation):
    if activation == "none":
        return torch.zeros_like(Y)
    if activation == "swiglu":
        return times(phi("silu", times(Y, ffn.W_gate)) * times(Y, ffn.W_1), ffn.W_2)
    return times(phi(activation, times(Y, ffn.W_1)), ffn.W_2)


def algorithm_1(block, X, h, alpha, activation):
    Y_1 = self_attention(block.attention, X, h) * alpha + X
    Y_2 = layer_norm(block.wiring.norm_1, Y_1)
    Y_3 = feed_forward(block.ffn, Y_2, activation) + Y_2
    Y_4 = layer_norm(block.wiring.norm_2, Y_3)
    return {"Y_1": Y_1, "Y_2": Y_2, "Y_3": Y_3, "Y_4": Y_4}


def equation_19(block, X, h, alpha, activation):
    X_hat = layer_norm(block.wiring.norm_1, X)
    Y = X + alpha * self_attention(block.attention, X_hat, h)
    Y_hat = layer_norm(block.wiring.norm_2, Y)
    Z = Y + feed_forward(block.ffn, Y_hat, activation)
    return {"X_hat": X_hat, "Y": Y, "Y_hat": Y_hat, "Z": Z}


LITERAL = {"post_norm": algorithm_1, "pre_norm": equation_19}


@over("full", [False, True])
@over("activation", ACTIVATIONS)
@over("wiring", WIRINGS)
@over("h", [1, 3])
def test_a_block_is_what_the_paper_prints(wiring, activation, full, h):
    block, X = block_of(h=h, alpha=0.7, wiring=wiring, activation=activation, bias=full, output=full)
    truth = LITERAL[wiring](block, X, h, 0.7, activation)
    found = block.steps(X)
    assert list(found) == list(truth)
    for letter, state in truth.items():
        torch.testing.assert_close(found[letter], state, msg=lambda text, letter=letter: f"{letter}: {text}")
    torch.testing.assert_close(block(X), list(truth.values())[-1])


@over("wiring", WIRINGS)
def test_leading_axes_are_independent(wiring):
    block, _ = block_of(wiring=wiring)
    X = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    Y = block(X)
    for a in range(2):
        for b in range(3):
            torch.testing.assert_close(Y[a, b], block(X[a, b]))


@over("wiring", WIRINGS)
def test_alpha_weighs_attention_alone(wiring):
    block, X = block_of(wiring=wiring)
    strong = Block(Design(1, 6, 2, q=7, alpha=3.0, wiring=wiring)).double()
    strong.load_state_dict(block.state_dict())
    source, letter = (X, "Y_1") if wiring == "post_norm" else (block.steps(X)["X_hat"], "Y")
    torch.testing.assert_close(strong.steps(X)[letter], X + 3 * block.attention(source))


def test_the_default_width_of_the_feed_forward_is_four_times_d():
    ffn = Block(Design(1, 6, 2)).ffn
    assert ffn.W_1.weight.shape == (24, 6)
    assert ffn.W_2.weight.shape == (6, 24)


def test_the_matrices_are_named_by_their_letters():
    block, _ = block_of(output=True, activation="swiglu")
    assert [name for name, _ in block.matrices()] == [
        *("attention.W_q", "attention.W_k", "attention.W", "attention.W_O"),
        *("ffn.W_1", "ffn.W_2", "ffn.W_gate"),
    ]


# torch's own layer


def torch_layer(block, norm_first, activation):
    """nn.TransformerEncoderLayer with the weights of a block copied in."""
    d, q = block.attention.W.in_features, block.ffn.W_1.out_features
    layer = nn.TransformerEncoderLayer(
        d, block.h, q, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    )
    attention, ffn, wiring = block.attention, block.ffn, block.wiring
    stacked = (attention.W_q, attention.W_k, attention.W)
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(torch.cat([W.weight for W in stacked]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([W.bias for W in stacked]))
    layer.self_attn.out_proj.load_state_dict(attention.W_O.state_dict())
    layer.linear1.load_state_dict(ffn.W_1.state_dict())
    layer.linear2.load_state_dict(ffn.W_2.state_dict())
    layer.norm1.load_state_dict(wiring.norm_1.state_dict())
    layer.norm2.load_state_dict(wiring.norm_2.state_dict())
    return layer


@over("activation", ["relu", "gelu"])
@over("wiring", WIRINGS)
@over("causal", [False, True])
def test_a_block_agrees_with_torchs_encoder_layer(wiring, activation, causal):
    block, _ = block_of(d=32, h=4, q=48, wiring=wiring, activation=activation, bias=True, output=True, causal=causal)
    block = block.float()
    layer = torch_layer(block, wiring == "pre_norm", activation)
    X = torch.randn(3, 9, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(9) if causal else None
    torch.testing.assert_close(block(X), layer(X, src_mask=mask, is_causal=causal), rtol=1e-5, atol=1e-5)
    grad = [torch.autograd.grad(m.square().mean(), X_) for m, X_ in _outputs(block, layer, X, mask, causal)]
    torch.testing.assert_close(grad[0], grad[1], rtol=1e-5, atol=1e-5)


def _outputs(block, layer, X, mask, causal):
    X_1, X_2 = X.clone().requires_grad_(), X.clone().requires_grad_()
    yield block(X_1), X_1
    yield layer(X_2, src_mask=mask, is_causal=causal), X_2


@over("wiring", sorted(TABLES["wiring"]))
def test_without_a_network_the_block_has_attention_alone(wiring):
    """The same block with a network whose last matrix is zero, but for the norm that sub_ln puts before that matrix."""
    block, X = block_of(wiring=wiring, activation="none", output=True)
    other = Block(Design(1, 6, 2, q=7, weights="xavier", wiring=wiring, output=True)).double()
    other.load_state_dict(block.state_dict(), strict=False)
    for parameter in other.ffn.parameters():
        parameter.data.zero_()
    streams = streams_of(beginning(wiring, 6)(X))
    for mine, its in zip(streams_of(block(*streams)), streams_of(other(*streams)), strict=True):
        torch.testing.assert_close(mine, its)
    assert [name for name, _ in block.matrices()] == ["attention.W_q", "attention.W_k", "attention.W", "attention.W_O"]


# gradients


def beginning(wiring, d):
    return TABLES["wiring"][wiring].beginning(Design(1, d, 1)).double()


# every formula in the two wirings of the paper, every wiring with the formula of the paper
PAIRS = [(wiring, attention) for wiring in WIRINGS for attention in sorted(TABLES["attention"])]
PAIRS += [(wiring, "softmax") for wiring in sorted(TABLES["wiring"]) if wiring not in WIRINGS]
each_pair = over("wiring, attention", PAIRS)


@over("activation", [name for name in ACTIVATIONS if name != "none"])
@each_pair
def test_gradients_reach_every_parameter(wiring, attention, activation):
    block, X = block_of(wiring=wiring, attention=attention, activation=activation, bias=True, output=True)
    for Y in streams_of(block(*streams_of(beginning(wiring, 6)(X)))):
        (Y * torch.randn_like(Y)).sum().backward(retain_graph=True)
    for name, parameter in block.named_parameters():
        if attention == "uniform" and ("W_q" in name or "W_k" in name):
            assert parameter.grad is None or (parameter.grad == 0).all()  # P does not depend on them
        elif name in UNSEEN.get(attention, ()):
            size = block.attention.W_q.weight.grad.abs().max()
            assert parameter.grad.abs().max() < (1e-2 if attention == "sinkhorn" else 1e-12) * size
        else:
            assert (parameter.grad != 0).any(), name


# biases that add a constant to each row of the scores, or to each column: P does not see them, by its formula
UNSEEN = {"softmax": ["attention.W_k.bias"], "sinkhorn": ["attention.W_k.bias", "attention.W_q.bias"]}


@over("wiring, attention", PAIRS, every=3)
def test_gradients_are_those_of_finite_differences(wiring, attention):
    block, X = block_of(n=3, d=4, q=3, wiring=wiring, attention=attention, activation="gelu", output=True)
    names, values = zip(*block.named_parameters(), strict=True)

    def run(X, *values):
        streams = streams_of(beginning(wiring, 4)(X))
        return functional_call(block, dict(zip(names, values, strict=True)), streams)

    values = tuple(value.detach().clone().requires_grad_() for value in values)
    assert torch.autograd.gradcheck(run, (X.requires_grad_(), *values))
