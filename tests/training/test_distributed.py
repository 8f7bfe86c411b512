"""Two processes that train together get what one gets, cut or copied, also where a batch does not divide."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from together import CASES, data

from depthscope.training import checkpoint
from depthscope.training.loop import train
from loops import over

pytestmark = pytest.mark.long
HERE = Path(__file__).parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """The records of all cases, trained by two gloo processes, and the folder of their checkpoints."""
    out = tmp_path_factory.mktemp("two") / "records.json"
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [*TORCHRUN, str(HERE / "together.py"), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text()), out.parent


@over("name", CASES)
def test_two_processes_equal_one(two: tuple[dict, Path], name: str) -> None:
    build, recipe = CASES[name]
    one = train(build, data(name), recipe)
    for way in ("ddp", "fsdp"):
        both = two[0][f"{way} {name}"]
        assert both["status"] == "done" and both["history"]["step"] == one.history["step"]
        assert both["history"]["loss"] == pytest.approx(one.history["loss"], abs=1e-6), way
        assert both["history"]["grad_norm"] == pytest.approx(one.history["grad_norm"], rel=1e-5), way
        for split, result in one.final.items():
            assert both["final"][split] == pytest.approx(result, abs=1e-6), way
        for mine, theirs in zip(one.logs, both["logs"], strict=True):
            for quantity, values in mine.items():
                assert theirs[quantity] == pytest.approx(values, abs=1e-6), (way, quantity)


@over("name", ["learned", "text"])
@over("way", ["ddp", "fsdp"])
def test_their_checkpoint_is_the_same_too(two: tuple[dict, Path], tmp_path: Path, way: str, name: str) -> None:
    build, recipe = CASES[name]
    train(build, data(name), recipe, folder=tmp_path)
    one, both = checkpoint.latest(tmp_path), checkpoint.latest(two[1] / f"{way}_{name}")
    assert one is not None and both is not None and one.step == both.step
    assert bool(one.memory) == (name == "text")
    for mine, theirs in ((one.model, both.model), (one.optimizer, both.optimizer), (one.memory, both.memory)):
        assert mine.keys() == theirs.keys()
        for k in mine:  # slow sinusoids hardly move a softmax: W_kR has gradients of rounding size, which Adam blows up
            assert (mine[k] - theirs[k]).abs().max() < (1e-3 if "W_kR.weight" in k else 1e-5), k


@over("way", ["ddp", "fsdp"])
def test_one_that_is_asked_stops_both_and_both_go_on(two: tuple[dict, Path], way: str) -> None:
    stopped, resumed = two[0][f"{way} stopped"]
    assert stopped["status"] == "stopped" and stopped["history"]["step"] == list(range(5))
    whole = two[0][f"{way} learned"]
    for name in ("status", "history", "evaluations", "logs", "final"):
        assert resumed[name] == whole[name], name  # to the last bit, as on one process


def test_the_number_of_processes_is_asserted(two: tuple[dict, Path]) -> None:
    assert "3 processes must train together; 2 do (WORLD_SIZE is 2)" in two[0]["three"]
