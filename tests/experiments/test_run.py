"""Finding, configuring, running and saving experiments."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import depthscope as ds
from depthscope.errors import RecordError, UnknownNameError, UsageError
from depthscope.experiments import run
from depthscope.experiments.progress import track
from depthscope.experiments.run import configured, find, module_of, plain, plan, run_one
from loops import over

SMALL = {"n": 6, "d": 8, "trials": 20}
QUICK = "yu2023/proposition_2_3"


def test_names_are_found_by_item_paper_and_all() -> None:
    assert find(QUICK) == [QUICK]
    assert find("all") == ds.experiments.names()
    assert find("yu2023") == [name for name in find("all") if name.startswith("yu2023/")]
    assert {"yu2023/fig1", "yu2023/fig2", "yu2023/fig3", "yu2023/fig4", "yu2023/fig5", "yu2023/fig8"} <= set(
        find("all")
    )


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"no experiment is called 'yu2023/fig9'\. Did you mean yu2023/fig"):
        ds.reproduce("yu2023/fig9")


def test_reproduce_gives_claims_numbers_and_a_figure() -> None:
    result = ds.reproduce(QUICK, smoke=True, **SMALL)
    assert result.name == QUICK and result.config.trials == 20 and result.holds
    assert len(result.numbers["r"]) == 20
    assert len(result.figure().axes) == 2


def test_a_paper_gives_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find", lambda name: [QUICK])
    assert [r.name for r in ds.reproduce("yu2023", smoke=True, **SMALL)] == [QUICK]


def test_the_seed_decides_and_the_callers_random_state_stays() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    results = [ds.reproduce(QUICK, seed=seed, **SMALL).numbers["r"] for seed in (3, 3, 4)]
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert torch.equal(before, torch.get_rng_state())


@over(
    "settings, error, message",
    [
        ({"depth": 0}, UsageError, r"yu2023/fig2: depth must be 2 or more; got 0\."),
        ({"trials": -1}, UsageError, r"trials must be 2 or more; got -1"),
        ({"alpha": math.nan}, UsageError, r"alpha must be like 1\.0; got nan"),
        ({"alpha": 1e300}, UsageError, r"alpha must be like 1\.0; got 1e\+300"),
        ({"seed": 2**63}, UsageError, r"seed must be below 2\^63"),
        ({"seed": -1}, UsageError, r"seed must be 0 or more; got -1"),
        ({"depth": "ten"}, UsageError, r"depth must be like 20; got 'ten'"),
        ({"depth": 2.5}, UsageError, r"depth must be like 20; got 2\.5"),
        ({"depth": True}, UsageError, r"depth must be like 20; got True"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        configured("yu2023/fig2", module_of("yu2023/fig2").Config(), settings)


def test_one_number_of_heads_can_be_drawn(tmp_path: Path) -> None:
    ds.reproduce("yu2023/proposition_2_9", smoke=True, heads=[2], cases=2, draws=10, out=tmp_path)


def test_a_setting_of_a_paper_goes_where_it_is_known() -> None:
    planned = dict(plan("yu2023", smoke=True, depth=7))
    assert planned["yu2023/fig2"].depth == 7 and not hasattr(planned["yu2023/lemma_2_4"], "depth")
    with pytest.raises(UnknownNameError, match=r"yu2023: no setting is called 'dept'\. Did you mean depth"):
        plan("yu2023", dept=7)


def test_small_sizes_do_not_overwrite_the_papers(tmp_path: Path) -> None:
    ds.reproduce(QUICK, out=tmp_path, **SMALL)
    ds.reproduce(QUICK, smoke=True, out=tmp_path, **SMALL)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["yu2023", "yu2023_smoke"]
    record = json.loads((tmp_path / "yu2023_smoke" / "results.json").read_text())["experiments"]["proposition_2_3"]
    assert record["smoke"] and record["torch"] == torch.__version__ and record["depthscope"] == ds.__version__


def test_a_whole_number_will_do_for_a_number_and_a_list_for_a_tuple() -> None:
    assert configured("yu2023/fig2", module_of("yu2023/fig2").Config(), {"alpha": 2}).alpha == 2
    assert configured("yu2023/fig5", module_of("yu2023/fig5").Config(), {"taus": [0.2, 1]}).taus == (0.2, 1)


@over(
    "name, settings, message",
    [
        ("yu2023/fig2", {"d": 100}, r"heads must divide the width; got d = 100 and h = 8\. Try d = 96"),
        ("yu2023/fig2", {"alpha": 0.0}, r"alpha must be positive and finite; got 0\.0"),
        ("yu2023/fig5", {"taus": (0.1, 1.5)}, r"tau must lie in \[0, 1\]; got 1\.5"),
        ("yu2023/remark_2_8", {"alphas": (-1.0,)}, r"alpha must lie in \(0, inf\); got -1"),
        ("yu2023/remark_2_8", {"alphas": (0.001,)}, r"alpha must lie about in \[0\.1, 20\]; got 0\.001: \d+ blocks"),
        ("yu2023/remark_2_8", {"alphas": []}, r"alphas must be like \(0\.5, 1\.0, 2\.0\); got \(\)"),
        ("yu2023/fig5", {"taus": ["a"]}, r"taus must be like .* got \('a',\)"),
        ("yu2023/fig5", {"taus": 0.5}, r"taus must be like .* got 0\.5"),
        ("yu2023/fig8", {"widths": [10.5]}, r"widths must be like .* got \(10\.5,\)"),
        ("yu2023/fig8", {"widths": [0]}, r"widths must be 1 or more; got \(0,\)"),
        ("yu2023/proposition_2_9", {"heads": [3]}, r"heads must divide the width; got d = 16 and h = 3"),
        ("yu2023/section_2_3", {"similarities": [0.5, 1.5]}, r"similarities must lie in \(0, 1\) and reach 0\.99"),
        ("yu2023/fig1", {"h": 5}, r"heads must divide the width; got d = 96 and h = 5"),
    ],
)
def test_values_out_of_range_are_refused_where_they_are_used(name: str, settings: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ds.reproduce(name, smoke=True, **settings)


def test_results_are_kept_by_experiment(tmp_path: Path) -> None:
    ds.reproduce(QUICK, **SMALL).save(tmp_path)
    ds.reproduce("yu2023/corollary_2_7", pairs=10).save(tmp_path)
    ds.reproduce(QUICK, **(SMALL | {"trials": 30})).save(tmp_path)
    assert sorted(p.name for p in (tmp_path / "yu2023").iterdir() if p.suffix != ".lock") == [
        "corollary_2_7.png",
        "proposition_2_3.png",
        "results.json",
    ]
    record = json.loads((tmp_path / "yu2023" / "results.json").read_text())
    assert record["format"] == 1 and set(record["experiments"]) == {"proposition_2_3", "corollary_2_7"}
    assert record["experiments"]["proposition_2_3"]["config"]["trials"] == 30


def test_a_file_that_is_no_results_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "yu2023").mkdir()
    (tmp_path / "yu2023" / "results.json").write_text('{"mine": 1}')
    with pytest.raises(RecordError, match=r"must be a results\.json of format 1; it is not\. Move it away"):
        ds.reproduce(QUICK, **SMALL).save(tmp_path)
    assert (tmp_path / "yu2023" / "results.json").read_text() == '{"mine": 1}'


def test_a_figure_that_cannot_be_drawn_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module_of(QUICK), "draw", draw)
    with pytest.raises(KeyboardInterrupt):
        ds.reproduce(QUICK, **SMALL).save(tmp_path)
    assert not list(tmp_path.rglob("*.*"))


def test_an_interrupt_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds.reproduce(QUICK, **SMALL).save(tmp_path)
    before = {p.name: p.read_bytes() for p in (tmp_path / "yu2023").iterdir()}

    def savefig(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    result = ds.reproduce(QUICK, seed=1, **SMALL)
    monkeypatch.setattr(run.Reproduction, "draw", lambda self: SimpleNamespace(savefig=savefig))
    with pytest.raises(KeyboardInterrupt):
        result.save(tmp_path)
    assert {p.name: p.read_bytes() for p in (tmp_path / "yu2023").iterdir()} == before


def test_plain_numbers_for_json() -> None:
    assert plain(torch.tensor([[1.0, torch.nan], [torch.inf, 2.0]])) == [[1.0, "nan"], ["inf", 2.0]]


def test_a_listener_hears_every_turn() -> None:
    heard: list[tuple[int, int]] = []
    [(name, config)] = plan("yu2023/fig8", smoke=True, shapes=1)
    run_one(name, config, listener=lambda done, turns: heard.append((done, turns)))
    assert heard == [(0, 3), (1, 3), (2, 3)]
    assert list(track([1, 2], 2)) == [1, 2] and len(heard) == 3
