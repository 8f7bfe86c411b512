"""Real servers on loopback for the time of a with statement: nothing of them is left, whatever happens inside."""

import getpass
import glob
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds until a server must answer
LOOPBACK = "127.0.0.1"
Process = subprocess.Popen[bytes]


class MissingError(Exception):
    """Something that this machine does not have, and how to get it."""


def need(module: str, how: str) -> None:
    if find_spec(module) is None:
        raise MissingError(f"the package {module} is not installed. {how}")


@contextmanager
def started(command: list[str], log: Path, **options: Any) -> Iterator[Process]:
    """A process that is asked to end with the with statement, and ended with all that it started if it does not."""
    options |= {"stdin": subprocess.DEVNULL, "start_new_session": True}
    with open(log, "ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def dask_cluster(folder: Path, workers: int) -> Iterator[tuple[str, list[Process]]]:
    """The address of a scheduler, and the processes of its workers, of one thread each and without a nanny."""
    need("distributed", "pip install 'depthscope[scale]'")
    file = folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    with ExitStack() as stack:
        scheduler = [*dask, "scheduler", "--host", LOOPBACK, "--port", "0", "--no-dashboard", "--scheduler-file"]
        log = folder / "scheduler.log"
        stack.enter_context(started([*scheduler, str(file)], log))
        wait_for(file.exists, "the scheduler of Dask", log)
        address = json.loads(file.read_text())["address"]
        worker = [*dask, "worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", LOOPBACK]
        logs = [folder / f"worker-{number}.log" for number in range(workers)]
        local = ["--local-directory", str(folder)]
        own = [stack.enter_context(started([*worker, *local], log)) for log in logs]
        wait_for(lambda: all("Registered to" in log.read_text() for log in logs), "the workers of Dask", logs[0])
        yield address, own


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a new, empty database; the server runs as a user who is not root, which it insists on."""
    need("psycopg2", "pip install psycopg2-binary")
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))  # Debian's place, which is not on the path
    found = installed[-1] if installed else shutil.which("initdb")
    if not found:
        raise MissingError("the server PostgreSQL is not installed. On Debian: apt-get install postgresql")
    programs, user = Path(found).parent, _somebody()
    home = Path(tempfile.mkdtemp(prefix="depthscope-postgres-"))
    data, port = home / "data", _free_port()
    own: dict[str, Any] = {"cwd": home}
    if user != getpass.getuser():
        shutil.chown(home, user)
        own |= {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    try:
        made = [programs / "initdb", "--pgdata", data, "--auth", "trust", "--username", "depthscope", "--no-sync"]
        subprocess.run([*map(str, made)], check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE, **own)
        server = [programs / "postgres", "-D", data, "-h", LOOPBACK, "-p", port, "-k", home]
        log = home / "postgres.log"
        with started([*map(str, server)], log, **own):
            ready = [str(programs / "pg_isready"), "--quiet", "--host", LOOPBACK, "--port", str(port)]
            wait_for(lambda: subprocess.run(ready).returncode == 0, "PostgreSQL", log)
            yield f"postgresql+psycopg2://depthscope@{LOOPBACK}:{port}/postgres"
    finally:
        shutil.rmtree(home, ignore_errors=True)


def tail(log: Path) -> str:
    """The last words of a log."""
    return " ".join(log.read_text(errors="replace").split())[-500:] if log.exists() else ""


def wait_for(condition: Callable[[], Any], what: str, log: Path, seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not come within {seconds:.0f} s: {tail(log)}")
        time.sleep(0.1)


def _somebody() -> str:
    """Us, or a user without rights when we are root."""
    if os.geteuid():
        return getpass.getuser()
    known = {user.pw_name for user in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return one.getsockname()[1]
