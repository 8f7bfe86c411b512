"""Every script in examples/ runs as a reader would run it, and shows what its first lines promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SHOWN = {  # words that the output must have, files that must be written
    "hand_written_model": (("before: collapsed: ", "after:  diverse: "), ("hand_written_model.html",)),
    "hugging_face": (("collapsed: ", "diversity divided by ", "the head that mixes most: "), ()),
    "x_transformers_model": (("post-norm token diversity", "pre-norm  token diversity"), ()),
    "trainer_with_monitor": (("monitor", "alarms:\n  ", "collapsed"), ()),
    "forecast_sweep": (("post-norm ", "inf blocks", "DeepNorm"), ("forecast_sweep.png",)),
    "custom_remedy": (("no remedy ", "PushApart(by=0.6", "DeEscalate(tau=0.3", ": diverse"), ()),
}
QUICK = "hand_written_model"  # the others take some six seconds each
CASES = [pytest.param(name, marks=[pytest.mark.long] * (name != QUICK)) for name in SHOWN]
ALLOWED = ("-W", "error", "-W", "ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # x-transformers' own


def test_every_example_is_tried() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {*SHOWN}


@pytest.mark.parametrize("name", CASES)
def test_an_example_shows_what_it_promises(name: str, tmp_path: Path) -> None:
    words, files = SHOWN[name]
    done = subprocess.run(
        [sys.executable, *ALLOWED, EXAMPLES / f"{name}.py"],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert all(word in done.stdout for word in words), done.stdout
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(files)
    assert all((tmp_path / file).stat().st_size > 10_000 for file in files)
