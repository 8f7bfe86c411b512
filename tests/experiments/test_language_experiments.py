"""Figure 7 and causal de-escalation: whose rate is chosen how, which text is read, claims that fail without the effect."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from depthscope.errors import UsageError
from depthscope.experiments import rates
from depthscope.experiments.beyond import causal_de_escalation, causal_escalation
from depthscope.experiments.races import Race, draw_bands, line_style, loss_by_frequency
from depthscope.experiments.rates import best, run_at_best_rates, runs_at_best_rates
from depthscope.experiments.run import configured
from depthscope.experiments.yu2023 import fig7
from depthscope.models.transformer import classic
from depthscope.training.arms import arm, arms
from depthscope.training.build import Build
from depthscope.training.lane import Lane
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from depthscope.training.tasks.pydoc import pydoc_corpus
from loops import over


def lane_of(text: str, seeds: Any, valid: float, status: str = "done") -> Lane:
    """An arm with made-up runs of one validation loss."""
    one = arm(text)
    runs = {seed: Run(Build(), Recipe(seed=seed), "pydoc", "f", status, reason=status) for seed in seeds}
    for run in runs.values():
        run.final["valid"] = {"loss": valid}
    return Lane(one, one.lr or 0.0, runs, {})


def test_the_best_rate_has_the_least_validation_loss_and_a_run_that_broke_is_behind() -> None:
    tried = [lane_of("pre_norm@0.1", [0], 0.5, "diverged"), lane_of("pre_norm@0.01", [0], 2.0), lane_of("pre_norm@0.001", [0], 1.5)]  # fmt: skip
    found = best(tried)
    assert found.lr == 0.001
    assert [(trial["lr"], trial["valid_loss"]) for trial in found.trials] == [
        (0.1, math.inf),
        (0.01, 2.0),
        (0.001, 1.5),
    ]
    assert best(tried[:1]).lr == 0.1  # nothing else is there
    assert best([lane_of("pre_norm@0.1", [0], math.nan), tried[1]]).lr == 0.01


def test_each_arm_goes_on_with_its_own_rate_and_no_seed_is_trained_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, progress = [], []

    def made_up(race: Race, *, done: int, total: int) -> list[Lane]:
        asked.append((list(race.arms), list(race.seeds)))
        progress.append((done, total))
        good = {"post_norm@0.0003", "pre_norm@0.001"}
        return [lane_of(text, race.seeds, 1.0 if text in good else 2.0) for text in race.arms]

    monkeypatch.setattr(rates, "run_race", made_up)
    race = Race(("post_norm", "pre_norm"), (3, 4, 5), {}, {})
    lanes = run_at_best_rates(race, (3e-4, 1e-3))
    assert asked == [
        (["post_norm@0.0003", "post_norm@0.001", "pre_norm@0.0003", "pre_norm@0.001"], [3]),
        (["post_norm@0.0003", "pre_norm@0.001"], [4, 5]),
    ]
    assert [lane.lr for lane in lanes] == [3e-4, 1e-3] and [[*lane.runs] for lane in lanes] == [[3, 4, 5]] * 2
    assert progress == [(0, 8), (4, 8)] and runs_at_best_rates(race, (3e-4, 1e-3)) == 8


def test_one_seed_needs_no_second_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "run_race", lambda race, **_: [lane_of(text, race.seeds, 1.0) for text in race.arms])
    (lane,) = run_at_best_rates(Race(("pre_norm",), (0,), {}, {}), (1e-3, 3e-3))
    assert lane.lr == 1e-3 and [*lane.runs] == [0]


def test_arms_are_what_they_are_called() -> None:
    for name, text in fig7.ARMS.items():
        one = arm(text)
        assert (one.causal == "leak") == ("LEAKS" in name) and one.at == ("ffn_in" if one.remedy else None)
        assert one.settings.get("form", name) == name
    cfg = causal_de_escalation.Config()
    named = causal_de_escalation.arms(cfg)
    assert len(arms(list(named.values()))) == 9 and {arm(text).causal for text in named.values()} == {"auto"}
    assert arm(named["at sa_sum"]).at == "sa_sum" and arm(named["form past"]).settings == {"tau": 1, "form": "past"}
    assert arm(named["tau 0.3"]).settings == {"tau": 0.3, "form": "sink"} and arm(named["tau 0.3"]).at == "ffn_in"
    assert len(causal_de_escalation.race(cfg, 24).arms) == 9 and len(causal_de_escalation.race(cfg, 48).arms) == 3
    runs = [runs_at_best_rates(causal_de_escalation.race(cfg, depth), cfg.rates) for depth in (12, 24, 48)]
    assert sum(runs) == 60


def test_the_data_decide_the_sizes(tmp_path: Path) -> None:
    here = fig7.race(fig7.Config())
    assert here.task == "pydoc" and here.model["depth"] == 24 and "data" not in here.options
    paper = fig7.race(fig7.Config(data="wikitext103"))
    assert paper.model == {"depth": 60, "d": 410, "h": 10, "q": 820, "weights": "bert"}
    assert paper.options == {"segment": 150, "memory": 150} and here.model["weights"] == "torch_default"
    assert paper.recipe == {"epochs": 3, "batch": 40, "lr": 2.5e-4, "schedule": "cosine", "weight_decay": 0}
    assert round(3 * 103_227_021 / (40 * 150), -3) == 52_000  # the paper's 50,000 steps
    words = fig7.race(fig7.Config(data="wikitext2", source="some/folder", depth=60, test=500))
    assert words.task == "wikitext2" and words.model["depth"] == 60
    assert words.options["data"] == "some/folder" and words.options["test"] == 500
    (tmp_path / "a.txt").write_text("text")
    own = fig7.race(fig7.Config(data=str(tmp_path / "a.txt")))
    assert own.task == "text" and own.options["data"] == str(tmp_path / "a.txt") and own.model["depth"] == 24


def test_data_that_are_not_there_are_told() -> None:
    with pytest.raises(
        UsageError, match="data must be pydoc, wikitext2, wikitext103 or a text file that exists; got 'x'"
    ):
        fig7.race(fig7.Config(data="x"))
    with pytest.raises(UsageError, match="source says where WikiText is; the data are 'pydoc'"):
        fig7.race(fig7.Config(source="folder"))
    with pytest.raises(UsageError, match="lengths must be 17 or more"):
        configured("beyond/causal_escalation", causal_escalation.Config(), {"lengths": 16})


def test_the_loss_by_frequency_is_that_of_counts() -> None:
    corpus = pydoc_corpus()
    counts, known = Counter(corpus.train.tolist()), corpus.vocabulary
    test = corpus.test[: fig7.SMOKE.test].tolist()  # those that are looked at
    expected = -sum(math.log((counts[i] + 1) / (len(corpus.train) + known)) for i in test) / len(test)
    assert loss_by_frequency(fig7.race(fig7.SMOKE)) == pytest.approx(expected, abs=1e-9)


def test_text_has_its_own_line_and_colours_that_come_again_are_dashed() -> None:
    lines: list[float] = []
    styles: list[tuple[str, str]] = []
    ax = SimpleNamespace(
        plot=lambda *_, color, ls, **__: styles.append((color, ls)),
        fill_between=lambda *_, **__: 0,
        axhline=lambda height, **_: lines.append(height),
    )
    draw_bands(ax, torch.arange(3), torch.ones(7, 3, 3), [*"abcdefg"], chance=3.25)
    assert lines == [3.25] and len({*styles}) == 7
    assert line_style(5) == {**line_style(0), "ls": "--"}


def failed(module: Any, numbers: dict[str, Any], cfg: Any, *, known: bool = False) -> list[str]:
    """What does not hold and was expected to; known: whatever does not hold."""
    tensors = {name: torch.as_tensor(value) for name, value in numbers.items()}
    return [claim.says for claim in module.claims(tensors, cfg) if (known or claim.expected) and not claim.holds]


FIG7 = {  # of the notes before: post, pre, whole segment, sink, prefix, past
    "train_loss": [[3.2], [2.50], [1.9], [2.51], [2.53], [2.53]],
    "test_loss": [[3.1], [2.34], [1.86], [2.41], [2.42], [2.43]],
    "honest": [[3.1], [2.47], [2.80], [2.50], [2.49], [2.50]],
    "gap": [[0.0], [1e-8], [0.91], [1e-8], [0.0], [0.0]],
    "step": [0, 255],
}


@over(
    "name, place, value, says",
    [
        ("gap", 3, 0.01, "all but one"),
        ("gap", 1, math.nan, "all but one"),
        ("train_loss", 0, 2.0, "post-norm minus whole segment"),
        ("gap", 2, 0.05, "whole segment: they are apart"),
        ("train_loss", 2, 2.45, "it seems better"),
        ("honest", 2, 2.4, "it is worse"),
    ],
)
def test_figure_7_fails_where_the_effect_is_absent(name: str, place: int, value: float, says: str) -> None:
    cfg = fig7.Config(trials=1)
    assert failed(fig7, FIG7, cfg) == []
    changed = [row if i != place else [value] for i, row in enumerate(FIG7[name])]
    assert [says in one for one in failed(fig7, FIG7 | {name: changed}, cfg)] == [True]


def test_a_post_norm_that_ends_in_nan_has_failed_and_does_not_leak() -> None:
    lost = {name: [[math.nan], *FIG7[name][1:]] for name in ("train_loss", "test_loss", "honest", "gap")}
    assert failed(fig7, FIG7 | lost, fig7.Config(trials=1)) == []


def test_a_few_steps_are_only_asked_who_leaks() -> None:
    numbers = FIG7 | {"step": [0, 15], "test_loss": [[5.0]] * 6, "gap": [[0.0], [0.0], [0.002], [0.0], [0.0], [0.0]]}
    assert failed(fig7, numbers, fig7.SMOKE) == []
    assert len(failed(fig7, numbers | {"gap": [[0.0]] * 6}, fig7.SMOKE)) == 1


FOUND = {  # post, pre, middle, prefix, past, block_out, sa_sum, tau 0.5, tau 0.3
    "test_loss": [[2.6], [2.35], [2.40], [2.41], [2.42], [2.45], [2.43], [2.41], [2.44]],
    "depth_loss": [[[2.45], [2.36], [2.40]], [[2.6], [2.35], [2.40]], [[2.9], [2.38], [2.45]]],
    "gap": [0.0, 1e-8],
    "by_frequency": 3.25,
}


@over(
    "name, place, value, says",
    [
        ("gap", 1, 0.01, ["no arm sees the future"]),
        ("test_loss", 7, 2.9, ["the worst", "the taus are near", "better than post-norm"]),
        ("test_loss", 4, 2.5, ["the forms are alike"]),
        ("test_loss", 5, 2.61, ["the sites are near", "better than post-norm"]),
        ("depth_loss", 2, [[2.46], [2.38], [2.45]], ["48 blocks: post-norm", "falls further behind"]),
        ("depth_loss", 1, [[2.4], [2.35], [2.40]], ["24 blocks: post-norm"]),
        ("depth_loss", 2, [[2.9], [2.38], [2.6]], ["sink minus pre-norm"]),
    ],
)
def test_causal_de_escalation_fails_where_the_effect_is_absent(name: str, place: int, value: Any, says: list[str]) -> None:  # fmt: skip
    cfg = replace(causal_de_escalation.Config(), trials=1)
    assert failed(causal_de_escalation, FOUND, cfg, known=True) == []
    value = [value] if name == "test_loss" else value
    changed = FOUND | {name: [old if i != place else value for i, old in enumerate(FOUND[name])]}
    missed = failed(causal_de_escalation, changed, cfg, known=True)
    assert len(missed) == len(says) and all(part in one for part, one in zip(says, missed, strict=True))
    few = failed(causal_de_escalation, changed, replace(cfg, steps=10), known=True)
    assert few == (missed if name == "gap" else [])


@over("module, numbers, count", [(fig7, FIG7, 5), (causal_de_escalation, FOUND, 2)])
def test_what_is_claimed_of_a_whole_training_can_fail(module: Any, numbers: dict[str, Any], count: int) -> None:
    tensors = {name: torch.as_tensor(value) for name, value in numbers.items()}
    claims = [claim for claim in module.claims(tensors, replace(module.Config(), trials=1)) if claim.counted]
    assert len(claims) == count and all(claim.can_fail for claim in claims)


def test_the_diversity_of_prefixes_is_that_of_their_tokens() -> None:
    """Against the states of a model that is run block by block, and t_div written out."""
    cfg = replace(causal_escalation.SMOKE, depth=4)
    torch.manual_seed(5)
    found = causal_escalation._quantities(causal_escalation._scanned(cfg, "causal"), cfg)["prefix"]
    torch.manual_seed(5)
    model = classic(cfg.depth, cfg.d, cfg.h, q=2 * cfg.d, causal=True).eval()
    X = torch.randn(cfg.batch, cfg.n, cfg.d)
    with torch.no_grad():
        for state in range(cfg.depth + 1):
            for place, k in enumerate([2, 4, 8, 16, 32]):
                part = X[:, :k].double()
                centred = part - part.mean(1, keepdim=True)
                t_div = centred.square().sum((1, 2)) / part.square().sum((1, 2))
                assert float(found[state, place]) == pytest.approx(float(t_div.mean()), rel=1e-5)
            if state < cfg.depth:
                X = model.blocks[state](X)


def test_prefixes_end_with_all_tokens() -> None:
    assert causal_escalation.prefixes(32) == [2, 4, 8, 16, 32] and causal_escalation.prefixes(40) == [
        2,
        4,
        8,
        16,
        32,
        40,
    ]
    assert causal_escalation.uniform(3).tolist() == [[1, 0, 0], [0.5, 0.5, 0], pytest.approx([1 / 3] * 3)]
