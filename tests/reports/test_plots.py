"""The picture is a real PNG with the four panels."""

import torch
from torch import nn

import depthscope as ds
from depthscope.reports.show import picture


def test_picture(tmp_path) -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3, enable_nested_tensor=False
    )
    scan = ds.scan(model.eval(), torch.randn(2, 5, 16))
    path = picture(scan, tmp_path / "p.png")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
    similar, diverse, steps, heads = scan.draw().axes
    assert similar.lines[0].get_ydata().tolist() == scan["t_sim"].tolist()
    assert diverse.get_yscale() == "log"
    assert [line.get_label() for line in steps.lines[:4]] == scan.step_names
    assert [line.get_label() for line in heads.lines] == ["delta", "lambda_2", "omega"]
