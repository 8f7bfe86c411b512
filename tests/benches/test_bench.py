"""A bench: fits on exact power laws, the record and what follows from it, cells that do not fit. No timings."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import depthscope as ds
from depthscope.benches import measure, run
from depthscope.benches.cell import Cell
from depthscope.benches.clock import clock_called
from depthscope.benches.grid import crossed, quick
from depthscope.benches.growth import fitted, growths
from depthscope.benches.record import Bench, Measured
from depthscope.benches.run import bench
from depthscope.errors import UsageError
from depthscope.reports.benches import compared, why

TINY = crossed(["encoder", "decoder"], [16], [6], [2], [2], [2])
CPU = torch.device("cpu")


def law(cell: Cell) -> float:
    return 1e-6 * cell.tokens**1.7 * cell.width**0.5 * cell.batch * cell.depth**1.25 * cell.heads**0.3


def test_a_power_law_is_found_exactly() -> None:
    for cells in (quick(["encoder"]), crossed(["encoder"], [64, 128], [8, 16], [1, 2], [2, 4], [1, 2, 4])):
        found = fitted("encoder", "heads", [(cell, law(cell)) for cell in cells])
        assert found is not None and found.cells == len(cells) and not found.notes
        expected = {"n": 1.7, "d": 0.5, "batch": 1.0, "depth": 1.25, "heads": 0.3}
        assert found.exponents == pytest.approx(expected, abs=1e-9) and found.r2 == pytest.approx(1)


def test_a_size_that_does_not_vary_alone_has_no_exponent() -> None:
    cells = crossed(["encoder"], [128, 256, 512], [8, 16], [2], [2])  # heads go with the width
    found = fitted("encoder", "states", [(cell, law(cell)) for cell in cells])
    assert found is not None and found.exponents == pytest.approx({"n": 1.7, "d": 0.8}, abs=1e-9)
    assert found.notes == ["heads varies only together with n, d: it has no exponent of its own"]


def test_a_fit_says_how_well_it_fits_and_what_it_left_out() -> None:
    cells = crossed(["encoder"], [64], [8, 16, 32, 64], [1], [2])
    extras = [1.0, 3.0, 1.0, 3.0]
    found = fitted("encoder", "states", list(zip(cells, extras, strict=True)))
    assert found is not None and found.r2 == pytest.approx(0.2)  # slope 0.2 a step on a variance of 1: by hand
    found = fitted("encoder", "states", [*zip(cells, [1.0, 2.0, 4.0, 8.0], strict=True), (cells[0], -1.0)])
    assert found is not None and found.cells == 4 and found.notes == ["1 cells without extra time are left out"]
    assert found.exponents == pytest.approx({"n": 1.0})
    assert fitted("encoder", "states", [(cells[0], 1.0), (cells[1], 2.0)]) is None
    assert fitted("encoder", "states", []) is None and growths([]) == []


def test_ratios_are_of_the_fastest_and_the_spread_is_of_rounds() -> None:
    times = {"plain": [2.0, 1.0, 4.0], "states": [2.2, 2.0, 4.0], "heads": [3.0, 6.0, 6.0]}
    one = Measured(TINY[0], times)
    assert one.ratio("states") == 2.0 and one.spread("states") == (1.0, 2.0) and one.extra("states") == 1.0
    assert one.ratio("heads") == 3.0 and one.spread("heads") == (1.5, 6.0) and one.above("heads")
    assert not replace(one, times=times | {"states": [1.05, 2.0, 4.0]}).above("states")


@pytest.fixture(scope="module")
def tiny() -> Bench:
    return bench(TINY, threads=1, repeats=2, memory=False)


def test_every_cell_is_measured_and_explained(tiny: Bench) -> None:
    assert {one.cell for one in tiny.cells} == set(TINY) and not tiny.not_measured
    assert {one.cell.kind for one in tiny.smallest} == {"encoder", "decoder"}
    for one in tiny.cells:
        assert [len(times) for times in one.times.values()] == [2, 2, 2] and list(one.times) == [
            "plain",
            "states",
            "heads",
        ]
        assert set(one.parts) == {side for side in ("states", "heads") if one.above(side)}
        for side, parts in one.parts.items():
            inside = parts.products + parts.memory + parts.decompositions + parts.calls
            assert inside + parts.outside == pytest.approx(one.extra(side))
            assert parts.operators > 0 and parts.bytes > 0 and parts.fixed > 0
            assert str(one.cell) in why(one, side) and "%" in why(one, side)


def test_a_record_is_written_read_and_shown_in_80_columns(tiny: Bench, tmp_path: Path) -> None:
    again = ds.load(tiny.save(tmp_path / "b.json"))
    assert isinstance(again, Bench) and again.to_dict() == tiny.to_dict()
    written = json.loads((tmp_path / "b.json").read_text())
    assert written["cells"][0]["ratio"]["heads"] == tiny.cells[0].ratio("heads") and written["aims"]["memory"] == 1.05
    assert max(map(len, str(tiny).splitlines())) <= 80
    wide = replace(
        tiny.cells[0],
        cell=Cell("encoder", 1024, 2048, 8, 48, 16),
        times={"plain": [99.9], "states": [110.5], "heads": [199.9]},
    )
    table = str(replace(tiny, cells=[wide])).splitlines()
    assert any("8 x 2048" in line and "1.11* 1.11-1.11 2.00* 2.00-2.00" in line for line in table)


def test_before_and_after(tiny: Bench) -> None:
    slow = [replace(one, times=one.times | {"heads": [10 * t for t in one.times["heads"]]}) for one in tiny.cells]
    rows = compared(replace(tiny, cells=[slow[0]]), tiny).cells
    assert len(rows) == 1 and rows[0][0] == str(tiny.cells[0].cell)
    assert float(rows[0][3].rstrip("* ")) == pytest.approx(10 * float(rows[0][4].rstrip("* ")), rel=0.01)


def test_what_does_not_fit_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Cell("encoder", 64, 4096, 64, 12, 16)
    monkeypatch.setattr(run, "free_memory", lambda device: 2.0**30)
    found = bench([TINY[0], large], threads=1, repeats=1, memory=False)
    assert [one.cell for one in found.cells] == [TINY[0]] and [one.cell for one in found.not_measured] == [large]
    assert "GiB; 1.0 are free" in found.not_measured[0].why and str(large) in str(found).replace("\n", " ")
    monkeypatch.setattr(run, "free_memory", lambda device: None)
    found = bench([TINY[0], large], threads=1, repeats=1, memory=False, budget=20)
    assert [one.cell for one in found.not_measured] == [large] and "are left" in found.not_measured[0].why
    assert found.not_measured[0].shallow is None  # two of its blocks take too long as well


def test_cells_that_take_too_long_are_told_by_two_of_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (Cell("encoder", 16, 6, 2, depth, 2) for depth in (12, 48))
    monkeypatch.setattr(run._Run, "expected", lambda self, cell: 1e9 if cell.depth > 2 else 1e-9)
    found = bench([short, long], threads=1, repeats=1, memory=False, budget=60)
    assert [one.cell for one in found.not_measured] == [short, long] and not found.cells
    first, second = (one.shallow for one in found.not_measured)
    assert first is second and first is not None and first.cell == replace(short, depth=2)
    assert f"2 of its blocks: states {first.ratio('states'):.2f}" in str(found).replace("\n", " ")


def test_memory_is_measured_from_the_least_to_the_most(tiny: Bench) -> None:
    cells = [replace(tiny.cells[0], cell=Cell("encoder", 16, n, 2, 2, 2)) for n in (40, 8, 16, 24, 32)]
    assert [one.cell.tokens for one in run._small_to_large(cells)] == [8, 24, 40]
    assert run._small_to_large(cells[:1]) == cells[:1]


def test_long_rounds_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    how = {"now": clock_called("cpu", CPU), "device": CPU, "repeats": 4}
    assert len(measure.measured(TINY[0], **how).times["plain"]) == 4  # type: ignore[arg-type]
    monkeypatch.setattr(measure, "LONG", 0.0)
    assert len(measure.measured(TINY[0], **how).times["plain"]) == 2  # type: ignore[arg-type]


def test_memory_that_runs_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(cell: Cell, **how: object) -> Measured:
        if cell == TINY[1]:
            raise torch.OutOfMemoryError("no room for it")
        return measure.measured(cell, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "measured", fails)
    found = bench(TINY, threads=1, repeats=1, memory=False)
    assert len(found.cells) == 1 and found.not_measured[0].why == "memory ran out: no room for it"


def test_sequences_that_a_scan_leaves_out_are_told() -> None:
    model, X = ds.models.classic(depth=1, d=16, h=2), torch.randn(2, 6, 16)
    scan = ds.scan(model, X)
    assert measure.left_out_of(scan) == ""
    noted = replace(scan, notes=["delta and lambda_2 are from 1 of 4 sequences, to save time"])
    assert measure.left_out_of(noted) == "delta and lambda_2 are from 1 of 4 sequences"


def test_refusals() -> None:
    with pytest.raises(UsageError, match="bench: there must be a cell to measure; got none"):
        bench([])
    for name, value in (("repeats", 0), ("threads", 0), ("budget", -5)):
        with pytest.raises(UsageError, match=f"bench: {name} must be 1 or more; got {value}"):
            bench(TINY, **{name: value})
    with pytest.raises(UsageError, match="--clock must be wall or cpu; got 'sun'"):
        clock_called("sun", CPU)
    with pytest.raises(UsageError, match="--clock cpu counts the time of processors; got --device cuda"):
        clock_called("cpu", torch.device("cuda"))


@pytest.mark.long
def test_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    found = bench(TINY[:1], threads=before + 1, repeats=1, memory=False)
    assert found.threads == before + 1 and torch.get_num_threads() == before


@pytest.mark.long
def test_peaks_come_from_processes_of_their_own() -> None:
    from depthscope.benches.peak import can_be_read, peaks_of

    if not can_be_read(CPU):
        pytest.skip("the mark of the peak cannot be wiped here")
    peak = peaks_of(TINY[0], CPU, 1)
    assert list(peak.mib) == ["plain", "states", "heads"] and all(50 < mib < 5000 for mib in peak.mib.values())
    assert peak.ratio("heads") == peak.mib["heads"] / peak.mib["plain"] and math.isfinite(peak.once)
