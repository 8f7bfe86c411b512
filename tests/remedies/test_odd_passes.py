"""Passes that go wrong leave the handle usable and touch nobody else: threads, interruptions, other modes."""

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from small_models import IDS, X, encoder, gpt2, out, written
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import HookError, UsageError
from loops import over

R = ds.remedies
REMEDIES = [
    (R.DeEscalate(0.7), "block_out"),
    (R.DeEscalate(0.7), "sa_sum"),
    (R.CentredAttention(), "attn"),
    (R.SigmaReparam(0.5), "weights"),
]


def in_threads(calls: list[Callable[[], Tensor]]) -> tuple[list[Tensor], list[Exception]]:
    """What the calls give, each in a thread of its own, again and again, all at once."""
    results: list[Tensor] = []
    errors: list[Exception] = []
    ready = threading.Barrier(len(calls))

    def run(call: Callable[[], Tensor]) -> None:
        ready.wait()
        for _ in range(10):
            try:
                results.append(call())
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, errors


@over("remedy_at", [*REMEDIES, (R.DeEscalate(0.7), "block_in")])
@over("fresh", [False, True])
def test_threads_get_the_right_numbers_or_an_error(remedy_at: tuple, fresh: bool) -> None:
    """fresh: the model was never called, so that one thread looks at it while the others call."""
    model = written()
    remedy, at = remedy_at
    ds.fix_(model, remedy, at=at)
    fixed = out(copy.deepcopy(model), X)
    if not fresh:
        out(model, X)
    results, errors = in_threads([lambda: out(model, X)] * 3)
    assert len(results) >= 10 and all(torch.equal(one, fixed) for one in results)
    assert all(isinstance(e, UsageError) and "Threads need a copy of the model each" in str(e) for e in errors)
    assert torch.equal(out(model, X), fixed)
    assert all(isinstance(p, nn.Parameter) for m in model.modules() for p in m._parameters.values() if p is not None)


@over("remedy_at", REMEDIES)
def test_threads_with_a_copy_each(remedy_at: tuple) -> None:
    model, (remedy, at) = encoder(), remedy_at
    ds.fix_(model, remedy, at=at)
    fixed = out(model, X)
    twins = [copy.deepcopy(model) for _ in range(3)]
    results, errors = in_threads([lambda twin=twin: out(twin, X) for twin in twins])
    assert not errors and len(results) == 30 and all(torch.equal(one, fixed) for one in results)
    assert torch.backends.mha.get_fastpath_enabled()


@over("remedy_at", REMEDIES)
@over("where", ["self_attn", "linear1"])
def test_an_interrupted_pass_changes_no_other_model_and_no_weights(remedy_at: tuple, where: str) -> None:
    """Ctrl-C runs past all hooks: what the pass has opened is still open, and must do nothing."""
    model, other, (remedy, at) = encoder(), encoder().train(), remedy_at
    for module in other.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    before = out(other, X)
    fix = ds.fix_(model, remedy, at=at)
    fixed, weights = out(model, X), {key: value.clone() for key, value in model.state_dict().items()}
    stop = [True]

    def trip(*_: object) -> None:
        if stop[0]:
            raise KeyboardInterrupt

    model.layers[1].get_submodule(where).register_forward_pre_hook(trip)
    for _ in range(2):
        stop[0] = True
        with pytest.raises(KeyboardInterrupt):
            out(model, X)
        stop[0] = False
        torch.testing.assert_close(out(other, X), before, rtol=0, atol=0)
        assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
        assert torch.equal(out(model, X), fixed)
        assert torch._C._len_torch_function_stack() == 0 and torch.backends.mha.get_fastpath_enabled()
    stop[0] = True
    with pytest.raises(KeyboardInterrupt):
        out(model, X)
    fix.undo()
    assert torch._C._len_torch_function_stack() == 0 and torch.backends.mha.get_fastpath_enabled()


@over("remedy_at", REMEDIES)
def test_inference_mode_first_then_training(remedy_at: tuple) -> None:
    model, (remedy, at) = encoder(), remedy_at
    fix = ds.fix_(model, remedy, at=at)
    with torch.inference_mode():
        first = model(X).clone()
    found = model(X)
    torch.testing.assert_close(found, first)
    found.pow(3).sum().backward()
    assert all(p.grad is not None for p in model.parameters()) and fix.fired == 6


@over("remedy_at", REMEDIES)
def test_a_first_pass_that_the_model_refuses(remedy_at: tuple) -> None:
    model, (remedy, at) = encoder(), remedy_at
    fix = ds.fix_(model, remedy, at=at)
    for _ in range(2):
        with pytest.raises(Exception, match="embedding dimension"):
            out(model, X[..., :5])
    assert torch.equal(out(model, X), out(model, X)) and fix.fired == 6
    assert torch._C._len_torch_function_stack() == 0


class Shortened(nn.Module):
    """Runs as many of its blocks as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.stack, self.depth = encoder(), 3

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.stack.layers[: self.depth]:
            x = layer(x)
        return x


@over("remedy_at", REMEDIES)
def test_blocks_that_do_not_run(remedy_at: tuple) -> None:
    """A block that is left out is none; where no block runs, nothing can act, and that is an error."""
    model, (remedy, at) = Shortened().eval(), remedy_at
    ds.fix_(model, remedy, at=at)
    out(model, X)
    model.depth = 2
    two = out(model, X)
    model.depth = 0
    with pytest.raises(HookError, match="must act in every block; in no block of Shortened"):
        out(model, X)
    model.depth = 2
    assert torch.equal(out(model, X), two)


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = encoder()

    def forward(self, x: Tensor, again: bool = False) -> Tensor:
        return self.stack(self(x) if again else x)


def test_a_model_that_calls_itself() -> None:
    model = Recursive().eval()
    ds.fix_(model, R.DeEscalate(0.7))
    once = out(model, X)
    with pytest.raises(UsageError, match="a model may not call itself"):
        model(X, again=True)
    assert torch.equal(out(model, X), once) and torch._C._len_torch_function_stack() == 0


def test_a_learned_remedy_in_one_of_two_streams() -> None:
    import transformers as T

    sizes = {"d_model": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2, "d_kv": 8, "vocab_size": 99}
    model = T.T5Model(T.T5Config(**sizes, decoder_start_token_id=0)).eval()
    fix = ds.fix_(model, R.DeEscalate(0.7, learnable=True), stream="decoder")
    model(input_ids=IDS, decoder_input_ids=IDS)
    assert fix.blocks == ["decoder.block.0", "decoder.block.1"] and fix.fired == 2


def test_a_described_fix_does_not_depend_on_the_last_pass() -> None:
    model = gpt2()
    fix = ds.fix_(model, R.DeEscalate(0.7))
    before = fix.describe()["settings"]
    out(model, IDS)  # causal: another form acts
    assert "form=sink" in repr(fix) and fix.describe()["settings"] == before
