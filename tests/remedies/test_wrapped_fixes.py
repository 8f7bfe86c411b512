"""What people do to a model after fix_: other precision, wrappers, trainers, checkpoints, replaced modules."""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import transformers as T
from small_models import IDS, MODELS, Block, X, encoder, gpt2, llama, out, written
from torch import nn

import depthscope as ds
from depthscope.errors import FixLostWarning, UsageError
from loops import over

R = ds.remedies


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.float() - b.float()).norm() / b.float().norm())


@over("name", list(MODELS))
@over("learnable", [False, True])
def test_half_precision_and_modes(name: str, learnable: bool) -> None:
    build, inputs = MODELS[name]
    model = build()
    plain = out(model, inputs)
    fix = ds.fix_(model, R.DeEscalate(0.8, learnable=learnable))
    fixed = out(model, inputs)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    model.train()
    if not hasattr(model, "config"):
        torch.testing.assert_close(out(model, inputs), fixed)
    assert torch.equal(out(model.eval(), inputs), fixed)
    model.to(torch.bfloat16)
    found = out(model, inputs.to(torch.bfloat16) if inputs.is_floating_point() else inputs)
    assert found.dtype == torch.bfloat16 and apart(found, fixed) < 0.05 < apart(found, plain)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    model.to("cpu").double()
    assert apart(out(model, inputs.double() if inputs.is_floating_point() else inputs), fixed) < 0.05
    fix.undo()


@pytest.mark.usefixtures("alone")
@over(
    "remedy",
    [R.FeatScale(16, s=0.5, t=-0.3), R.DeEscalate(0.7)],
    long=[R.SigmaReparam(0.5, learnable=False), R.CentredAttention()],
)
def test_ddp_and_fsdp_around_a_fixed_model(remedy: nn.Module) -> None:
    from torch.distributed.fsdp import fully_shard

    model = encoder()
    plain = out(model, X)
    ds.fix_(model, remedy)
    twin = copy.deepcopy(model)
    fixed = out(model, X)
    wrapped = nn.parallel.DistributedDataParallel(model)
    assert torch.equal(out(wrapped, X), fixed) and not torch.allclose(fixed, plain, atol=1e-3)
    wrapped(X).pow(3).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert ds.fixes(wrapped)[0].fired == 9
    for layer in twin.layers:
        fully_shard(layer)
    fully_shard(twin)
    if isinstance(remedy, R.SigmaReparam):
        with pytest.raises(UsageError, match=r"weights must be whole .* Use DDP"):
            out(twin, X)
    else:
        torch.testing.assert_close(out(twin, X), fixed)


@pytest.mark.usefixtures("alone")
def test_torch_itself_refuses_to_shard_a_single_number() -> None:
    from torch.distributed.fsdp import fully_shard

    model = encoder()
    ds.fix_(model, R.DeEscalate(0.7, learnable=True))
    with pytest.raises(ValueError, match="doesn't support scalar parameters"):
        fully_shard(model)


def test_accelerate_prepares_a_fixed_model() -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    model = gpt2()
    plain = out(model, IDS)
    fix = ds.fix_(model, R.DeEscalate(0.7, learnable=True))
    fixed = out(model, IDS)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    prepared = accelerator.prepare(model)
    found = out(prepared, IDS)
    assert apart(found, fixed) < 0.03 < 0.3 < apart(found, plain)
    assert ds.fixes(accelerator.unwrap_model(prepared)) == [fix]
    fix.undo()
    assert apart(out(prepared, IDS), plain) < 0.03
    AcceleratorState._reset_state(True)


