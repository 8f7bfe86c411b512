"""Hand-written blocks in every spelling: what depthscope says of them, against the mathematics written out.

A refusal (HookError and its like) is honest where a block is odd; a wrong number never is. Each test walks over all
spellings and names those that fail; the fast case of a test walks over some of every wiring.
"""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from literally import SITES, acts_at, changed_at, entropy, largest_singular_value, omega, run, similarity
from part_spellings import DEEP, DEPTH, SUMS
from spelled_models import WAYS, Model, built, given
from spellings import Way
from torch import Tensor

import depthscope as ds
from depthscope.errors import AttentionNotSeenError, ForecastError, HookError
from loops import at_pace

REFUSALS = (HookError, AttentionNotSeenError)
BATCHES = [way for way in WAYS if way.sequences < 10]  # not as many sequences as tokens
USUAL = {"attention": "sdpa", "projection": "nn.Linear", "norm": "nn.LayerNorm"}
EVERY = 7  # of the spellings is tried by the fast case
OUTSIDE = [way for way in WAYS if all(getattr(way, part) == usual for part, usual in USUAL.items())]


@torch.no_grad()
def output(model: Model) -> Tensor:
    """(B, n, d), batch first."""
    Y = model(given(model.way))
    return Y.transpose(0, 1) if model.way.time_first else Y


@cache
def ready(way: Way) -> tuple[Model, Tensor]:
    """The model of a way, and its output as it is: after every test it must give that again."""
    model = built(way)
    return model, output(model)


@cache
def scanned(way: Way) -> ds.Scan:
    metrics = ["t_sim", "t_div", "delta", "attention_entropy", "omega"]
    return ds.scan(ready(way)[0], given(way), metrics=metrics, blocks=way.blocks)


def right_or_refused(way: Way, what: str, got: Callable[[], Tensor], *truths: Tensor, acts: str = "may") -> str:
    """Empty when the tensor is one of the truths, or was refused where it may be; else what is wrong, with its name.

    acts: "must" it give a tensor, "may" it, or must it "never"?
    """
    try:
        Y = got()
    except REFUSALS as error:
        return f"{way}: {what} was refused: {error}" if acts == "must" else ""
    if acts == "never":
        return f"{way}: {what} acted, and should have been refused"
    off = min(float((Y - truth).abs().max() / truth.abs().max()) for truth in truths)
    return "" if off < 1e-5 else f"{way}: {what} is off by {off:.1e}"


def none(wrong: list[str]) -> None:
    wrong = [line for line in wrong if line]
    assert not wrong, f"{len(wrong)} are wrong\n" + "\n".join(wrong)


def near(got: Tensor, truth: object, tolerance: float) -> bool:
    return bool((got - torch.as_tensor(truth, dtype=torch.float64)).abs().max() < tolerance)


def test_states_heads_and_facts_are_those_of_the_mathematics(pace: str) -> None:
    """omega needs the tokens that attention reads. Where a scan cannot tell them, it gives NaN and a note."""
    wrong = []
    for way in at_pace(pace, WAYS, EVERY):
        scan, truth = scanned(way), run(ready(way)[0])
        t_sim, t_div = zip(*map(similarity, truth.states), strict=True)
        heads = {
            "delta": [largest_singular_value(P).mean(0) for P in truth.P],
            "attention_entropy": [entropy(P).mean(0) for P in truth.P],
            "omega": [omega(X, P).mean(0) for X, P in zip(truth.reads, truth.P, strict=True)],
        }
        facts = {
            "depth": scan.depth == DEPTH,
            "causal": scan.causal == way.causal,
            "token_axis": scan.token_axis == (0 if way.time_first else 1),
            "t_sim": near(scan["t_sim"], t_sim, 1e-6),
            "t_div": near(scan["t_div"], t_div, 1e-6),
        }
        facts |= {name: near(scan.per_head(name), torch.stack(value), 1e-3) for name, value in heads.items()}
        facts["omega"] |= bool(scan.per_head("omega").isnan().all()) and "omega" in " ".join(scan.notes)
        wrong += [f"{way}: {name}" for name, right in facts.items() if not right]
    none(wrong)


