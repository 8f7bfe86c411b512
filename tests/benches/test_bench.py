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
from depthscope.benches.grid import crossed, full, quick
from depthscope.benches.growth import fitted, growths
from depthscope.benches.record import Bench, Measured
from depthscope.benches.run import bench
from depthscope.benches.shares import shares
from depthscope.errors import UsageError
from depthscope.reports.benches import compared, made_of

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
    return bench(TINY, threads=1, repeats=2, clock="cpu", memory=False)


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
            found = shares([one], side)
            assert found.products + found.memory + found.calls + found.outside == pytest.approx(1)
            assert found.operators == pytest.approx(parts.operators / (2 * 2 * 6 * 16 / 1e6))  # depth, batch, n, d


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
    assert any("8 x 2048" in line and "1.11* once 2.00* once" in " ".join(line.split()) for line in table)
    few = str(replace(tiny, cells=[replace(wide, ran=2)]))
    assert any("2 of 48" in line and "<1.11" in line and "<1.11*" not in line for line in few.splitlines())
    assert "cells meet the aim" not in few and "upper bounds" in " ".join(few.split())  # nothing ran whole


def test_before_and_after(tiny: Bench) -> None:
    slow = [replace(one, times=one.times | {"heads": [10 * t for t in one.times["heads"]]}) for one in tiny.cells]
    rows = compared(replace(tiny, cells=[slow[0]]), tiny).cells
    assert len(rows) == 1 and rows[0][0] == str(tiny.cells[0].cell)
    assert compared(replace(tiny, cells=[replace(slow[0], ran=1)]), tiny).cells == []  # other work
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


def test_what_extra_time_is_made_of_is_told_by_size(tiny: Bench) -> None:
    """Cells of one kind, width and length are one row, whose shares are of their seconds together."""
    one = next(cell for cell in tiny.cells if "heads" in cell.parts)
    more = replace(one, cell=replace(one.cell, batch=3), times={name: [9.0] for name in one.times} | {"heads": [99.0]})
    grid = made_of(replace(tiny, cells=[one, more]))[1]
    heads = [row[:4] for row in grid.cells if row[0] == "heads"]  # type: ignore[union-attr]
    assert heads == [["heads", one.cell.kind, "16", "6"]]
    twice = [one, more, replace(more, cell=replace(more.cell, depth=48), ran=more.cell.depth)]  # ran once
    assert made_of(replace(tiny, cells=twice))[1].cells == grid.cells  # type: ignore[union-attr]
    both = shares([one, more], "heads")
    assert both.calls == pytest.approx(2 * one.parts["heads"].calls / (one.extra("heads") + 90.0))
    assert made_of(replace(tiny, cells=[replace(one, parts={})])) == []


def test_cells_that_take_too_long_are_told_by_a_few_of_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (Cell("encoder", 16, 6, 2, depth, 2) for depth in (12, 48))
    for most in (2, 1):
        monkeypatch.setattr(run._Run, "expected", lambda self, cell, most=most: 1e9 if cell.depth > most else 1e-9)
        found = bench([short, long], threads=1, repeats=1, memory=False, budget=60)
        assert not found.not_measured and [one.cell for one in found.cells] == [short, long]
        assert [one.ran for one in found.cells] == [most, most] and found.at(long).times == found.at(short).times  # type: ignore[union-attr]
        rows = [line.split() for line in str(found).splitlines() if line.startswith("encoder")]
        assert rows[1][6:9] == [str(most), "of", "48"]


def test_time_is_kept_for_one_block_of_all_cells_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = crossed(["encoder"], [16], [6, 7, 8], [1], [12], [2])
    monkeypatch.setattr(run._Run, "expected", lambda self, cell: {12: 40.0, 2: 35.0, 1: 10.0}[cell.depth])
    found = bench(cells, threads=1, repeats=1, clock="cpu", memory=False, budget=70)  # 7 of them are for peaks
    assert [one.ran for one in found.cells] == [None, None, None]  # 40 and 20, 40 and 10, 40: the clock hardly moves
    found = bench(cells, threads=1, repeats=1, clock="cpu", memory=False, budget=64)
    assert [one.ran for one in found.cells] == [2, None, None]  # 55 of the 57.6 that are left with the two to come


def test_the_full_grid_ends_within_forty_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that is turned by hand: a processor of 90 GFLOPS, and 25 ns an entry of P. Every cell has a number."""
    spent = [0.0]

    def played(cell: Cell, *, repeats: int, **how: object) -> Measured:
        plain = cell.forward_flops / 90e9 + 4e-4 * cell.depth
        states = 1.1 * plain + 1.5e-3 * cell.depth + 5e-3
        heads = states + cell.depth * (25e-9 * cell.batch * cell.heads * cell.tokens**2 + 3e-3)
        one = plain + states + heads
        spent[0] += one * (1 if one > measure.ONCE else repeats + 1)
        return Measured(cell, {"plain": [plain], "states": [states], "heads": [heads]})

    monkeypatch.setattr(run, "measured", played)
    monkeypatch.setattr(run, "clock_called", lambda name, device: lambda: spent[0])
    monkeypatch.setattr(run, "operations_per_second", lambda device: 90e9)
    monkeypatch.setattr(run, "free_memory", lambda device: None)
    found = bench(full(), threads=1, repeats=2, clock="cpu", budget=2400, memory=False)
    assert len(found.cells) == 150 and not found.not_measured and 1200 < spent[0] < 2400
    few = [one.cell for one in found.cells if one.ran is not None]
    assert (
        few and min(cell.forward_flops for cell in few) > 1e11
    )  # a second of products: what a scan does once is little


def test_a_fit_takes_what_ran_once(tiny: Bench) -> None:
    one = tiny.cells[0]
    cells = [
        replace(one, cell=replace(one.cell, depth=depth, tokens=n), times={"plain": [1.0], "states": [1.0 + n], "heads": [1.0 + n]}, ran=ran)
        for n in (4, 8, 16) for depth, ran in ((2, None), (12, 2), (48, 2))
    ]  # fmt: skip
    fits = growths(cells)
    assert [fit.cells for fit in fits] == [3, 3] and fits[0].exponents == pytest.approx({"n": 1.0})


def test_memory_is_measured_from_the_least_to_the_most(tiny: Bench) -> None:
    cells = [replace(tiny.cells[0], cell=Cell("encoder", 16, n, 2, 2, 2)) for n in (40, 8, 16, 24, 32)]
    assert [one.cell.tokens for one in run._small_to_large(cells)] == [8, 24, 40]
    assert run._small_to_large(cells[:1]) == cells[:1]


def test_long_rounds_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    how = {"now": clock_called("cpu", CPU), "device": CPU, "repeats": 4}
    assert len(measure.measured(TINY[0], **how).times["plain"]) == 4  # type: ignore[arg-type]
    monkeypatch.setattr(measure, "LONG", 0.0)
    assert len(measure.measured(TINY[0], **how).times["plain"]) == 2  # type: ignore[arg-type]
    monkeypatch.setattr(measure, "ONCE", 0.0)
    once = measure.measured(TINY[0], **how, fixed={"states": 0.0, "heads": 0.0})  # type: ignore[arg-type]
    assert [len(times) for times in once.times.values()] == [1, 1, 1] and once.parts["heads"].operators > 0


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
    for name, value in (("repeats", 0), ("threads", 0), ("budget", -5), ("budget", math.nan)):
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