def test_a_trainer_writes_the_fix_into_its_checkpoints(tmp_path: Path) -> None:
    model = gpt2()
    ds.fix_(model, R.DeEscalate(0.7, learnable=True))
    told = {
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_steps": 2,
        "max_steps": 2,
        "learning_rate": 0.1,
    }
    data = [{"input_ids": ids, "labels": ids} for ids in IDS]
    trainer = T.Trainer(model, T.TrainingArguments(str(tmp_path), **told), train_dataset=data)
    with (
        pytest.warns(FixLostWarning, match="from_pretrained alone returns the model without it"),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", ".*pin_memory.*")
        trainer.train()
    trained = out(model.eval(), IDS)
    folder = tmp_path / "checkpoint-2"
    again = T.GPT2LMHeadModel.from_pretrained(folder).eval()
    back = ds.fix_(again, folder)
    assert torch.equal(out(again, IDS), trained)
    taus = [p for n, p in again.named_parameters() if "depthscope_" in n]
    assert all(not torch.equal(p, taus[0]) or p is taus[0] for p in taus) and back.fired == 3  # it has learned


@over("build", [gpt2], long=[llama])
@over("reentrant", [False, True])
def test_checkpointing_that_is_switched_on_later(build, reentrant: bool) -> None:
    model = build().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    ds.fix_(model, R.DeEscalate(0.7, learnable=True))

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(IDS, labels=IDS, use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    expected = gradients()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    for a, b in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_beams_and_assistants() -> None:
    model, helper = gpt2(), gpt2(2)
    ds.fix_(model, R.DeEscalate(0.7))
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(IDS)}
    for beams in (1, 3):
        found, whole = (model.generate(IDS, num_beams=beams, use_cache=keep, **options) for keep in (True, False))
        assert torch.equal(found, whole)
    one = options | {"attention_mask": torch.ones_like(IDS[:1])}
    with pytest.raises(
        UsageError, match=r"or by assisted generation\. Pass use_cache=False, or generate without an as"
    ):
        model.generate(IDS[:1], assistant_model=helper, **one)
    assert model.generate(IDS[:1], **one).shape == (1, 11)  # the handle goes on


# modules that are replaced


@over("at", ["block_out", "sa_sum", "block_in"])
@over("learnable", [False, True])
def test_a_block_that_is_replaced_is_fixed_too(at: str, learnable: bool) -> None:
    model, new = written(), Block(16).eval()
    fix = ds.fix_(model, R.DeEscalate(0.7, learnable=learnable), at=at)
    out(model, X)
    model.blocks[1] = new
    found = out(model, X)
    assert any("Written were replaced: its blocks were looked for again" in note for note in fix.notes)
    other = copy.deepcopy(model)
    ds.fixes(other)[0].undo()
    ds.fix_(other, R.DeEscalate(0.7), at=at)
    torch.testing.assert_close(found, out(other, X))
    fix.undo()
    assert not new._forward_hooks and not new._forward_pre_hooks


def test_blocks_that_come_and_go() -> None:
    model = written()
    fix = ds.fix_(model, R.DeEscalate(0.7))
    out(model, X)
    model.blocks.append(Block(16).eval())
    fired = fix.fired
    out(model, X)
    assert fix.fired == fired + 4 and len(fix.blocks) == 4
    del model.blocks[0]
    out(model, X)
    assert fix.fired == fired + 7
    model.blocks = nn.ModuleList(Block(16).eval() for _ in range(2))
    out(model, X)
    assert fix.fired == fired + 9
    fix.undo()
    fix = ds.fix_(model, R.DeEscalate(0.7, learnable=True))
    out(model, X)
    model.blocks.append(Block(16).eval())
    with pytest.raises(UsageError, match=r"has a copy for each of the blocks .* has 3 now, and not the same\. Undo"):
        out(model, X)


def test_matrices_that_are_replaced() -> None:
    model = written()
    fix = ds.fix_(model, R.SigmaReparam(0.5))
    out(model, X)
    model.blocks[1].qkv = nn.Linear(16, 48)
    found = out(model, X)
    other = copy.deepcopy(model)
    ds.fixes(other)[0].undo()
    ds.fix_(other, R.SigmaReparam(0.5))
    torch.testing.assert_close(found, out(other, X))
    torch.nn.utils.parametrizations.weight_norm(model.blocks[1].qkv)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"must find the matrices that it was made for; .* parametrizations\)"):
            out(model, X)
    fix.undo()
    out(model, X)


def test_a_new_head_and_other_embeddings_change_nothing() -> None:
    model = gpt2()
    fix = ds.fix_(model, R.DeEscalate(0.7))
    states = model(IDS, output_hidden_states=True).hidden_states[-1]
    model.resize_token_embeddings(120, mean_resizing=False)
    torch.testing.assert_close(model(IDS, output_hidden_states=True).hidden_states[-1], states)
    model.lm_head = nn.Linear(16, 4)
    assert out(model, IDS).shape == (2, 7, 4) and fix.fired == 9
    torch.nn.utils.parametrizations.weight_norm(model.lm_head)
    assert out(model, IDS).shape == (2, 7, 4) and fix.fired == 12
