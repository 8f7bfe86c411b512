"""Where two places once held one idea and disagreed: compiled models, time-first models, parallel blocks, errors."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from literally import changed_at, run, similarity
from part_spellings import N
from spelled_models import built, given
from spellings import Way
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import DepthscopeError, ForecastError, HookError

HALF = ds.remedies.DeEscalate(0.5)


# compiled models: a remedy must act in them


def _whole(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def _in_place(model: nn.Module) -> Any:
    model.compile(backend="eager")
    return model


def _block_by_block(model: nn.Module) -> Any:
    for i, block in enumerate(model.layers):
        model.layers[i] = torch.compile(block, backend="eager")
    return model


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("compiled", "site"), [(_whole, "block_out"), (_in_place, "sa_out"), (_block_by_block, "sa_out")]
)
@pytest.mark.usefixtures("fresh_compiler")
@torch.no_grad()
def test_a_remedy_acts_in_a_compiled_model(compiled: Callable, site: str) -> None:
    plain = built(Way())
    X, truth = given(plain.way), changed_at(plain, {site}, 0.5)
    model = compiled(built(Way()))
    before = model(X)  # compiled without the remedy: what is kept of that must not be used with it
    with ds.fix_(model, HALF, at=site) as fix:
        torch.testing.assert_close(model(X), truth)
        assert fix.fired == 3
        scan = ds.scan(model, X)
    assert scan.remedies == [f"DeEscalate(tau=0.5) at {site}"]
    assert abs(float(scan["t_sim"][-1]) - similarity(truth)[0]) < 1e-6
    assert torch.equal(model(X), before)


@pytest.mark.usefixtures("fresh_compiler")
@torch.no_grad()
def test_a_compiled_model_runs_without_a_part() -> None:
    plain, model = built(Way()), torch.compile(built(Way()), backend="eager")
    X = given(plain.way)
    with ds.without_(model, "ffn"):
        torch.testing.assert_close(model(X), run(plain, removed=("ffn",)).states[-1])
    assert torch.equal(model(X), plain(X))


# time-first models: all verbs must take the same axis for the tokens


@pytest.mark.parametrize("sequences", [3, N])
@pytest.mark.parametrize("attention", ["sdpa", "torch.bmm", "nn.MultiheadAttention"])
def test_scan_and_forecast_of_a_time_first_model_agree(attention: str, sequences: int) -> None:
    """Whatever attention is called, and with as many sequences as tokens too.

    A forecast may say that it does not know how heads were written by hand; it knows nn.MultiheadAttention.
    """
    for wiring in ("pre", "post"):
        way = Way(wiring, attention, time_first=True, sequences=sequences)
        model = built(way)
        truth = [similarity(X)[0] for X in run(model).states]
        assert ds.scan(model, given(way))["t_sim"].tolist() == pytest.approx(truth, abs=1e-6)
        try:
            forecast = ds.forecast(model, given(way)).t_sim.tolist()
        except ForecastError:
            assert attention != "nn.MultiheadAttention"
            continue
        assert forecast[0] == pytest.approx(truth[0], abs=1e-6)
        assert forecast[-1] == pytest.approx(truth[-1], abs=0.08)


DIFFERENT = ("token_axis", "response_error")  # the second is the answer to a random nudge


def numbers_in(record: Any) -> list[float]:
    """All numbers of a record, in their order."""
    if isinstance(record, dict):
        return [number for name, value in record.items() if name not in DIFFERENT for number in numbers_in(value)]
    if isinstance(record, list):
        return [number for value in record for number in numbers_in(value)]
    return [float(record)] if isinstance(record, int | float) else []


@pytest.mark.long
@pytest.mark.parametrize("sequences", [3, N])
@torch.no_grad()
def test_every_verb_takes_the_same_axis_for_the_tokens(sequences: int) -> None:
    way = Way("pre", "nn.MultiheadAttention", time_first=True, sequences=sequences)
    time_first, batch_first = built(way), built(replace(way, time_first=False))
    X, Y = given(way), given(batch_first.way)
    for verb in (ds.scan, ds.forecast, ds.paths, ds.bounds, ds.spectrum):
        one, other = (numbers_in(verb(m, x).to_dict()) for m, x in ((time_first, X), (batch_first, Y)))
        assert one == pytest.approx(other, abs=1e-6, rel=1e-6, nan_ok=True), verb.__name__
    # without skips tokens become equal but for rounding, in which ranks and gains are noise
    one, other = (
        [row.scan["t_sim"].tolist() for row in ds.ablate(m, x).rows] for m, x in ((time_first, X), (batch_first, Y))
    )
    assert numbers_in(one) == pytest.approx(numbers_in(other), abs=1e-6)
    with ds.fix_(time_first, HALF), ds.fix_(batch_first, HALF):
        torch.testing.assert_close(time_first(X).transpose(0, 1), batch_first(Y))


# a parallel block written with operators


@pytest.mark.parametrize("projection", ["nn.Linear", "x @ W + b"])
@torch.no_grad()
def test_attention_and_network_that_join_together_are_not_taken_for_attention(projection: str) -> None:
    way = Way("x + (a + f)", projection=projection)
    model = built(way)
    assert "attention" not in ds.scan(model, given(way)).steps
    assert "attention and ffn" in ds.scan(model, given(way)).steps
    with ds.fix_(model, ds.remedies.GainControl(0.5)):
        try:
            Y = model(given(way))
        except HookError:
            return
    torch.testing.assert_close(Y, changed_at(model, {"sa_out"}, 0.5))


# errors name the verb that was called


class Silent(nn.Module):
    """Blocks without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Raises(Silent):
    def forward(self, x: Tensor) -> Tensor:
        raise ArithmeticError("no such day")


