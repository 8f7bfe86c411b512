"""The Lipschitz constants of feed-forward networks against the whole Jacobian and against pairs of tokens."""

import math

import pytest
import torch
import transformers as T
from torch import nn

from depthscope.circuits.ffn_lipschitz import ffn_lipschitz, one_norm
from loops import over

TINY = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20, "vocab_size": 50}


def bert(**options):
    torch.manual_seed(0)
    return T.BertModel(T.BertConfig(**TINY, initializer_range=0.3, **options)).eval(), torch.randint(0, 50, (2, 5))


def of_bert(model, ids):
    """Every block's feed-forward network as a function, and what it reads."""
    reads = []
    hooks = [
        layer.intermediate.register_forward_pre_hook(lambda _, args: reads.append(args[0]))
        for layer in model.encoder.layer
    ]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    for layer, X in zip(model.encoder.layer, reads, strict=True):
        yield (lambda x, layer=layer: layer.output.dense(layer.intermediate(x))), X.flatten(0, 1)


def truth(f, tokens):
    """sqrt of the largest column sum and the largest row sum of |J| over the tokens."""
    J = torch.stack([torch.autograd.functional.jacobian(f, x).abs() for x in tokens])
    return math.sqrt(float(J.sum(-2).amax()) * float(J.sum(-1).amax()))


@over("activation", ["gelu", "relu", "silu"])
def test_the_lower_constant_is_the_jacobians_and_the_upper_one_is_above(activation):
    model, ids = bert(hidden_act=activation)
    for found, (f, tokens) in zip(ffn_lipschitz(model, ids), of_bert(model, ids), strict=True):
        exact = truth(f, tokens)
        assert 0.9 * exact <= found.lower <= exact * (1 + 1e-5)  # a power method may stop at a lesser column
        assert found.lower <= found.upper < math.inf


def test_no_pair_of_tokens_is_stretched_by_more_than_the_upper_constant():
    model, ids = bert(hidden_act="gelu")
    for found, (f, _) in zip(ffn_lipschitz(model, ids), of_bert(model, ids), strict=True):
        with torch.no_grad():
            X = 3 * torch.randn(2000, 5, 12)
            apart = [x - x.mean(1, keepdim=True) for x in (X, f(X))]
        columns, rows = ([x.abs().sum(axis).amax(-1) for x in apart] for axis in (1, 2))
        stretched = ((columns[1] * rows[1]) / (columns[0] * rows[0])).sqrt()
        assert float(stretched.max()) <= 2 * found.upper  # the mean is not the best x: at most twice


def test_an_activation_that_torch_does_not_name_has_no_upper_constant():
    model, ids = bert(hidden_act="gelu_new")  # x times a tanh of something else: not the slope of tanh
    found = ffn_lipschitz(model, ids)
    assert all(math.isinf(one.upper) and one.lower > 0 for one in found)


def test_a_gated_network_has_no_upper_constant():
    sizes = {**TINY, "num_key_value_heads": 2}
    found = ffn_lipschitz(T.LlamaModel(T.LlamaConfig(**sizes)).eval(), torch.randint(0, 50, (2, 5)))
    assert [math.isinf(one.upper) for one in found] == [True, True]


def test_conv1d_and_pre_norm_are_read_alike():
    torch.manual_seed(0)
    sizes = {"n_embd": 12, "n_layer": 2, "n_head": 2, "n_inner": 20, "vocab_size": 50, "activation_function": "relu"}
    model, ids = T.GPT2Model(T.GPT2Config(**sizes, initializer_range=0.3)).eval(), torch.randint(0, 50, (2, 5))
    for found, block in zip(ffn_lipschitz(model, ids), model.h, strict=True):
        first, second = (W.weight.detach().abs().double() for W in (block.mlp.c_fc, block.mlp.c_proj))
        whole = first @ second
        assert found.upper == pytest.approx(math.sqrt(float(whole.sum(0).max()) * float(whole.sum(1).max())), rel=1e-6)


def test_the_model_is_left_as_it_was():
    model, ids = bert()
    with torch.no_grad():
        before = model(ids).last_hidden_state
    ffn_lipschitz(model, ids)
    assert torch.is_grad_enabled()
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with torch.no_grad():
        assert torch.equal(model(ids).last_hidden_state, before)


def test_a_block_without_a_network_has_none():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return x + self.attention(x, x, x, need_weights=False)[0]

    assert ffn_lipschitz(nn.Sequential(Block(), Block()), torch.randn(2, 5, 8)) == [None, None]


def test_the_power_method_finds_the_largest_column_of_random_matrices():
    torch.manual_seed(0)
    A = torch.randn(200, 9, 9, dtype=torch.float64)
    found = one_norm(lambda x: (A @ x[..., None])[..., 0], lambda x: (A.mT @ x[..., None])[..., 0], 200, 9, A)
    exact = A.abs().sum(-2).amax(-1)
    assert (found <= exact + 1e-12).all()
    assert (found > 0.999 * exact).double().mean() > 0.6
    assert (found / exact).median() > 0.999


class Odd(nn.Module):
    """A pre-norm block whose network does something besides matrix, activation, matrix."""

    def __init__(self, act=torch.relu, before=lambda h: h, after=lambda z: z):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm_1, self.norm_2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.W_1, self.W_2 = nn.Linear(8, 20), nn.Linear(20, 8)
        self.act, self.before, self.after = act, before, after

    def forward(self, x):
        y = self.norm_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.after(self.W_2(self.act(self.before(self.W_1(self.norm_2(x))))))


@over(
    "odd",
    [
        {"after": lambda z: 10 * z},
        {"after": lambda z: nn.functional.layer_norm(z, (8,))},
        {"after": lambda z: z.mul_(10)},
        {"before": lambda h: h.mul_(10)},
    ],
)
def test_what_is_done_besides_the_matrices_is_not_left_out_of_the_upper_constant(odd):
    found = ffn_lipschitz(nn.Sequential(Odd(**odd), Odd(**odd)), torch.randn(2, 5, 8))
    assert all(one.lower > 0 and math.isinf(one.upper) for one in found)


@over("options", [{"alpha": 30.0}, {}])
def test_the_slope_of_elu_grows_with_its_alpha(options):
    torch.manual_seed(0)
    model = nn.Sequential(*(Odd(act=lambda h: nn.functional.elu(h, **options)) for _ in range(2)))
    for found, block in zip(ffn_lipschitz(model, torch.randn(2, 5, 8)), model, strict=True):
        whole = (block.W_1.weight.abs().T @ block.W_2.weight.abs().T).detach()
        plain = math.sqrt(float(whole.sum(0).max()) * float(whole.sum(1).max()))
        assert found.upper == pytest.approx(options.get("alpha", 1.0) * plain, rel=1e-5)
        assert found.lower <= found.upper


def test_inference_mode_does_not_hide_the_network():
    model, ids = bert(hidden_act="relu")
    with torch.inference_mode():
        found = ffn_lipschitz(model, ids.clone())
    assert found == ffn_lipschitz(model, ids)
