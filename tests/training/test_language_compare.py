"""Comparisons of language models: losses are ranked, and an arm that sees the future is named and left out."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_text

import depthscope as ds
from depthscope.errors import CheckpointError, UsageError
from depthscope.reports.show import picture
from depthscope.training.arms import LITERAL, arm, arms, with_literal
from depthscope.training.build import Build
from depthscope.training.comparison import Comparison
from depthscope.training.lane import Lane
from depthscope.training.loop import train
from depthscope.training.parallel import accelerated
from depthscope.training.perplexity import evaluating, in_rows, loss_in_window
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from depthscope.training.step import Stepper
from depthscope.training.tasks import task

FACTS = {"score": "loss", "answers": 100, "count": 5000, "chance": 3.0, "data": "some text", "model": "Transformer-XL"}


def run_with(loss: float, gap: float, seed: int) -> Run:
    test = {"loss": loss, "bits_per_character": loss / 0.693, "forced": loss, "honest": loss + gap, "gap": gap}
    run = Run(Build(), Recipe(seed=seed), "pydoc", "f", status="done", seconds=1.0)
    run.final |= {"train": {"loss": loss}, "valid": {"loss": loss}, "test": test}
    run.evaluations.append({"epoch": 1, "step": 10, "split": "valid", "loss": loss})
    return run


def compared(**lanes: list[tuple[float, float]]) -> Comparison:
    """A comparison of made-up (loss, gap), one for each seed."""
    made = [
        Lane(arm(name), 1e-3, {s: run_with(loss, gap, s) for s, (loss, gap) in enumerate(values)}, {})
        for name, values in lanes.items()
    ]
    return Comparison("pydoc", FACTS, Build(depth=2), Recipe(), 100, [0, 1, 2], made)


PRE, DE = [(2.34, 0.0), (2.33, 1e-7), (2.35, 0.0)], [(2.42, 0.0), (2.40, 0.0), (2.44, 0.0)]
FULL = [(1.86, 0.91), (1.83, 0.92), (1.85, 0.93)]


def test_less_loss_is_better_and_a_leak_is_not_ranked() -> None:
    result = compared(pre_norm=PRE, de_escalate=DE, **{"de_escalate:causal=leak": FULL})
    text = " ".join(str(result).split())
    assert "pre_norm is below de_escalate by 0.080 ± 0.010 nats: differs" in text
    assert "de_escalate:causal=leak LEAKS: it sees the tokens that it is to predict." in text
    assert "Its loss is 1.847 when a segment is fed at once, and 2.767 when only what came before is." in text
    assert "not ranked" in text and "is below pre_norm" not in text and "1.847 ±" not in text
    assert "The test losses are honest" in text
    assert [lane.arm.name for lane in result.ranked] == ["pre_norm", "de_escalate"]
    assert {name for one in result.differences() for name in (one.better, one.worse)} == {"pre_norm", "de_escalate"}


def test_one_seed_that_leaks_is_enough_and_nan_is_no_clean_bill() -> None:
    result = compared(pre_norm=PRE, rezero=[(2.0, 0.0), (2.0, 0.002), (2.0, 0.0)], deep_norm=[(2.0, float("nan"))] * 3)
    assert [lane.arm.name for lane in result.ranked] == ["pre_norm"]


def test_what_was_told_to_leak_is_not_ranked_however_small_the_gap() -> None:
    result = compared(pre_norm=PRE, **{"de_escalate:causal=leak": [(2.0, 5e-4)] * 3})
    for run in result["de_escalate:causal=leak"].runs.values():
        run.leaks = True  # as the loop says it of the remedy in place
    assert [lane.arm.name for lane in result.ranked] == ["pre_norm"] and "LEAKS" in str(result)


def test_an_arm_that_only_knows_frequencies_is_told() -> None:
    text = " ".join(str(compared(post_norm=[(3.01, 0), (2.995, 0), (2.7, 0)], pre_norm=PRE)).split())
    assert "post_norm learned no more than how frequent tokens are in 2 of 3 seeds; the best reached 2.700." in text


def test_the_record_says_who_leaks() -> None:
    result = compared(pre_norm=PRE, **{"de_escalate:causal=leak": FULL})
    record = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert [lane["summary"]["leaks"] for lane in record["lanes"]] == [False, True]
    assert record["lanes"][1]["summary"]["test_honest"]["mean"] == pytest.approx(2.7667, abs=1e-4)
    assert Comparison.from_dict(record).to_dict() == result.to_dict()


def test_the_picture_names_the_leak(tmp_path: Path) -> None:
    result = compared(pre_norm=PRE, **{"de_escalate:causal=leak": FULL})
    assert picture(result, tmp_path / "curves.png").stat().st_size > 20_000


def test_the_literal_lane_is_added_once_and_only_where_it_says_something() -> None:
    def names(text: str) -> list[str]:
        return [one.name for one in with_literal(arms(text))]

    assert names("post_norm,de_escalate,pre_norm") == [
        "post_norm",
        "de_escalate",
        "de_escalate:causal=leak",
        "pre_norm",
    ]
    assert names("de_escalate:tau=0.5@1e-3,de_escalate")[1] == "de_escalate:tau=0.5,causal=leak@1e-3"
    assert names("de_escalate,de_escalate:causal=leak,at=ffn_in") == [
        "de_escalate",
        "de_escalate:causal=leak,at=ffn_in",
    ]
    assert names("post_norm,pre_norm+gain_control") == ["post_norm", "pre_norm+gain_control"]
    added = with_literal(arms("de_escalate"))[1]
    assert added.remark == LITERAL and added.causal == "leak" and added.settings == {}


def test_what_is_said_goes_to_the_remedy_and_de_escalation_acts_where_the_paper_has_it() -> None:
    text = task("iid", train=4000)
    base = Build(depth=2, d=8, h=2, q=8)
    _, fix = arm("de_escalate").build(base).model(text, 0)
    assert fix is not None and fix.at == "ffn_in" and fix.remedy.form == "sink" and not fix.leaks
    _, fix = arm("de_escalate:causal=leak,at=block_out").build(base).model(text, 0)
    assert fix is not None and fix.at == "block_out" and fix.remedy.form == "full" and fix.leaks


@pytest.mark.long
def test_real_processes_rank_a_decoder_and_name_the_leak(tmp_path: Path) -> None:
    """A few steps: nothing is learned yet, but the full mean shows the future from the first step on."""
    sizes = {
        "depth": 2,
        "d": 16,
        "h": 2,
        "q": 16,
        "batch": 8,
        "epochs": 1,
        "train": 2000,
        "test": 512,
        "epoch_tokens": 512,
    }
    result = ds.compare("iid", "de_escalate", seeds=1, search=0, folder=tmp_path, model="decoder", **sizes)
    honest, leaking = result.lanes
    assert honest.arm.name == "de_escalate" and not honest.leaks and leaking.leaks
    assert honest.mean("test", "gap") < 1e-5 < 1e-3 < leaking.mean("test", "gap")
    assert result.facts["model"] == "decoder" and result.recipe.weight_decay == 0.01
    assert "LEAKS" in str(result)


def test_errors_of_text_tasks() -> None:
    with pytest.raises(UsageError, match="pools nothing; got pooling='mean'"):
        Build(depth=1, d=8, h=2, pooling="mean").model(task("iid", train=4000), 0)
    with pytest.raises(UsageError, match="test must be a whole number, 1 or more; got 0"):
        task("pydoc", test=0)
    with pytest.raises(UsageError, match=r"there must be 5017 tokens or more to look at.* there are 4096 of 4096"):
        task("iid", memory=5000)
    assert task("pydoc", memory=9000).evaluated["train"] == 9065  # more than usual, for the windows are longer
    with pytest.raises(UsageError, match="stride must be at most 128"):
        task("pydoc", stride=129)
    with pytest.raises(UsageError, match="a decoder has no memory; got memory 64"):
        task("pydoc", model="decoder", memory=64)
    with pytest.raises(UsageError, match="causal say how a remedy acts; none was named, and got 'leak'"):
        Build(causal="leak")
    with pytest.raises(LookupError, match="choice of causal"):
        Build(remedy="de_escalate", causal="lek")
    with pytest.raises(UsageError, match="segment must be a whole number, 2 or more; got 1"):
        task("iid", segment=1)
    with pytest.raises(LookupError, match="transformer_xl"):
        task("iid", model="transformer")


def test_a_run_does_not_go_on_with_another_vocabulary(tmp_path: Path) -> None:
    build, recipe = Build(depth=1, d=8, h=2, q=8), Recipe(epochs=1, batch=4)
    sizes = {"train": 1000, "valid": 256, "test": 256, "epoch_tokens": 128, "segment": 8}
    train(build, task("iid", **sizes), recipe, folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"fingerprint: .* became .*another vocabulary"):
        train(build, task("iid", vocabulary=9, **sizes), recipe, folder=tmp_path)


def test_a_sliding_window_sees_more_than_segments_and_says_the_same_of_nothing_learned() -> None:
    """On independent tokens context is worth nothing, so both ways of reading give the loss of the same predictor."""
    sizes = {"train": 1000, "valid": 256, "test": 400, "segment": 8, "memory": 8}
    slides, reads = (task("iid", stride=stride, **sizes) for stride in (4, None))
    model, _ = Build(depth=1, d=8, h=2, q=8).model(reads, 0)
    where: dict[str, Any] = {"device": torch.device("cpu"), "part": (0, 1), "total": lambda sums: sums, "final": False}
    losses = [one.evaluate(model, "test", **where)["loss"] for one in (slides, reads)]
    assert losses[0] == pytest.approx(losses[1], abs=0.05) and losses[0] != losses[1]
    rows = in_rows(reads.corpus.test, 8)
    with evaluating(model):
        literal = float(loss_in_window(model, rows, 16, 4)) / (rows.shape[0] * (rows.shape[1] - 1))
    assert losses[0] == pytest.approx(literal, rel=1e-9)


def test_chance_is_over_the_tokens_that_are_scored() -> None:
    """The literal cross-entropy of the test tokens under the train split's frequencies, each token seen once more."""
    for count in (None, 4000):
        text = task("pydoc", test=count)
        seen = Counter(text.corpus.train.tolist())
        scored = text.corpus.test[:count].tolist()
        total = len(text.corpus.train) + text.corpus.vocabulary
        literal = -sum(math.log((seen[token] + 1) / total) for token in scored) / len(scored)
        assert text.facts["chance"] == pytest.approx(literal, rel=1e-9)


