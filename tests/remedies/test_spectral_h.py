"""SpectralH: the H that a model computes with has the eigenvalues that were asked for, at the start and after training."""

import copy
from collections.abc import Callable

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.circuits.weights import read_weights
from depthscope.errors import ConditionError, HookError, ShapeError, UnknownNameError, UsageError
from depthscope.remedies import eigenvalues as spectral
from depthscope.training.arms import arm
from depthscope.training.build import Build
from depthscope.training.tasks import task
from loops import crossed, over

SpectralH = ds.remedies.SpectralH
D, HEADS = 16, 4
X = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(1, 99, (3, 7), generator=torch.Generator().manual_seed(2))
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
SIZES = {"hidden_size": D, "num_hidden_layers": 3, "num_attention_heads": HEADS, "intermediate_size": 32}
RANGES = {"sharpen": (-1.0, 0.0), "sharpen_square": (-9.0, 0.0), "smooth": (0.0, 9.0), "free": (-9.0, 9.0)}
each_form = over("form", ["symmetric", "direct"])
each_mode = over("mode", sorted(RANGES))


def classic(depth: int = 3, **choices) -> nn.Module:
    return ds.models.classic(depth, D, HEADS, **{"output": True, "bias": True} | choices).eval()


def encoder(**options) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(D, HEADS, 32, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "classic": lambda: (classic(), X),
    "no W_O": lambda: (classic(output=False), X),
    "pre_norm": lambda: (classic(wiring="pre_norm"), X),
    "our vit": lambda: (ds.models.vit(side=16, patch=4, depth=3, d=D, h=HEADS, output=True).eval(), IMAGES),
    "torch": lambda: (encoder(), X),  # q, k, v in one matrix
    "torch, pre-norm": lambda: (encoder(norm_first=True), X),
    "bert": lambda: (T.BertModel(T.BertConfig(**SIZES, vocab_size=99, initializer_range=0.2)).eval(), IDS),
    "vit": lambda: (
        T.ViTModel(T.ViTConfig(**SIZES, image_size=16, patch_size=4, initializer_range=0.2)).eval(),
        IMAGES,
    ),
    "gpt2": lambda: (T.GPT2Model(T.GPT2Config(n_embd=D, n_layer=3, n_head=HEADS, vocab_size=99)).eval(), IDS),
    "albert": lambda: (T.AlbertModel(T.AlbertConfig(**SIZES, vocab_size=99, embedding_size=8)).eval(), IDS),
    "llama": lambda: (T.LlamaModel(T.LlamaConfig(**SIZES, vocab_size=99)).eval(), IDS),
}


def out(model: nn.Module, inputs: Tensor) -> Tensor:
    result = model(inputs)
    return result if isinstance(result, Tensor) else result.last_hidden_state


def H_of(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """sum_h W_V,h W_O,h of every block as the model computes, read from outside."""
    return [weights.product().sum(0) for weights in read_weights(model, inputs)]


def given(lam: Tensor, V: Tensor) -> nn.Module:
    """A model whose blocks all have H = V diag(lambda) V^-1, written as a random W_V and what W_O it then needs."""
    model = classic().double()
    H = V @ lam.diag() @ V.inverse()
    with torch.no_grad():
        for block in model.blocks:
            block.attention.W_O.weight.copy_(torch.linalg.solve(block.attention.W.weight.T, H).T)
    return model


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    aim = torch.randn(X.shape, generator=torch.Generator().manual_seed(4))
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        (model(X) - aim).square().mean().backward()
        optimizer.step()


@each_form
@torch.no_grad()
def test_a_given_H_is_reproduced(form: str) -> None:
    lam = torch.linspace(-0.9, 1.7, D, dtype=torch.float64)
    V = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64)).Q
    V = V if form == "symmetric" else V + 0.3 * torch.randn(D, D, dtype=torch.float64)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model, tokens = given(lam, V).to(dtype), X.to(dtype)
        truth = H_of(model, tokens)
        with ds.fix_(model, SpectralH("free", form=form)) as fix:
            model(tokens)
            errors = [one.start_error for one in fix.copies]
            assert max(errors) < tolerance
            for now, H in zip(H_of(model, tokens), truth, strict=True):
                assert float((now - H).norm() / H.norm()) < 2 * tolerance


