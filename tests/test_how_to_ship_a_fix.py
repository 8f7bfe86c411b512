"""Every line of docs/how-to/ship-a-fix.md runs, in the order of the page, and does what the page says."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import depthscope as ds
from depthscope.errors import FixLostWarning

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "ship-a-fix.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@torch.no_grad()
def test_the_page_runs_and_the_fix_is_where_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    start, shortest, own, one_file, copies, exported = BLOCKS
    exec(start, names)
    ids, first = names["ids"], names["model"]
    fixed = first(ids).logits
    with pytest.warns(FixLostWarning, match="from_pretrained"):
        exec(shortest, names)
    assert names["model"] is not first and torch.equal(names["model"](ids).logits, fixed)
    exec(own, names)
    assert torch.equal(names["fresh"](ids).logits, fixed)
    exec(one_file, names)
    assert torch.equal(names["whole"](ids).logits, fixed)
    exec(copies, names)
    assert ds.fixes(names["twin"]) == [] and not torch.allclose(names["twin"](ids).logits, fixed, atol=1e-4)
    assert torch.equal(names["model"](ids).logits, fixed)
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        exec(exported, names)


def test_lines_of_the_page_are_short() -> None:
    assert all(len(line) <= 100 for line in PAGE.splitlines())
