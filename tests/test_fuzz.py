"""A few cases of every kind of the fuzz run (tools/fuzz), and the cases that it found."""

import sys
import warnings
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.fuzz import loaders, metrics, models, records, verbs  # noqa: F401
from tools.fuzz.case import KINDS, tried

import depthscope as ds
from depthscope.errors import RecordError, ShapeError
from depthscope.records import as_json
from depthscope.registry import TABLES
from loops import over
from record_examples import example

SLOW = ("folder_of_a_model", "forecasted", "experiment", "record_changed", "fix", "journal", "fixed")
ODD = ("scan_asked", "fix_asked", "sizes_asked")
few = settings(deadline=None, derandomize=True, max_examples=4, suppress_health_check=[*HealthCheck])
many = settings(few, max_examples=25)


def a_few(names: tuple[str, ...], number: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a damaged checkpoint, of formats of images
        for name in names:
            tried(name, number)


@few
@given(st.integers(0, 10**9))
def test_a_few_slow_cases_find_nothing(number: int) -> None:
    a_few(SLOW, number)


@few
@given(st.integers(0, 10**9))
def test_a_few_odd_questions_find_nothing(number: int) -> None:
    a_few(ODD, number)


@many
@given(st.integers(0, 10**9))
def test_some_quick_cases_find_nothing(number: int) -> None:
    a_few(tuple(name for name in KINDS if name not in SLOW + ODD), number)


def test_a_finding_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(error: Exception):
        def case(rng: Random) -> str:
            raise error

        return case

    for error in (KeyError("x"), RecordError("half a sentence without an end")):
        monkeypatch.setitem(KINDS, "broken", (raises(error), 1))
        with pytest.raises((KeyError, AssertionError)):
            tried("broken", 0)
    monkeypatch.setitem(KINDS, "broken", (raises(RecordError("The file is damaged.")), 1))
    assert tried("broken", 0) == "refused"


@over("how", models.SUMS)
@over("holder", models.HOLDERS)
def test_a_single_post_norm_block_ends_with_its_norm(how: str, holder: str) -> None:
    """There is no block before it whose end would be known; its first sum tells."""
    block = models.Block("post", "fused", how, torch.nn.RMSNorm, torch.nn.ReLU(), False)
    model, X = models.Model([block], holder, False, False).eval(), torch.randn(2, models.N, models.D)
    scan = ds.scan(model, X)
    truth = torch.tensor([models.t_sim(one) for one in model.states(X)], dtype=torch.float64)
    torch.testing.assert_close(scan["t_sim"], truth, rtol=1e-6, atol=1e-6)
    assert scan.placement == "post"


@over("name", sorted(TABLES["metric"]))
@over("shape", [(0, 3, 4), (1, 3, 0), (1, 0, 4)])
def test_tensors_with_nothing_in_them_are_refused_in_words(name: str, shape: tuple[int, ...]) -> None:
    b, n, d = shape
    data = {"X": torch.randn(shape), "Y": torch.randn(shape), "P": torch.ones(b, 2, n, n) / max(n, 1)}
    takes = TABLES["metric"][name].facts.takes
    if d == 0 and takes == ("P",):
        return  # there are no tokens in it
    with pytest.raises(ShapeError, match="must"):
        TABLES["metric"][name](*(data[one] for one in takes))


@over(
    "change",
    [
        {"depth": 5},
        {"depth": 0},
        {"dtype": "save"},
        {"dtype": "int64"},
        {"states": {"t_div": [0.5]}},
        {"steps": {}},
        {"head_counts": []},
        {"sizes": [[1]]},
        {"samples": -3},
        {"without_dropout": [[1.0]]},
        {"sequences": {"t_div": [[0.5]]}},
    ],
)
def test_a_scan_whose_parts_do_not_fit_is_refused_when_it_is_read(change: dict) -> None:
    with pytest.raises(RecordError, match=r"^Scan\..*: must be .*; got .* The file is damaged\.$"):
        ds.Scan.from_dict(example("scan").to_dict() | change)


def test_a_record_that_cannot_be_told_is_refused_when_it_is_read(tmp_path: Path) -> None:
    paths = example("paths")
    record = paths.to_dict() | {"norm": [1.0]}
    (tmp_path / "paths.json").write_text(as_json(record))
    with pytest.raises(RecordError, match=r"the parts of the PathLengths in .* must fit together; they do not"):
        ds.load(tmp_path / "paths.json")


def test_a_run_that_cannot_be_shown_is_refused_when_it_is_read(tmp_path: Path) -> None:
    """Its str is a line of its own, which does not look at all that is shown."""
    record = example("run").to_dict()
    record["evaluations"] = [{"step": 1, "split": -1, "loss": 0.5}]
    (tmp_path / "run.json").write_text(as_json(record))
    with pytest.raises(RecordError, match=r"the parts of the Run in .* must fit together; they do not"):
        ds.load(tmp_path / "run.json")


@over(
    "options",
    [
        {"metrics": ["xi"]},
        {"metrics": ["delta"]},
        {"attention": False},
        {"gradients": lambda out: out.square().mean()},
    ],
)
def test_a_scan_of_any_kind_fits_when_it_is_read_again(options: dict, tmp_path: Path) -> None:
    scan = ds.scan(ds.models.classic(depth=3, d=16, h=2).eval(), torch.randn(2, 9, 16), **options)
    assert ds.load(scan.save(tmp_path / "scan.json")).to_dict() == scan.to_dict()