@crossed("family, mode, form", sorted(MODELS), sorted(RANGES), ["symmetric", "direct"])
@torch.no_grad()
def test_the_eigenvalues_are_those_asked_for(family: str, mode: str, form: str) -> None:
    model, inputs = MODELS[family]()
    before, state = out(model, inputs), copy.deepcopy(model.state_dict())
    with ds.fix_(model, SpectralH(mode, form=form)) as fix:
        assert not torch.equal(out(model, inputs), before) and fix.fired
        low, high = RANGES[mode]
        for H in H_of(model, inputs):
            values = torch.linalg.eigvals(H)
            assert float(values.imag.abs().max()) < 1e-5
            assert low - 1e-5 <= float(values.real.min()) and float(values.real.max()) <= high + 1e-5
            if form == "symmetric":
                torch.testing.assert_close(H, H.T, rtol=0.0, atol=1e-5)
    assert torch.equal(out(model, inputs), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@each_form
@torch.no_grad()
def test_the_model_computes_with_V_and_lambda_V_inverse(form: str) -> None:
    """The same weights written into a plain copy by hand give the same outputs; biases and all else stay."""
    model = classic()
    by_hand = copy.deepcopy(model)
    with ds.fix_(model, SpectralH("smooth", form=form)) as fix:
        after = model(X)
        for block, one in zip(by_hand.blocks, fix.copies, strict=True):
            V, V_inverse = one.basis()
            block.attention.W.weight.copy_(V.T)
            block.attention.W_O.weight.copy_((one.eigenvalues().diag() @ V_inverse).T)
            torch.testing.assert_close(V @ V_inverse, torch.eye(D), rtol=0.0, atol=1e-5)
        torch.testing.assert_close(after, by_hand(X), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_learnable_false_clips_the_eigenvalues_of_the_symmetric_part() -> None:
    model = classic()
    truth = []
    for H in H_of(model, X):
        lam, Q = torch.linalg.eigh((H + H.T) / 2)
        truth.append(Q @ lam.clamp(-1, 0).diag() @ Q.T)
    with ds.fix_(model, SpectralH(learnable=False)):
        model(X)
        for now, H in zip(H_of(model, X), truth, strict=True):
            torch.testing.assert_close(now, H, rtol=0.0, atol=1e-5)
        model.blocks[1].attention.W.weight.mul_(-1)  # it follows the weights
        assert float((H_of(model, X)[1] - truth[1]).norm()) > 0.1


@each_form
@each_mode
def test_gradients_pass_a_numeric_check(form: str, mode: str) -> None:
    d = 6
    remedy = SpectralH(mode, form=form).double()
    remedy.place_(d, 0, torch.zeros(1, dtype=torch.float64))
    Theta = torch.eye(d, dtype=torch.float64) + 0.4 * torch.randn(d, d, dtype=torch.float64)
    psi = -0.9 * torch.rand(d, dtype=torch.float64) - 0.05

    def factors(psi: Tensor, Theta: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.functional_call(_Values(remedy), {"remedy.psi": psi, "remedy.Theta": Theta}, ())

    assert torch.autograd.gradcheck(factors, (psi.requires_grad_(), Theta.requires_grad_()))


class _Values(nn.Module):
    def __init__(self, remedy: nn.Module) -> None:
        super().__init__()
        self.remedy = remedy

    def forward(self) -> tuple[Tensor, Tensor]:
        none = torch.zeros(0)
        return self.remedy.values(none, none, 1)


def test_a_clipped_eigenvalue_may_come_back_and_goes_no_further() -> None:
    psi = torch.tensor([-1.5, -1.5, -0.5, 0.0, 0.5, 0.5], requires_grad=True)
    slope = torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0, -1.0])
    lam = spectral.eigenvalues(psi, "sharpen")
    assert lam.tolist() == [-1.0, -1.0, -0.5, 0.0, 0.0, 0.0]
    lam.backward(slope)
    assert psi.grad is not None and psi.grad.tolist() == [0.0, -1.0, 1.0, 1.0, 1.0, 0.0]  # a descent goes against them


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=3e-3),
}


