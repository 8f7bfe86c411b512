"""What is asked for by name is shown."""

import torch

import depthscope as ds
from depthscope.reports.rows import by_position


def test_a_metric_that_is_measured_only_when_asked_for_has_its_row():
    model, X = ds.models.classic(depth=4, d=16, h=2), torch.randn(2, 9, 16)
    plain = ds.scan(model, X, attention=False)
    asked = ds.scan(model, X, attention=False, metrics=["t_sim", "t_div", "rank_one_residual", "relative_residual_l2"])
    assert by_position(plain)[1] == []
    names, cells, _ = by_position(asked)
    assert names == ["at block", "0", "1", "2", "3", "4"]
    assert [row[0] for row in cells] == ["rank_one_residual", "relative_residual_l2"]
    assert float(cells[0][1]) == round(float(asked["rank_one_residual"][0]), 3)