def test_bits_are_per_character_of_what_is_scored(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("".join(f"word{'s' * (i % 7)} and {i * i} more\n" for i in range(4000)))
    text = task("text", data=file, level="bpe", vocabulary=300, test=600)
    decoded = text.corpus.decode(text.corpus.test[:600])
    assert text.facts["characters_per_token"] == pytest.approx(len(decoded) / 600)
    assert task("iid").facts["characters_per_token"] is None  # these tokens are no text


def test_a_feed_forward_network_is_twice_as_wide_wherever_the_width_is_said() -> None:
    assert Build(d=48).q == 96 and Build(d=48, q=50).q == 50 and replace(Build(d=48), depth=3).q == 96


def test_memory_is_dropped_where_the_text_begins_anew() -> None:
    """The loss of the first step of a pass is that of a model without memory; of the second it is not."""
    text, recipe = tiny_text(), Recipe(batch=5, epochs=5, lr=1e-3)
    with accelerated(recipe, parallel="ddp", processes=None, log_with=None, folder=None) as accelerator:
        model, _ = Build(depth=2, d=8, h=2, q=8).model(text, 0)
        stepper = Stepper(accelerator, model, recipe, text)
        begins = stepper.batches.steps
        for step in range(begins + 2):
            inputs, targets = stepper.batches.at(step)
            with torch.no_grad():
                alone = float(text.losses(model, inputs, targets, None)[0]) / targets.numel()
            loss = stepper.gradient(step)
            assert (loss == pytest.approx(alone, abs=1e-6)) == (step % begins == 0), step
            stepper.update(step)
    assert begins == 13


def test_biases_start_where_it_is_said() -> None:
    build = Build(depth=1, d=8, h=2, q=8)
    plain, told = (build.model(task("pydoc", bias=bias), 0)[0] for bias in ("zero", "frequencies"))
    assert not plain.vocabulary.biases[0].any() and torch.equal(plain.vocabulary.tables[0], told.vocabulary.tables[0])
    counts = task("pydoc").corpus.train.bincount(minlength=103) + 1.0
    torch.testing.assert_close(told.vocabulary.biases[0].detach(), (counts / counts.sum()).log())
    with pytest.raises(LookupError, match="frequencies"):
        task("pydoc", bias="frequency")