@over("form", ["direct"], long=["symmetric"])
@over(
    "optimizer, mode",
    [("adamw", "smooth")],
    long=[("sgd", "sharpen"), ("adamw", "sharpen"), ("rmsprop", "sharpen_square")],
)
def test_the_constraint_holds_after_200_steps(optimizer: str, mode: str, form: str) -> None:
    model = classic(2)
    fix = ds.fix_(model, SpectralH(mode, form=form))
    model(X)
    start = H_of(model, X)
    trained(model, OPTIMIZERS[optimizer](model.parameters()), 200)
    low, high = {"sharpen": (-1.0, 0.0), "sharpen_square": (-torch.inf, 0.0), "smooth": (0.0, torch.inf)}[mode]
    for H, first, one in zip(H_of(model, X), start, fix.copies, strict=True):
        values, slack = torch.linalg.eigvals(H), 1e-6 * one.condition()  # of float32
        assert float((H - first).norm() / first.norm()) > 0.05, "it has learned"
        assert low - slack <= float(values.real.min()) and float(values.real.max()) <= high + slack


@each_form
def test_it_is_saved_and_built_again_also_before_the_first_pass(form: str) -> None:
    model, again = classic(), classic()
    fix = ds.fix_(model, SpectralH("sharpen/own", form=form))
    keys = [key for key in model.state_dict() if key.startswith("depthscope_")]
    assert keys == [f"depthscope_spectralh_values.blocks_{b}.{name}" for b in (0, 2) for name in ("psi", "Theta")]
    trained(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    ds.fix_(again, fix.describe())
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(X), model.eval()(X), rtol=1e-5, atol=1e-6)
    assert list(model.state_dict()) == list(again.state_dict())


@torch.no_grad()
def test_blocks_take_the_modes_in_turn() -> None:
    model = classic()
    own = H_of(model, X)
    with ds.fix_(model, SpectralH("sharpen/own/smooth")) as fix:
        model(X)
        first, middle, last = H_of(model, X)
        assert float(torch.linalg.eigvalsh(first).max()) < 1e-6 < float(torch.linalg.eigvalsh(last).max())
        assert float(torch.linalg.eigvalsh(last).min()) > -1e-6 and torch.equal(middle, own[1])
        assert repr(fix) == "SpectralH(mode=sharpen/own/smooth) at values"
    with ds.fix_(model, SpectralH("smooth"), blocks=["blocks.2"]):
        model(X)
        assert torch.equal(torch.stack(H_of(model, X)[:2]), torch.stack(own[:2]))


@torch.no_grad()
def test_every_head_has_large_and_small_eigenvalues() -> None:
    H = torch.diag(torch.arange(8.0, dtype=torch.float64))
    for take in (spectral.from_symmetric, spectral.from_general):
        lam, V = take(H, 4)
        assert lam.view(4, 2).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
        torch.testing.assert_close(V @ lam.diag() @ V.inverse(), H)


@torch.no_grad()
def test_complex_pairs_keep_their_real_part_and_their_plane() -> None:
    turn = torch.tensor([[0.3, -2.0], [2.0, 0.3]], dtype=torch.float64)
    Z = torch.randn(5, 5, dtype=torch.float64)
    H = Z @ torch.block_diag(turn, torch.diag(torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64))) @ Z.inverse()
    lam, V = spectral.from_general(H)
    nearest = Z @ torch.diag(torch.tensor([0.3, 0.3, -1.0, 0.5, 2.0], dtype=torch.float64)) @ Z.inverse()
    torch.testing.assert_close(V @ lam.diag() @ V.inverse(), nearest)


@torch.no_grad()
def test_the_direct_form_starts_at_the_nearer_of_two() -> None:
    Z = torch.randn(6, 6, dtype=torch.float64)
    real = Z @ torch.diag(torch.arange(6.0, dtype=torch.float64) - 7) @ Z.inverse()
    defective = torch.eye(6, dtype=torch.float64).roll(1, 1).triu() - torch.eye(6, dtype=torch.float64)
    for H, mode, own in ((real, "free", True), (torch.randn_like(Z), "sharpen", None), (defective, "free", False)):
        psi, V = spectral.nearest(H, "direct", mode, 2, torch.float32)
        if own is not None:
            assert torch.equal(V, (spectral.from_general if own else spectral.from_symmetric)(H, 2)[1])
        best = spectral.nearest(H, "symmetric", mode, 2, torch.float32)
        found = [(W * spectral.eigenvalues(p, mode) @ W.inverse() - H).norm() for p, W in ((psi, V), best)]
        assert found[0] <= found[1] and (not own or found[0] < 1e-9)


