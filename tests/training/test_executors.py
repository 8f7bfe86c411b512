"""Jobs through executors: toys that lose, raise and cancel; names and what is wrong with them."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app
from depthscope.errors import MissingExtraError, UnknownNameError, UsageError
from depthscope.training.build import Build
from depthscope.training.comparison import Comparison
from depthscope.training.executors import opened, using
from depthscope.training.handed_out import TRIES, Call, HandedOut, Lost
from depthscope.training.job import Job
from depthscope.training.plan import Listed
from depthscope.training.recipe import Recipe
from depthscope.training.work import work
from loops import over

TINY = {"depth": 2, "d": 8, "h": 2, "q": 8, "epochs": 1, "train": 128, "seeds": 1, "caveat": False, "search": 0}


class Toy(Executor):
    """Threads; `loses` of its calls, the first ones, end as those of a worker that died."""

    def __init__(self, loses: int = 0) -> None:
        self.calls, self._loses, self._threads = list[tuple[Any, ...]](), loses, ThreadPoolExecutor(2)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append(args)
        if len(self.calls) > self._loses:
            return self._threads.submit(fn, *args, **kwargs)
        lost: Future[Any] = Future()
        lost.set_exception(BrokenExecutor("a worker died"))
        return lost


def numbers(found: Comparison) -> Any:
    """All of a comparison but its times."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: kept(one) for name, one in value.items() if name != "seconds"}
        return [kept(one) for one in value] if isinstance(value, list) else value

    return kept(found.to_dict())


@pytest.mark.long
def test_any_executor_gives_the_numbers_of_the_local_pool_also_when_it_loses_jobs(tmp_path: Path) -> None:
    here = ds.compare("digits", "post_norm,pre_norm", folder=tmp_path / "local", **TINY)
    toy = Toy(loses=3)
    with pytest.warns(
        UserWarning, match=r"its worker was lost \(BrokenExecutor: a worker died\); .* again, try [23] of 3"
    ):
        there = ds.compare("digits", "post_norm,pre_norm", folder=tmp_path / "toy", executor=toy, **TINY)
    assert numbers(there) == numbers(here) and all(lane.done for lane in here.lanes)
    assert len(toy.calls) == 2 + 3 and len({call[0] for call in toy.calls}) == 5  # no two calls are equal


def test_a_job_that_is_lost_again_and_again_is_given_up_and_told(tmp_path: Path) -> None:
    toy = Toy(loses=1000)
    with pytest.warns(UserWarning, match="[23] of 3"):
        found = ds.compare("digits", "post_norm,pre_norm", folder=tmp_path, executor=toy, **TINY)
    assert len(toy.calls) == 2 * TRIES
    why = "lost with its worker 3 times, at last: BrokenExecutor: a worker died"
    assert [lane.failed for lane in found.lanes] == [{0: why}] * 2 and why in " ".join(str(found).split())


def double(number: int, x: int) -> int:
    return 2 * x


def test_results_come_with_their_keys_and_a_cancelled_call_is_a_lost_one() -> None:
    class Cancels(Toy):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            if args[1] != 2 or len(self.calls) > 5:
                return super().submit(fn, *args, **kwargs)
            self.calls.append(args)
            cancelled: Future[Any] = Future()
            cancelled.cancel()
            cancelled.set_running_or_notify_cancel()
            return cancelled

    hands: HandedOut[str] = HandedOut(Cancels())
    for x in (1, 2, 3):
        hands.submit(Call(f"key {x}", f"call {x}", double, (x,)))
    found: dict[str, Any] = {}
    with pytest.warns(UserWarning, match=r"call 2: its worker was lost \(cancelled by the executor\)"):
        while len(hands):
            found |= dict(hands.ended(0.2))
    assert found == {
        "key 1": 2,
        "key 3": 6,
        "key 2": Lost("lost with its worker 3 times, at last: cancelled by the executor"),
    }


