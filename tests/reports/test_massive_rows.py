"""Massive tokens in the table, the chart, the page and the picture; and nothing of them where there are none."""

import torch

import depthscope as ds
from depthscope.reports.rows import massive_at, massive_tokens, table
from depthscope.reports.show import text
from scans.played import gaussian, played, towards


def scans() -> tuple[ds.Scan, ds.Scan]:
    torch.manual_seed(0)
    plain = gaussian(2, 24, 32)
    massive = plain.clone()
    massive[:, 5] *= 200
    return played(towards(plain)), played(towards(massive))


def test_the_table_names_massive_tokens_and_shows_the_rest() -> None:
    plain, massive = scans()
    names, cells = table(massive)
    assert "rest" in names and f"block {massive.depth}: 5 x" in massive_tokens(massive)
    assert float(cells[-1][names.index("rest")]) == round(1 - float(massive["t_div_rest"][-1]), 3)
    assert not {"rest", "core"} & {*table(plain)[0]} and massive_tokens(plain) == ""
    assert massive_at(massive, 0) == ""


def test_no_number_is_cut_in_a_terminal_of_80_columns() -> None:
    _, massive = scans()
    shown = text(massive, width=80)
    assert "…" not in shown and "massive tokens, position x how many times the median: block" in shown


def test_text_and_page_tell_of_both_only_where_they_differ() -> None:
    plain, massive = scans()
    for shown in (str(massive), massive._repr_html_()):
        assert "without massive tokens" in shown and "Token 5" in " ".join(shown.split())
    for shown in (str(plain), plain._repr_html_()):
        assert "massive" not in shown and "core" not in shown


def test_the_picture_draws_both_curves() -> None:
    plain, massive = scans()
    similar, diverse = massive.draw().axes[:2]
    assert [line.get_label() for line in similar.lines][-1] == "t_sim without massive tokens (dotted)"
    assert similar.lines[-1].get_ydata().tolist() == (1 - massive["t_div_rest"]).tolist()
    assert "without massive tokens (dotted)" in [line.get_label() for line in diverse.lines]
    assert len(plain.draw().axes[1].lines) == 1


def test_the_core_has_a_column_where_outliers_hide_something() -> None:
    torch.manual_seed(0)
    end = gaussian(2, 1, 32).expand(2, 32, 32) + 1e-4 * gaussian(2, 32, 32)
    end[:, 9] = gaussian(2, 32)
    scan = played(towards(end))
    names, cells = table(scan)
    assert "core" in names and float(cells[-1][names.index("core")]) < 1e-6 < 0.01 < float(scan["t_div"][-1])
