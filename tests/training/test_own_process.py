"""What a worker does with a job: whom it works for, when it refuses, what it does with a process that is killed."""

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import depthscope as ds
from depthscope.errors import UsageError, WorkerLostError
from depthscope.training import own_process
from depthscope.training.build import Build
from depthscope.training.job import BUSY, Job, code, do, main, sources
from depthscope.training.lock import asking, in_use, is_asked_for, lock
from depthscope.training.loop import train
from depthscope.training.own_process import Asker, in_own_process
from depthscope.training.plan import Listed
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from depthscope.training.tasks import task
from depthscope.training.work import Moment, work
from test_layers import MAY_IMPORT

BUILD, RECIPE = Build(depth=2, d=8, h=2, q=8), Recipe(epochs=60)


def job_in(folder: Path, recipe: Recipe = RECIPE) -> Job:
    return Job("a job", folder / "job", "digits", {"train": 256}, BUILD, recipe)


def process_of(job: Job) -> int:
    """The process that trains."""
    (found,) = (
        p.pid for p in psutil.process_iter(["cmdline"]) if f"{job.folder}/job.json" in (p.info["cmdline"] or ())
    )
    return found


@pytest.mark.long
def test_a_job_whose_process_is_killed_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    job, killed = job_in(tmp_path), list[int]()
    source = Listed([job])

    def kill(moment: Moment) -> None:
        if not killed and [*job.folder.glob("step_*")]:  # there is something to go on from
            killed.append(process_of(job))
            os.kill(killed[0], signal.SIGKILL)

    with (
        ThreadPoolExecutor(1) as one,
        pytest.warns(UserWarning, match=r"a job: its worker was lost \(WorkerLostError: killed by SIGKILL"),
    ):
        work(source, one, tmp_path, watch=kill)
    found = source.outcomes[job]
    whole = train(BUILD, task("digits", train=256), RECIPE)
    assert killed and isinstance(found, Run)
    assert found.history == whole.history and found.final == whole.final and found.logs == whole.logs


@pytest.fixture
def asker(tmp_path: Path):
    with asking(tmp_path) as path:
        yield Asker(path, code(), str(tmp_path))


def test_a_worker_refuses_what_it_cannot_do_rightly(
    asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_process, "_trained", lambda *_: pytest.fail("it ran"))
    job = job_in(tmp_path)
    assert "depthscope differs" in in_own_process(0, job, replace(asker, code="other"))  # type: ignore[operator]
    elsewhere = replace(asker, lock=tmp_path / "gone" / "asked")
    assert "must be on a disk that all workers share" in in_own_process(0, job, elsewhere)  # type: ignore[operator]
    assert "must be locked by the one who asks" in in_own_process(0, job, replace(asker, lock=tmp_path / "free"))  # type: ignore[operator]
    job.folder.mkdir()
    held = lock(job.folder)
    assert held is not None
    with held:
        assert in_own_process(0, job, asker) is None  # somebody is at it
        job.write()
        assert main(str(job.folder / "job.json")) == BUSY


def test_what_goes_wrong_in_a_worker_is_a_value_and_a_stopped_process_is_not(
    asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(error: Exception):
        def trained(*_: object) -> None:
            raise error

        monkeypatch.setattr(own_process, "_trained", trained)

    raises(OSError("no space left"))
    assert in_own_process(0, job_in(tmp_path), asker).startswith("OSError: no space left (on ")  # type: ignore[union-attr]
    raises(WorkerLostError("killed by SIGKILL"))
    with pytest.raises(WorkerLostError):
        in_own_process(0, job_in(tmp_path), asker)


def test_only_the_last_words_of_this_attempt_count(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    job.folder.mkdir()
    (job.folder / "errors.txt").write_text("of the first attempt\n")
    begun = (job.folder / "errors.txt").stat().st_size
    assert own_process._last_words(job, begun, -9) == "killed by SIGKILL"
    with (job.folder / "errors.txt").open("a") as errors:
        errors.write("one\ntwo\n\n")
    assert own_process._last_words(job, begun, 1) == "exit code 1: two"


def test_a_process_of_a_job_is_no_member_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    left = own_process._alone()
    assert left["OMP_NUM_THREADS"] == "1" and "PATH" in left
    assert not {"WORLD_SIZE", "RANK", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"} & left.keys()


def test_other_data_than_planned_are_refused(tmp_path: Path) -> None:
    job = replace(job_in(tmp_path), fingerprint="planned")
    job.folder.mkdir()
    with pytest.raises(
        UsageError, match=r"a job: the data must be the plan's, planned; here they are .* the same files"
    ):
        do(job)


STARTS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "depthscope.training.job", sys.argv[1], str(os.getpid())])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_no_process_outlives_the_one_that_started_it(tmp_path: Path) -> None:
    """Also one that hangs, here at a task that waits for ever, and never comes to a step."""
    (tmp_path / "hangs.py").write_text("import time\ndef setup():\n    time.sleep(600)\n")
    job = replace(job_in(tmp_path), task="own", options={"setup": "hangs:setup"})
    job.folder.mkdir()
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS, str(job.write())], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    child = psutil.Process(int(starter.stdout.readline()))  # type: ignore[union-attr]
    while not (job.folder / "steps.txt").exists():  # it is at the task
        assert child.is_running()
    starter.kill()
    starter.communicate()
    assert psutil.wait_procs([child], timeout=20)[1] == []


ASKS = """
import sys, time
from pathlib import Path
from depthscope.training.lock import asking
with asking(Path(sys.argv[1])) as path:
    print(path, flush=True)
    time.sleep(60)
"""


def test_who_dies_asks_no_longer(tmp_path: Path) -> None:
    with asking(tmp_path) as path:
        assert is_asked_for(path) and is_asked_for(path)  # a look changes nothing
    assert not is_asked_for(path) and not path.exists()
    other = subprocess.Popen([sys.executable, "-c", ASKS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    path = Path(other.stdout.readline().strip())  # type: ignore[union-attr]
    assert is_asked_for(path)
    other.kill()
    other.communicate()
    assert path.exists() and not is_asked_for(path)


def test_a_folder_is_in_use_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    assert not in_use(tmp_path / "none yet") and not (tmp_path / "none yet").exists()
    held = lock(tmp_path / "a")
    assert held is not None and in_use(tmp_path / "a")
    with held:
        assert lock(tmp_path / "a") is None
    assert not in_use(tmp_path / "a")


def test_the_code_of_a_run_is_all_that_a_training_may_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(ds.__file__).parent
    hashed = {path.relative_to(root).parts[0].removesuffix(".py") for path in sources()}
    assert {"training", "__init__", *MAY_IMPORT["training"].split()} <= hashed
    assert {path for path in sources() if path.is_relative_to(root / "traces")} == {*(root / "traces").rglob("*.py")}
    shutil.copytree(root, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__", "vendor"))
    monkeypatch.setattr(ds, "__file__", str(tmp_path / "copy" / "__init__.py"))
    assert code.__wrapped__() == code()
    for file in ("remedies/de_escalate.py", "traces/follower.py", "metrics/similarity.py", "junctions.py"):
        before, text = code.__wrapped__(), (tmp_path / "copy" / file).read_text()
        (tmp_path / "copy" / file).write_text(text.replace("1", "2", 1))
        assert code.__wrapped__() != before
    before = code.__wrapped__()
    (tmp_path / "copy" / "reports" / "page.py").write_text("")
    assert code.__wrapped__() == before