def test_an_executor_that_is_shut_down_is_an_error_and_nothing_goes_on(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as closed:
        pass
    with pytest.raises(
        UsageError, match=r"executor: must take jobs; ThreadPoolExecutor says: cannot schedule .* the same folder"
    ):
        ds.compare("digits", "pre_norm", folder=tmp_path, executor=closed, **TINY)


def test_no_more_are_handed_out_than_at_once(tmp_path: Path) -> None:
    """Where later jobs learn from earlier ones; else all, for an executor has its own queue."""

    class Counts(Toy):
        most = now = 0

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.now += 1
            self.most = max(self.most, self.now)
            future = self._threads.submit(lambda: (threading.Event().wait(0.05), "failed")[1])
            future.add_done_callback(lambda _: setattr(self, "now", self.now - 1))
            return future

    for at_once, most in ((2, 2), (None, 6)):
        jobs = [Job(f"{i}", tmp_path / f"{i}", "digits", {}, Build(), Recipe()) for i in range(6)]
        counts, source = Counts(), Listed(jobs)
        work(source, counts, tmp_path, at_once=at_once)
        assert counts.most == most and [*source.outcomes.values()] == ["failed"] * 6
    assert not [*tmp_path.glob("asked-by-*")]


def test_an_executor_by_context_is_used_where_none_is_named(tmp_path: Path) -> None:
    toy = Toy()
    with using(toy):
        with using(None), opened(None, None, tmp_path) as crew:  # None changes nothing
            assert crew.executor is toy and crew.workers is None
        with opened("local", 3, tmp_path) as crew:  # a name wins
            assert crew.executor is not toy and crew.workers == 3
    with opened(None, 2, tmp_path) as crew:
        assert isinstance(crew.executor, ThreadPoolExecutor) and crew.workers == 2
    with opened(own := ThreadPoolExecutor(5), None, tmp_path) as crew:
        assert crew.workers == 5
    assert own.submit(double, 0, 4).result() == 8  # the user's own is left open
    with pytest.raises(RuntimeError):
        crew_of_ours = opened("local", 1, tmp_path)
        with crew_of_ours as crew:
            pass
        crew.executor.submit(double, 0, 4)  # ours is closed


class FakeClient:
    """As much of distributed.Client as is asked for."""

    threads = {"a": 2, "b": 1}

    def __init__(self, address: str, **_: Any) -> None:
        if "nowhere" in address:
            raise OSError("Timed out trying to connect\nto nowhere")

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def nthreads(self) -> dict[str, int]:
        return self.threads

    def get_executor(self) -> Executor:
        return Toy()


@pytest.fixture
def dask(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("distributed")
    module.Client = FakeClient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "distributed", module)


def test_a_scheduler_of_dask_says_how_many_workers_it_has(
    dask: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened("dask:tcp://10.0.0.5:8786", None, tmp_path) as crew:
        assert isinstance(crew.executor, Toy) and crew.workers == 3
    monkeypatch.setattr(FakeClient, "threads", {})
    with pytest.warns(UserWarning, match="has no workers yet"), opened("dask:10.0.0.5:8786", None, tmp_path) as crew:
        assert crew.workers is None


@over(
    "executor, kind, words",
    [
        (
            "dusk:tcp://1.2.3.4:5",
            UnknownNameError,
            r"no executor is called 'dusk'. Did you mean dask.* Write local, dask:ADD",
        ),
        ("local:3", UsageError, r"local takes no options; got '3'"),
        ("dask:", UsageError, r"dask must come with the address of its scheduler"),
        ("dask:nowhere:1", UsageError, r"a scheduler of Dask must answer at nowhere:1; Timed out .* Start one with"),
        (
            42,
            UsageError,
            r"must be a concurrent.futures.Executor, .*got int. Of a Dask client pass client.get_executor\(\)",
        ),
    ],
)
def test_wrong_executors_are_told(executor: Any, kind: type, words: str, dask: None, tmp_path: Path) -> None:
    with pytest.raises(kind, match=words):
        ds.compare("digits", "pre_norm", folder=tmp_path, executor=executor, **TINY)
    assert not [*tmp_path.glob("*/run.json")]


@over("name, module", [("dask:1.2.3.4:5", "distributed"), ("slurm:", "submitit")])
def test_a_missing_extra_comes_with_its_line(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(MissingExtraError, match=rf"needs {module}. pip install .*'{module}>="),
        opened(name, None, tmp_path),
    ):
        pass


def test_the_commands_know_executors() -> None:
    for words in (["compare", "digits"], ["reproduce", "yu2023/fig6", "--smoke"]):
        with pytest.raises(UnknownNameError, match=r"no executor is called 'slum'. Did you mean slurm"):
            CliRunner().invoke(app, [*words, "--executor", "slum:x"], catch_exceptions=False)


def test_what_the_user_asks_for_holds_for_an_executor_with_a_queue_of_its_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        for processes in (None, 2):
            with opened(pool, processes, tmp_path) as crew:
                assert crew.executor is pool and crew.asked == processes and crew.workers == (processes or 6)
    with opened("local", 2, tmp_path) as crew:
        assert crew.asked == 2