def test_steps_norms_and_factors_have_their_names(pace: str) -> None:
    """A norm that is written out in the forward pass is no norm to a scan; all others are placed."""
    wrong = []
    for way in at_pace(pace, BATCHES, EVERY):
        scan, unseen = scanned(way), way.norm == "written out"
        names = [name for name in scan.step_names if not name.endswith("_norm")]
        known = [["attention and ffn"]] if way.joint else [["attention", "ffn"], ["ffn", "attention"]]
        if unseen and way.wiring == "post":
            known += [["attention", "other"], []]
        wrong.append("" if names in known else f"{way}: the steps are called {names}")
        placed = scan.placement == way.placement or (unseen and scan.placement in ("none", "unknown")) or way.parallel
        wrong.append("" if placed else f"{way}: placement {scan.placement}, not {way.placement}")
        skip = SUMS[way.sum][1]
        seen = scan.residual_scale == skip or (unseen and way.wiring == "post")
        wrong.append("" if seen else f"{way}: residual_scale {scan.residual_scale}, not {skip}")
    assert any(SUMS[way.sum][1] == DEEP for way in BATCHES)
    none(wrong)


@pytest.mark.parametrize("site", SITES)
def test_a_remedy_acts_exactly_at_its_site_and_is_undone_bit_for_bit(site: str, pace: str) -> None:
    """What gates attention's output reads the same tokens as attention does: it may be changed with it or not."""
    wrong = []
    for way in at_pace(pace, OUTSIDE if site in ("block_in", "block_out") else WAYS, EVERY):
        model, plain = ready(way)
        truths = [changed_at(model, {site}, 0.7)]
        if site == "attn_in" and way.branch == "gated":
            truths.append(changed_at(model, {site, "gate_in"}, 0.7))
        fix = ds.fix_(model, ds.remedies.DeEscalate(0.7), at=site, blocks=way.blocks)
        wrong.append(right_or_refused(way, site, lambda m=model: output(m), *truths, acts=acts_at(way)[site]))
        fix.undo()
        wrong.append("" if torch.equal(output(model), plain) else f"{way}: {site} was not undone")
    none(wrong)


def test_gain_control_acts_on_attention_alone() -> None:
    """Where attention and network are one tensor before the sum, it acts on attention's part of it or is refused."""
    wrong = []
    for way in (way for way in WAYS if way.parallel):
        model, plain = ready(way)
        acts, truth = acts_at(way)["sa_out"], changed_at(model, {"sa_out"}, 0.5)
        with ds.fix_(model, ds.remedies.GainControl(0.5)):
            wrong.append(right_or_refused(way, "GainControl", lambda m=model: output(m), truth, acts=acts))
        wrong.append("" if torch.equal(output(model), plain) else f"{way}: GainControl was not undone")
    none(wrong)


@pytest.mark.parametrize("part", ["ffn", "skips", "norms"])
def test_a_model_without_a_part_is_the_mathematics_without_it(part: str, pace: str) -> None:
    """Where the skip has a factor, the stream without the network's sum may keep the factor or not."""
    wrong = []
    for way in at_pace(pace, BATCHES, EVERY):
        model, plain = ready(way)
        truths = [run(model, removed=removed).states[DEPTH] for removed in ((part,), (part, "factor"))]
        odd = way.parallel or way.branch != "plain" or way.norm == "written out"
        acts = "may" if odd else "must"
        if part == "ffn" and way.wiring == "x + cat(a, f) W":
            acts = "never"
        handle = ds.without_(model, part, blocks=way.blocks)
        wrong.append(right_or_refused(way, f"without {part}", lambda m=model: output(m), *truths, acts=acts))
        handle.undo()
        wrong.append("" if torch.equal(output(model), plain) else f"{way}: {part} was not given back")
    none(wrong)


def test_a_forecast_by_weights_is_near_what_is_measured(pace: str) -> None:
    wrong, forecasts, ways = [], 0, at_pace(pace, BATCHES, EVERY)
    for way in ways:
        model, _ = ready(way)
        try:
            found = float(ds.forecast(model, given(way), blocks=way.blocks).t_sim[-1])
        except ForecastError:
            continue
        forecasts += 1
        truth = similarity(run(model).states[-1])[0]
        wrong.append("" if abs(found - truth) < 0.08 else f"{way}: forecast {found:.3f}, measured {truth:.3f}")
    none(wrong)
    assert forecasts > len(ways) / 2


@pytest.mark.parametrize("wiring", ["pre", "post", "x + (a + f)"])
def test_dropout_is_measured_as_it_falls_and_without_it(wiring: str) -> None:
    way = Way(wiring, dropout=0.1)
    model = built(way).train()
    torch.manual_seed(3)
    scan = ds.scan(model, given(way))
    torch.manual_seed(3)
    assert abs(float(scan["t_sim"][-1]) - similarity(output(model))[0]) < 1e-6
    assert scan.without_dropout is not None
    assert near(scan.without_dropout, [similarity(X)[1] for X in run(model).states], 1e-6)
    assert model.training and model.in_order()[0].drop.training