def test_first_pass_in_inference_mode_or_under_autocast() -> None:
    model = encoder()
    with ds.fix_(model, SpectralH(learnable=False)):
        with torch.inference_mode():
            model(X)
        model(X).sum().backward()
        assert model.layers[0].self_attn.out_proj.weight.grad.abs().sum() > 0
    with ds.fix_(model, SpectralH()) as fix, torch.autocast("cpu", torch.bfloat16):
        model(X)
        assert all(one.start_error < 1 for one in fix.copies)


@torch.no_grad()
def test_generation_with_a_cache_is_the_same() -> None:
    model = T.GPT2LMHeadModel(T.GPT2Config(n_embd=D, n_layer=3, n_head=HEADS, vocab_size=99, initializer_range=0.3))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(IDS)}
    with ds.fix_(model.eval(), SpectralH()):
        assert torch.equal(model.generate(IDS, **options), model.generate(IDS, use_cache=False, **options))


def test_a_fixed_model_is_scanned() -> None:
    model = classic()
    with ds.fix_(model, SpectralH("smooth")):
        assert ds.scan(model, X).depth == 3


def test_it_is_an_arm_of_a_comparison() -> None:
    chosen = arm("pre_norm+spectral_h:mode=smooth/own,form=direct")
    model, fix = chosen.build(Build(depth=2, d=16, h=2)).model(task("digits", train=32), 0)
    names = [name for name, _ in model.named_parameters() if name.startswith("depthscope_")]
    assert [name.rpartition(".")[2] for name in names] == ["psi", "Theta"] and fix is not None
    assert all(bool(model.get_parameter(name).isfinite().all()) for name in names), "started before training"


def test_wrong_use_is_answered() -> None:
    with pytest.raises(UnknownNameError, match=r"SpectralH: no mode is called 'sharp'\. Did you mean sharpen"):
        SpectralH("own/sharp")
    with pytest.raises(UsageError, match=r"the direct form must be learned, .* got learnable=False"):
        SpectralH(form="direct", learnable=False)
    with pytest.raises(UsageError, match="SpectralH must act at values; got weights"):
        ds.fix_(classic(), SpectralH(), at="weights")
    with ds.fix_(encoder(), ds.remedies.SigmaReparam()) as fix:
        with pytest.raises(UsageError, match="one remedy at a time can choose the weights of a model; it has SigmaRe"):
            ds.fix_(fix.model, SpectralH())
    with pytest.raises(UsageError, match=r"a block must hold matrices; layers.0.norm1 has none"):
        ds.fix_(encoder(), SpectralH(), blocks=["layers.0.norm1"])


REFUSED = {
    "heads share their values": T.LlamaConfig(**SIZES, vocab_size=99, num_key_value_heads=2),
    "heads x their width must be .* has 4 x 8 and 16": T.LlamaConfig(**SIZES, vocab_size=99, head_dim=8),
    "W_V of layer.0 must be found .* shown by its P alone": T.XLNetConfig(
        d_model=D, n_layer=2, n_head=HEADS, d_inner=32, vocab_size=99
    ),
}


@over("message", sorted(REFUSED))
@torch.no_grad()
def test_a_model_without_a_square_W_V_of_its_own_is_refused(message: str) -> None:
    model = T.AutoModel.from_config(REFUSED[message]).eval()
    before = out(model, IDS)
    with ds.fix_(model, SpectralH()):
        for _ in range(2):  # again and again, and nothing is left behind
            with pytest.raises(HookError, match=message):
                model(IDS)
    assert torch.equal(out(model, IDS), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_weights_that_cannot_be_read_are_refused() -> None:
    with ds.fix_(classic(wiring="peri_ln"), SpectralH()) as fix:
        with pytest.raises(HookError, match="fix_: the weights of attention must be readable to be replaced"):
            fix.model(X)


def test_a_width_that_was_guessed_wrong_is_refused() -> None:
    remedy = SpectralH()
    remedy.place_(8, 0, torch.zeros(1))
    with pytest.raises(ShapeError, match=r"most matrices of its block have, 8; got 16"):
        remedy.start_(torch.eye(16), torch.eye(16), 2)


def test_a_V_that_cannot_be_inverted_is_refused_and_its_limit_said() -> None:
    model = classic()
    with ds.fix_(model, SpectralH(form="direct")) as fix:
        model(X)
        one = next(iter(fix.copies))
        with torch.no_grad():
            one.Theta[:, 0] = one.Theta[:, 1] * (1 + 1e-7)
        with pytest.raises(ConditionError, match=r"cond_1\(V\) <= 8.4e\+04 in torch.float32; got .* form='symmetric'"):
            model(X)