def fixed(model: Any, inputs: Any, **choices: Any) -> None:
    with ds.fix_(model, HALF, **choices):
        model(inputs)


def cut(model: Any, inputs: Any, **choices: Any) -> None:
    with ds.without_(model, "skips", **choices):
        model(inputs)


VERBS: dict[str, Callable[..., Any]] = {
    "scan": ds.scan,
    "forecast": ds.forecast,
    "fix_": fixed,
    "without_": cut,
    "ablate": ds.ablate,
    "paths": ds.paths,
    "bounds": ds.bounds,
    "spectrum": ds.spectrum,
}
READS_INPUTS = [verb for verb in VERBS if verb not in ("fix_", "without_")]  # those let the user call the model
X = given(Way())
SMALL = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
NEED_NO_ATTENTION = ("forecast", "ablate")  # they may do without
MISTAKES: dict[str, tuple[Any, Any, dict[str, Any], Any]] = {
    "wrong blocks": (lambda: built(Way()), X, {"blocks": "wrong"}, VERBS),
    "wrong blocks in a list": (lambda: built(Way()), X, {"blocks": ["layers.0", "wrong.*"]}, VERBS),
    "text for inputs": (lambda: built(Way()), "the cat sat", {}, READS_INPUTS),
    "a number for inputs": (lambda: built(Way()), 3, {}, READS_INPUTS),
    "an iterable of numbers": (lambda: built(Way()), [1, 2], {}, READS_INPUTS),
    "no batch": (lambda: built(Way()), [], {}, READS_INPUTS),
    "no module": (lambda: "bert", X, {}, VERBS),
    "a model that raises": (Raises, SMALL, {}, READS_INPUTS),
    "no blocks": (lambda: nn.Linear(8, 8), SMALL, {}, VERBS),
    "no attention": (Silent, SMALL, {}, VERBS),
    "a mask of words": (lambda: built(Way()), X, {"mask": "yes"}, ("scan", "ablate", "paths")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_error_names_the_verb_that_was_called_and_no_other(mistake: str) -> None:
    build, inputs, choices, verbs = MISTAKES[mistake]
    wrong = []
    for verb in verbs:
        try:
            VERBS[verb](build(), inputs, **choices)
        except DepthscopeError as error:
            others = [name for name in (*VERBS, "circuits") if name != verb and f"{name}: " in str(error)]
            if not str(error).startswith(f"{verb}: ") or others:
                wrong.append(f"{verb}: {str(error)[:120]}")
        except Exception as error:
            wrong.append(f"{verb}: {type(error).__name__} is not of depthscope: {str(error)[:80]}")
        else:
            if mistake != "no attention" or verb not in NEED_NO_ATTENTION:
                wrong.append(f"{verb}: no error")
    assert not wrong, f"{mistake}\n" + "\n".join(wrong)
