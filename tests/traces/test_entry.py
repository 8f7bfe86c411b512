"""One entry for all verbs: a model that is compiled or wrapped gives what the bare model gives, in every verb."""

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers as T
from spelled_models import built, given
from spellings import Way
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from x_transformers import Encoder

import depthscope as ds
from loops import over

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 99}
TOKENS = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(1, 99, (3, 7), generator=torch.Generator().manual_seed(2))
Model = tuple[nn.Module, Tensor]


def torch_encoder() -> Model:
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), TOKENS


def by_hand() -> Model:
    way = Way("pre", projection="x @ W + b")
    return built(way), given(way)


def bert() -> Model:
    return T.BertModel(T.BertConfig(**SIZES, attn_implementation="eager")), IDS


def llama() -> Model:
    return T.LlamaModel(T.LlamaConfig(**SIZES, num_key_value_heads=2)), IDS


def x_transformers() -> Model:
    return Encoder(dim=32, depth=2, heads=4), TOKENS


MODELS: dict[str, Callable[[], Model]] = {
    "torch": torch_encoder,
    "by hand": by_hand,
    "bert": bert,
    "llama": llama,
    "x-transformers": x_transformers,
}


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


# wrapper -> how it wraps, and what a scan says that it looked through
WRAPPERS: dict[str, tuple[Callable[[nn.Module], Any], tuple[str, ...]]] = {
    "compiled": (compiled, ("torch.compile",)),
    "DataParallel": (nn.DataParallel, ("DataParallel",)),
    "DDP": (DistributedDataParallel, ("DistributedDataParallel",)),
    "compiled DDP": (lambda m: compiled(DistributedDataParallel(m)), ("torch.compile", "DistributedDataParallel")),
}


def fixed(model: nn.Module, inputs: Tensor) -> Any:
    with ds.fix_(model, ds.remedies.DeEscalate(0.5), at="sa_sum"):
        return ds.scan(model, inputs)


def cut(model: nn.Module, inputs: Tensor) -> Any:
    with ds.without_(model, "ffn"):
        return ds.scan(model, inputs)


VERBS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "scan": ds.scan,
    "fix_": fixed,
    "without_": cut,
    "ablate": lambda model, inputs: ds.ablate(model, inputs, parts=("skips", "ffn")),
    "forecast": ds.forecast,
    "paths": ds.paths,
    "bounds": ds.bounds,
    "spectrum": ds.spectrum,
}


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def made(name: str) -> Model:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs


def answer(verb: str, model: nn.Module, inputs: Tensor) -> tuple[dict[str, Any], list[str]]:
    """The record without its notes, or the refusal word for word; and the notes."""
    torch.manual_seed(7)
    try:
        record = VERBS[verb](model, inputs)
    except Exception as error:
        return {type(error).__name__: str(error)}, []
    return _without_notes(record.to_dict()), list(getattr(record, "notes", []))


def _without_notes(value: Any) -> Any:
    """Numbers that are no numbers become words, which can be compared."""
    if isinstance(value, dict):
        return {name: _without_notes(v) for name, v in value.items() if name != "notes"}
    if isinstance(value, list | tuple):
        return [_without_notes(v) for v in value]
    return repr(value)


@cache
def bare(verb: str, name: str) -> tuple[dict[str, Any], list[str]]:
    return answer(verb, *made(name))


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The entries of two records that are not equal, in short."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return "; ".join(f"{name} {str(one.get(name))[:60]}, bare {str(other.get(name))[:60]}" for name in names[:4])


def state(model: nn.Module) -> list[Any]:
    """Hooks, training flags, attributes and weights of all modules, and of chance."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    rows = [
        (path, module.training, sorted(vars(module)), [len(getattr(module, kind)) for kind in kinds])
        for path, module in model.named_modules()
    ]
    weights = {name: (id(p), p._version, p.grad is None) for name, p in model.named_parameters()}
    return [rows, weights, torch.get_rng_state().tolist()]


@over("name, wrapper", itertools.product(MODELS, WRAPPERS), every=17)
def test_a_wrapped_model_gives_what_the_bare_model_gives_in_every_verb(wrapper: str, name: str) -> None:
    wrap, words = WRAPPERS[wrapper]
    model, inputs = made(name)
    wrapped = wrap(model)
    torch.manual_seed(7)
    before, wrong = state(wrapped), []
    for verb in VERBS:
        (truth, own), (found, notes) = bare(verb, name), answer(verb, wrapped, inputs)
        if found != truth:
            wrong.append(f"{verb}: {difference(found, truth)}")
        torch.manual_seed(7)
        if state(wrapped) != before:
            wrong.append(f"{verb}: left the model otherwise than it was")
        if not {*own} <= {*notes}:
            wrong.append(f"{verb}: lost the notes { ({*own} - {*notes}) }")
        if verb in ("scan", "fix_", "without_") and not all(word in " ".join(notes) for word in words):
            wrong.append(f"{verb}: no note says that {' and '.join(words)} was looked through, but {notes}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("wrapper", "name"),
    [
        ("DataParallel", "llama"),
        ("DDP", "torch"),
        pytest.param("DDP", "x-transformers", marks=pytest.mark.long),
        pytest.param("compiled DDP", "by hand", marks=pytest.mark.long),
    ],
)
@torch.no_grad()
def test_a_wrapped_model_that_the_user_calls_runs_with_the_remedy(wrapper: str, name: str) -> None:
    """Whether fix_ was given the wrapper or the model in it; a compiler around a fixed model may refuse aloud."""
    model, inputs = made(name)
    plain, wrapped = output(model, inputs), WRAPPERS[wrapper][0](model)
    with ds.fix_(model, ds.remedies.DeEscalate(0.5), at="block_out"):
        truth = output(model, inputs)
    for given_one in (wrapped, model):
        with ds.fix_(given_one, ds.remedies.DeEscalate(0.5), at="block_out") as fix:
            try:
                Y = output(wrapped, inputs)
            except Exception:
                assert given_one is model and wrapper.startswith("compiled")
                continue
        torch.testing.assert_close(Y, truth)
        assert fix.fired > 0
    torch.testing.assert_close(output(wrapped, inputs), plain)


def output(model: nn.Module, inputs: Tensor) -> Tensor:
    out = model(inputs)
    return out if isinstance(out, Tensor) else out.last_hidden_state


@pytest.mark.long
def test_bare_models_are_answered_with_a_record_or_with_an_error_of_depthscope() -> None:
    """So that the comparison above is not one of refusals: only bounds and forecasts may refuse."""
    ours = {error.__name__ for error in vars(ds.errors).values() if isinstance(error, type)}
    answers = {(verb, name): next(iter(bare(verb, name)[0])) for verb in VERBS for name in MODELS}
    refused = {pair: first for pair, first in answers.items() if first.endswith("Error")}
    assert {*refused.values()} <= ours, {pair: error for pair, error in refused.items() if error not in ours}
    assert {verb for verb, _ in refused} <= {"bounds", "forecast"}, refused
