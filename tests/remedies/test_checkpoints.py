"""Remedies under activation checkpointing: the gradients are those of a model that keeps everything."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as T
from test_sites import SIZES, encoder
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import depthscope as ds
from depthscope.errors import DepthscopeError, HookError, UsageError
from loops import crossed, over

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # where nothing is learned
R = ds.remedies
INNER = ("attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum")
X = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(1))


class Stack(nn.Module):
    """Four post-norm blocks of torch, run by a function that may checkpoint them."""

    def __init__(self, ran: Callable[..., Tensor], dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True) for _ in range(4)]
        self.layers, self.ran = nn.ModuleList(layers), ran

    def forward(self, x: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return self.ran(self.layers, x, src_key_padding_mask)


def kept(layers: nn.ModuleList, x: Tensor, padding: Tensor | None) -> Tensor:
    for layer in layers:
        x = layer(x, src_key_padding_mask=padding)
    return x


def each(reentrant: bool) -> Callable[..., Tensor]:
    def ran(layers: nn.ModuleList, x: Tensor, padding: Tensor | None) -> Tensor:
        for layer in layers:
            x = checkpoint(layer, x, None, padding, use_reentrant=reentrant)
        return x

    return ran


def in_pairs(layers: nn.ModuleList, x: Tensor, padding: Tensor | None) -> Tensor:
    return checkpoint_sequential(layers, 2, x, use_reentrant=False)


def gradients(model: nn.Module, remedy: nn.Module, at: str | None, *calls: Any) -> list[Tensor]:
    """Of all parameters, those of the remedy too, after one backward pass through all calls."""
    with ds.fix_(model, remedy, at=at) as fix:
        with torch.no_grad():
            model(*calls[0])  # what is settled in a first pass draws no random numbers from the next
        torch.manual_seed(2)
        before = fix.fired
        sum(model(*call)[:, 0].square().sum() for call in calls).backward()
        assert fix.fired - before == 4 * len(calls)  # what runs again is not counted
        return [p.grad for p in model.parameters()]


def same(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


REMEDIES = [
    *((R.DeEscalate(0.5), at) for at in ("block_in", *INNER, "block_out")),
    (R.DeEscalate(0.5, learnable=True), "sa_sum"),
    (R.ContraNorm(), None),
    (R.GainControl(), None),
    (R.AttnScale(1.0, learnable=True), None),
    (R.GFSA(), None),
]


@over("way", [each(False)], long=[each(True), in_pairs])
@over("remedy, at", REMEDIES)
def test_gradients_are_those_of_none(way: Callable, remedy: nn.Module, at: str | None) -> None:
    x = X.clone().requires_grad_()  # what a reentrant checkpoint needs
    same(gradients(Stack(way), remedy, at, (x,)), gradients(Stack(kept), remedy, at, (x,)))


@crossed("at, way", ["block_in", "sa_out", "ffn_in", "block_out"], [each(False), each(True)])
def test_every_pass_keeps_its_own_padding(way: Callable, at: str) -> None:
    """Two passes before one backward pass: other lengths, other padding, and one without."""
    x, y = X.clone().requires_grad_(), X[:, :5].clone().requires_grad_()
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[0, 4:] = padding[2, 6:] = True
    calls = (x, padding), (y, None), (x.flip(0), padding.flip(0))
    same(gradients(Stack(way), R.DeEscalate(0.7), at, *calls), gradients(Stack(kept), R.DeEscalate(0.7), at, *calls))


@crossed("family, at, reentrant", ["bert", "gpt2", "llama"], ["sa_out", "ffn_in", "block_out"], [False, True])
def test_transformers_own_checkpointing(family: str, at: str, reentrant: bool) -> None:
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = {
            "bert": lambda: T.BertModel(T.BertConfig(**SIZES, hidden_dropout_prob=0.0)),
            "gpt2": lambda: T.GPT2Model(T.GPT2Config(n_embd=32, n_layer=3, n_head=4, vocab_size=99, resid_pdrop=0.0)),
            "llama": lambda: T.LlamaModel(T.LlamaConfig(**SIZES, num_key_value_heads=2)),
        }[family]().train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        ids = torch.arange(14).view(2, 7)
        mask = torch.ones(2, 7, dtype=torch.long)
        mask[1, 5:] = 0
        with ds.fix_(model, R.DeEscalate(0.6), at=at):
            torch.manual_seed(1)
            given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
            model(**given).last_hidden_state[:, :5].square().sum().backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    same(*found)


@pytest.mark.long
def test_a_form_is_that_of_its_pass() -> None:
    """A model that is causal when asked, in one pass and not in the next, before one backward pass."""

    class Either(Stack):
        def forward(self, x: Tensor, causal: bool = False) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if causal else None
            for layer in self.layers:
                x = self.ran(layer, x, mask)
            return x

    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()

    def again(layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        return checkpoint(layer, x, mask, use_reentrant=False)

    ways = (again, lambda layer, x, mask: layer(x, mask))
    for at in ("sa_sum", "block_out"):
        same(*(gradients(Either(way), R.DeEscalate(0.5), at, (x, True), (y, False)) for way in ways))
        with pytest.raises(HookError, match=r"layers\.0 was given the very same tokens by several"):
            gradients(Either(again), R.DeEscalate(0.5), at, (x, True), (x, False))
        same(*(gradients(Either(way), R.DeEscalate(0.5), at, (x, True), (x, True)) for way in ways))


def test_a_block_may_run_again_twice() -> None:
    x, found = X.clone().requires_grad_(), []
    for way in (kept, each(False)):
        model = Stack(way, dropout=0.0)
        with ds.fix_(model, R.DeEscalate(0.5, form="sink"), at="ffn_in"):
            loss = model(x)[:, 0].square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        found.append([p.grad for p in model.parameters()])
    same(*found)


def test_without_takes_parts_out_again() -> None:
    found = []
    for way in (kept, each(False)):
        model = Stack(way, dropout=0.0)
        with ds.without_(model, "ffn", "norms"):
            model(X)[:, 0].square().sum().backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    same(*found)


def test_what_cannot_work_is_refused() -> None:
    x = X.clone().requires_grad_()
    for remedy in (R.NeuTRENO(), R.SigmaReparam()):  # a block uses what another one computed; matrices of a pass
        model = Stack(each(False))
        with ds.fix_(model, remedy), pytest.raises(DepthscopeError, match="heckpoint"):
            model(x).sum().backward()

    def moved(layers: nn.ModuleList, x: Tensor, padding: Tensor | None) -> Tensor:
        for layer in layers:
            x = checkpoint(lambda y, layer=layer: layer(y.clone()), x, use_reentrant=False)
        return x

    model = Stack(moved)
    with ds.fix_(model, R.DeEscalate(), at="sa_sum"):
        loss = model(x).sum()
        with pytest.raises(HookError, match=r"layers\.3 ran by itself again in a backward pass, with tokens that no"):
            loss.backward()
    with ds.fix_(encoder(), R.DeEscalate()) as fix:
        fix.model(X)
        with pytest.raises(HookError, match=r"layers\.0 ran by itself\. Fix the module"):
            fix.model.layers[0](X)


def test_nothing_is_kept_of_passes_that_are_over() -> None:
    model = Stack(each(False))
    with ds.fix_(model, R.DeEscalate(), at="sa_sum") as fix:
        for _ in range(3):
            model(X.clone().requires_grad_()).sum().backward()
        model(X.clone())
        assert len(fix.reruns._kept) <= 4  # one for each block of the last pass
        model.eval()
        with torch.no_grad():
            model(X)
        assert len(fix.reruns._kept) == 0


def test_an_error_in_a_block_that_runs_again_leaves_the_model_usable() -> None:
    model, broken = Stack(each(False), dropout=0.0), []

    def fail(*_: Any) -> None:
        if broken:
            raise UsageError("broken")

    model.layers[1].linear1.register_forward_pre_hook(fail)
    with ds.fix_(model, R.DeEscalate(0.5), at="ffn_in"):
        before = model(X)
        broken.append(1)
        with pytest.raises(UsageError, match="broken"):
            before.sum().backward()
        broken.clear()
        assert torch.equal(model(X), before)


def test_a_remedy_that_is_off_changes_no_checkpoint() -> None:
    with_none, plain = (Stack(each(False), dropout=0.0) for _ in range(2))
    with ds.fix_(with_none, R.DeEscalate(0.0)):
        with_none(X).square().sum().backward()
    plain(X).square().sum().backward()
    for one, other in zip(with_none.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
