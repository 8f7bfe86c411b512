"""Comparisons: real processes on a tiny task, what is kept, what is shared, what is never hidden."""

import json
import math
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app
from depthscope.errors import RecordError, UnknownNameError, UsageError
from depthscope.reports.show import picture, text
from depthscope.training.arms import CAVEAT, arm
from depthscope.training.build import Build
from depthscope.training.comparison import Comparison
from depthscope.training.executors import room
from depthscope.training.job import GRACE, STOPPED, Job, _ends_with, code, key
from depthscope.training.lane import Lane, thinned
from depthscope.training.plan import Listed
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from depthscope.training.scores import SCORES
from depthscope.training.search import Search, _free_rank, at_the_edge, best, in_words, storage_of
from depthscope.training.work import work
from depthscope.training.workers import gone, worker
from loops import over

TINY = {"depth": 2, "d": 8, "h": 2, "q": 8, "epochs": 1, "train": 128}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Comparison:
    """post_norm and its caveat lane."""
    return ds.compare("digits", "post_norm", seeds=1, folder=folder, processes=1, **TINY)


def test_jobs_are_done_once_and_their_records_kept(
    trained: Comparison, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [lane.arm.name for lane in trained.lanes] == ["post_norm", "post_norm@3e-4"]
    plain = trained["post_norm"].runs[0]
    assert plain.status == "done" and len(plain.history["step"]) == 2 and plain.logs[-1]["step"] == 1
    assert trained["post_norm@3e-4"].runs[0].recipe.lr == 3e-4
    assert not [*folder.glob("*/step_*")]  # checkpoints are for runs on their way
    assert "there already" not in str(trained)
    monkeypatch.setattr("depthscope.training.own_process._trained", lambda *_: pytest.fail("it ran again"))
    again = ds.compare("digits", ["post_norm"], seeds=1, folder=folder, processes=1, **TINY)
    assert again.to_dict() == trained.to_dict() | {"reused": 2} and "2 of 2 runs were there already." in str(again)


def test_who_watches_is_told_of_the_search_too(
    trained: Comparison, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("depthscope.training.own_process._trained", lambda *_: pytest.fail("it ran again"))
    moments: list = []
    ds.compare("digits", ["post_norm"], seeds=1, search=1, folder=folder, processes=1, watch=moments.append, **TINY)
    assert [(moment.ended, moment.total) for moment in moments] == [(1, 1), (1, 1)]  # the trial, then the run


def test_other_code_has_other_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key("settings")
    assert before == key("settings") and len(code()) > 64 and code().startswith(ds.__version__)
    monkeypatch.setattr("depthscope.training.job.code", lambda: "changed")
    assert key("settings") != before


def test_a_trainer_whose_parent_is_gone_is_asked_to_stop_and_then_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    before = signal.signal(signal.SIGTERM, lambda *_: done.append("asked"))
    monkeypatch.setattr("time.sleep", done.append)
    monkeypatch.setattr("os._exit", done.append)
    try:
        _ends_with(os.getpid())  # whoever it is, it is not our parent
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done == ["asked", GRACE, STOPPED]


def test_the_first_weights_and_batches_are_the_same_at_any_rate(trained: Comparison) -> None:
    first, second = (lane.runs[0] for lane in trained.lanes)
    assert first.history["loss"][0] == second.history["loss"][0]
    assert first.history["loss"][1] != second.history["loss"][1]


def test_a_comparison_is_saved_and_read_back(trained: Comparison, folder: Path, tmp_path: Path) -> None:
    trained.save(tmp_path / "comparison.json")
    assert (folder / "comparison.json").exists()
    assert Comparison.load(tmp_path / "comparison.json").to_dict() == trained.to_dict()
    assert str(Comparison.load(tmp_path / "comparison.json")) == str(trained)
    (tmp_path / "other.json").write_text(json.dumps(trained.to_dict() | {"version": 99}))
    for name in ("other.json", "missing.json"):
        with pytest.raises(RecordError):
            Comparison.load(tmp_path / name)


@pytest.mark.long
def test_a_job_that_dies_is_told_with_its_last_words_and_the_others_go_on(trained: Comparison, folder: Path) -> None:
    good = Job("good", next(folder.glob("post_norm-*")), "digits", {}, Build(), Recipe())  # done already
    bad = Job("bad", folder / "bad", "digits", {"train": 0}, Build(), Recipe())
    source = Listed([bad, good])
    moments: list = []
    with ThreadPoolExecutor(1) as one:
        work(source, one, folder, watch=moments.append)
    assert isinstance(source.outcomes[good], Run)
    assert "exit code 1" in source.outcomes[bad] and "train must be a whole number" in source.outcomes[bad]
    assert moments[-1].ended == moments[-1].total == 2 and moments[0].running[0][0] == "bad"


class Slow(Listed):
    """Presses ^C once its job has started."""

    def __init__(self, job: Job) -> None:
        super().__init__([job])

    def show_life(self) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_ends_the_children(folder: Path) -> None:
    job = Job("long", folder / "long", "digits", {}, Build(depth=2), Recipe(epochs=10_000))
    with pytest.raises(KeyboardInterrupt):
        with ThreadPoolExecutor(1) as one:
            work(Slow(job), one, folder)
    words = str(folder / "long")
    listed = subprocess.check_output(["ps", "-eo", "pid,args"], text=True)
    assert words not in listed


def run_with(accuracy: float, seed: int, status: str = "done") -> Run:
    splits = {split: {"loss": 1 - accuracy, "accuracy": accuracy} for split in ("train", "valid", "test")}
    logs = [
        {"step": step, "t_sim": [0.1, 0.5, 0.9], "t_div": [0.9, 0.5, 0.1], "gradient_norm": [1, 1]} for step in (0, 4)
    ]
    run = Run(Build(depth=2), Recipe(seed=seed), "digits", "f", status, "the loss was nan" if status != "done" else "")
    run.history |= {name: [float(i) for i in range(5)] for name in run.history}
    run.evaluations.append({"epoch": 1, "step": 5, "split": "valid", "loss": 0.5, "accuracy": accuracy})
    run.final |= splits if status == "done" else {}
    run.logs += logs
    return run


def compared(**lanes: list[float | str]) -> Comparison:
    """A comparison of made-up accuracies; words stand for a failure, and "diverged" for that."""
    made = []
    for name, values in lanes.items():
        runs = {s: run_with(v, s) for s, v in enumerate(values) if isinstance(v, float)}
        runs |= {s: run_with(0.1, s, "diverged") for s, v in enumerate(values) if v == "diverged"}
        failed = {s: v for s, v in enumerate(values) if isinstance(v, str) and v != "diverged"}
        made.append(Lane(arm(name), 1e-3, runs, failed))
    facts = {"score": "accuracy", "answers": 10, "count": 360, "chance": 0.1, "data": "1200 images", "model": "ViT"}
    seeds = list(range(max(map(len, lanes.values()))))
    return Comparison("digits", facts, Build(depth=2), Recipe(), 114, seeds, made)


def test_noise_and_differences_in_words() -> None:
    text = " ".join(
        str(compared(post_norm=[0.08, 0.1, 0.09], pre_norm=[0.98, 0.96, 0.975], de_escalate=[0.97, 0.97, 0.97])).split()
    )
    assert "pre_norm is above de_escalate by 0.2 ± 1.0 points: within noise (p = 0.81)" in text
    assert "de_escalate is above post_norm by 88.0 ± 1.0 points: differs (p = 0.00013)" in text
    assert "post_norm stayed at chance in 3 of 3 seeds" in text and "6 epochs" in text and "corrected for 3" in text


def test_equal_differences_in_all_seeds_are_no_noise() -> None:
    text = str(compared(post_norm=[0.1] * 3, pre_norm=[0.975] * 3, de_escalate=[0.975] * 3))
    assert "pre_norm is above post_norm by 87.5 ± 0.0 points: differs (p < 0.0001)" in text
    assert "pre_norm is above de_escalate by 0.0 ± 0.0 points: within noise (p = 1)" in text


def test_two_seeds_conclude_nothing() -> None:
    text = str(compared(post_norm=[0.08, 0.1], pre_norm=[0.98, 0.96]))
    assert "2 seeds: too few to tell whether any difference is more than noise" in text and "differs" not in text
    text = str(compared(post_norm=[0.08, "diverged", 0.1], pre_norm=[0.98, 0.96, 0.97]))
    assert (
        "No two arms have done more than 2 of 3 seeds: too few to tell whether any difference is more than noise"
        in text
    )


def test_the_seeds_that_a_difference_is_not_over_are_counted() -> None:
    result = compared(post_norm=[0.5, "diverged", 0.7, 0.6, "x"], pre_norm=[0.9, 0.8, 0.9, 0.9, "diverged"])
    text = " ".join(str(result).split())
    assert "over 3 of 5 seeds; 2 diverged and are left out." in text
    text = " ".join(str(compared(post_norm=[0.5, "x", 0.7, 0.6], pre_norm=[0.9] * 4)).split())
    assert "over 3 of 4 seeds; 1 failed and is left out." in text


def test_the_time_is_that_of_whole_runs() -> None:
    lane = compared(post_norm=[0.5, "diverged"])["post_norm"]
    lane.runs[0].seconds, lane.runs[1].seconds = 8.0, 1.0
    assert lane.seconds == 8.0 and math.isnan(compared(post_norm=["diverged"])["post_norm"].seconds)


def test_chance_is_what_guessing_the_largest_class_may_reach() -> None:
    facts = {"chance": 0.1, "count": 360}  # three deviations above it is .1474
    assert SCORES["accuracy"].nothing_learned(0.147, facts) and not SCORES["accuracy"].nothing_learned(0.148, facts)
    two_classes = compared(post_norm=[0.68, 0.69, 0.9])
    two_classes.facts.update(answers=2, chance=0.66)
    assert "post_norm stayed at chance in 2 of 3 seeds; the best reached 90.0 %." in str(two_classes)


def test_names_of_arms_are_whole_on_a_narrow_terminal() -> None:
    name = "de_escalate:tau=0.5,at=ffn_in,learnable=true"
    shown = text(compared(**{name: [0.5, 0.6, "diverged"]}), 80)
    lines = shown.splitlines()[3:7]
    assert "".join(line[:14].strip() for line in lines) == name and "diverged" in lines[1] and "…" not in shown


def test_what_diverged_or_failed_is_never_hidden() -> None:
    result = compared(post_norm=[0.5, "diverged", 0.7], pre_norm=["exit code 1: boom", "killed by SIGKILL", "x"])
    text = str(result)
    assert "60.0 ± 14.1 %" in text and "2 of 3: 1 diverged" in text and "0 of 3: 3 failed" in text
    assert "post_norm, seed 1, diverged: the loss was nan." in text
    assert "pre_norm, seed 0, failed: exit code 1: boom." in text
    assert Comparison.from_dict(json.loads(json.dumps(result.to_dict(), allow_nan=False))).to_dict() == result.to_dict()


def test_the_caveat_lane_speaks() -> None:
    result = compared(post_norm=[0.1, 0.1, 0.1], pre_norm=[0.9, 0.8, 0.9])
    slow = [Lane(replace(arm("post_norm@3e-4"), remark=CAVEAT), 3e-4, {0: run_with(a, 0)}, {}) for a in (0.8, 0.1)]
    said = [" ".join(str(replace(result, lanes=[*result.lanes, lane])).split()) for lane in slow]
    assert (
        "at a third of the rate (3e-4) reaches 80.0 %, at 1e-3 10.0 %" in said[0] and "depends on the rate" in said[0]
    )
    assert "does not help it here" in said[1]


def test_the_caveat_speaks_of_the_rate_only_where_a_difference_can_be_told() -> None:
    def said(fast: list[float], slow: list[float]) -> str:
        result = compared(**{"post_norm": fast, "post_norm@3e-4": slow, "pre_norm": [0.9, 0.8, 0.9]})
        usual, lane, other = result.lanes
        lane = replace(lane, arm=replace(lane.arm, remark=CAVEAT), lr=3e-4)
        return " ".join(str(replace(result, lanes=[usual, lane, other])).split())

    assert "no difference between the two rates can be shown" in said([0.90, 0.92, 0.91], [0.93, 0.91, 0.92])
    assert "depends on the rate" in said([0.50, 0.52, 0.51], [0.93, 0.91, 0.92])
    assert "the smaller rate does not help here" in said([0.93, 0.91, 0.92], [0.50, 0.52, 0.51])
    assert "the smaller rate does not help here" in said([0.93, 0.5, 0.2], [0.1, 0.1, 0.1])


def test_the_caveat_of_an_arm_with_a_rate_of_its_own_is_held_beside_it() -> None:
    result = compared(**{"post_norm@2e-3": [0.1] * 3, "post_norm@7e-4": [0.8, 0.8, 0.9], "post_norm": [0.5, 0.6, 0.5]})
    own, slow, usual = result.lanes
    slow = replace(slow, arm=replace(slow.arm, remark=CAVEAT), lr=7e-4)
    text = " ".join(str(replace(result, lanes=[replace(own, lr=2e-3), slow, usual])).split())
    assert "post_norm at a third of the rate (7e-4) reaches 83.3 %, at 2e-3 10.0 %" in text


def test_what_the_seeds_cannot_tell_is_told() -> None:
    result = compared(post_norm=[0.5, 0.6, 0.7], pre_norm=[0.9, 0.8, 0.9], rezero=["diverged", "x", 0.9])
    text = " ".join(str(result).split())
    assert "over seeds, on these 360 test images; other images would move an accuracy by about ± 2.6 points" in text
    assert "corrected for" not in text  # one pair alone has a p-value
    assert "the same for all, and no search was made" in text and "tuned" not in text


def test_the_picture_has_every_lane(tmp_path: Path) -> None:
    result = compared(
        post_norm=[0.5, "diverged"], pre_norm=["x", "y"], de_escalate=[0.9, 0.9], deep_norm=[0.9], rezero=[0.8]
    )
    assert picture(result, tmp_path / "curves.png").stat().st_size > 20_000


def test_long_histories_are_thinned() -> None:
    run = run_with(0.5, 0)
    run.history |= {name: [float(i) for i in range(1000)] for name in run.history}
    thin = thinned(run, 1000)
    assert len(thin.history["loss"]) == 334 and thin.history["step"][0] == 2 and thin.history["loss"][0] == 1.0
    assert thinned(run, 400) is run


def share(folder: Path, journal: Path, trials: int, results: list) -> None:
    """One of the workers that share a journal: answers each trial without training."""

    def job(name: str, rate: float, number: int) -> Job:
        return Job(f"{name} {number}", folder, "digits", {}, Build(), Recipe(lr=rate))

    search = Search(storage_of(journal, None), {"a": "study a", "b": "study b"}, job, trials=trials, lr=1e-3)
    while not search.done:
        given = search.next()
        if given is None:
            search._poll_at = 0.0
            continue
        time.sleep(0.02)
        rate = given.recipe.lr
        run = run_with(1 - abs(math.log10(rate) + 3.5) / 3, 0)
        results.append((given.label, rate))
        search.ended(given, "boom" if given.label == "a 1" else run)


def test_two_processes_share_a_journal_and_do_exactly_the_trials_asked_for(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        results = manager.list()
        workers = [context.Process(target=share, args=(tmp_path, tmp_path, 6, results)) for _ in range(2)]
        for one in workers:
            one.start()
        for one in workers:
            one.join(60)
        assert [one.exitcode for one in workers] == [0, 0]
        done = list(results)
    assert (
        len(done) == 13 and sum(label.startswith("a") for label, _ in done) == 7
    )  # one failed, another was done for it
    by_arm = {name: [rate for label, rate in done if label.startswith(name) and label != "a 1"] for name in "ab"}
    assert all(rates.count(1e-3) == 1 and len({*rates}) == 6 for rates in by_arm.values())  # what failed came again
    search = Search(storage_of(tmp_path, None), {"a": "study a"}, lambda *_: None, trials=6, lr=1e-3)  # type: ignore[arg-type, return-value]
    assert search.done and search.next() is None
    assert len(search.completed("a")) == 6 and all(t.user_attrs["why"] != "boom" for t in search.completed("a"))
    assert best(search.completed("a")).value == min(t.value for t in search.completed("a"))


def made(name: str, rate: float, number: int) -> Job:
    return Job(f"{name} {number}", Path(), "digits", {}, Build(), Recipe(lr=rate))


def answered(search: Search, answer: Callable[[Job], Run | str]) -> int:
    """Give an answer to each trial, at most 20 times; how many there were."""
    for count in range(20):
        job = search.next()
        if job is None:
            return count
        search.ended(job, answer(job))
    return 20


def test_trials_that_fail_are_made_up_for_and_then_lost_and_those_that_diverge_count(tmp_path: Path) -> None:
    studies = {"a": "a", "b": "b", "c": "c"}
    search = Search(storage_of(tmp_path, None), studies, made, trials=3, lr=1e-3)
    fails = iter(range(3))  # of arm a: two are made up for
    answers = {
        "a": lambda: run_with(0.5, 0) if next(fails, None) is None else "exit code 1: boom",
        "b": lambda: run_with(0.1, 0, "diverged"),
        "c": lambda: "no space",
    }
    assert (
        answered(search, lambda job: answers[job.label[0]]()) == 5 + 3 + 5 and search.done and search.counts == (9, 9)
    )
    assert len(search.completed("a")) == 2 and search.lost("a") == ["exit code 1: boom"]
    assert [trial.value for trial in search.completed("b")] == [math.inf] * 3 and best(search.completed("b")) is None
    words = in_words(search, ["pre_norm@1e-4"])
    assert "Trials of a that were lost: 1 (exit code 1: boom). Trials of b that diverged: 3. No trial of b" in words
    assert "Trials of c that were lost: 3 (no space). No trial of c succeeded: it was trained at the given" in words
    assert words.endswith("Arms with a rate of their own were not searched: pre_norm@1e-4.")
    later = Search(storage_of(tmp_path, None), studies, made, trials=3, lr=1e-3)  # the disk has room again
    assert answered(later, lambda job: run_with(0.5, 0)) == 1 + 3 and later.done and not later.lost("c")


def test_the_first_rates_climb_a_ladder_and_an_end_of_it_is_told(tmp_path: Path) -> None:
    """Equal for all arms: the given rate, a third of it, three times it, and on to the ends of the range."""
    search = Search(storage_of(tmp_path, None), {"a": "a", "b": "b"}, made, trials=5, lr=1e-3)
    answered(search, lambda job: run_with(0.5, 0))
    for arm_ in ("a", "b"):
        rates = [trial.params["lr"] for trial in search.completed(arm_)]
        assert rates == pytest.approx([1e-3, 1e-3 / 3, 3e-3, 1e-4, 1e-2])
    trials = [
        SimpleNamespace(value=value, number=i, params={"lr": rates[i]}) for i, value in enumerate([3, 2, 1, 4, 5])
    ]
    assert not at_the_edge(trials) and at_the_edge(trials[:3]) and not at_the_edge(trials[:1])
    assert "Of a, b the best rate" not in in_words(search, [])  # all equal: the first, which lies in the middle


def test_a_search_with_nothing_to_search_says_so(tmp_path: Path) -> None:
    search = Search(storage_of(tmp_path, None), {}, made, trials=3, lr=1e-3)
    assert search.done and in_words(search, ["a@1e-4"]) == "Arms with a rate of their own were not searched: a@1e-4."


def test_a_trial_that_others_gave_up_is_dropped(tmp_path: Path) -> None:
    search = Search(storage_of(tmp_path, None), {"a": "a"}, made, trials=2, lr=1e-3)
    first, second = search.next(), search.next()
    assert first is not None and second is not None
    for _, trial in search._mine.values():
        search._fail("a", trial.number)
    search.ended(first, run_with(0.5, 0))
    search.show_life()
    assert not search._mine
    search.ended(second, run_with(0.5, 0))
    assert not search.completed("a") and not search.lost("a")


def test_trials_that_others_gave_up_may_be_given_up_again(tmp_path: Path) -> None:
    search = Search(storage_of(tmp_path, None), {"a": "a"}, made, trials=2, lr=1e-3)
    search.next()
    ((_, trial),) = search._mine.values()
    search._fail("a", trial.number)
    search.given_up()  # ^C, and no error of Optuna's in its place
    assert not search._mine and not search.lost("a")


def test_a_process_that_lives_is_not_gone() -> None:
    assert not gone(worker() | {"seen": 0.0})
    assert gone(worker() | {"host": "elsewhere", "seen": 0.0}) and not gone(worker() | {"host": "elsewhere"})
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert gone(worker() | {"pid": ended.pid})


def test_cores_are_counted_where_the_system_cannot_say_which_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert room() == 7


def test_trials_of_a_worker_that_is_gone_are_done_by_others(tmp_path: Path) -> None:
    lost = Search(storage_of(tmp_path, None), {"a": "s"}, made, trials=1, lr=1e-3)
    assert lost.next() is not None
    other = Search(storage_of(tmp_path, None), {"a": "s"}, made, trials=1, lr=1e-3)
    assert other.next() is None  # somebody is at it
    ((_, trial),) = lost._mine.values()
    trial.set_user_attr("worker", {"host": "elsewhere", "pid": 1, "seen": time.time() - 1e4})
    other._poll_at = 0.0
    taken = other.next()
    assert taken is not None and taken.recipe.lr == 1e-3 and not other.done
    other.ended(taken, run_with(0.5, 0))
    assert other.done


def test_a_trial_that_was_interrupted_comes_again_with_its_rate(tmp_path: Path) -> None:
    def search() -> Search:
        return Search(storage_of(tmp_path, None), {"a": "s"}, made, trials=4, lr=1e-3)

    def asked(source: Search, times: int) -> list[Job]:
        jobs = [source.next() for _ in range(times)]
        assert None not in jobs
        return jobs  # type: ignore[return-value]

    first = search()
    jobs = asked(first, 4)
    rates = [job.recipe.lr for job in jobs]
    assert rates[0] == 1e-3 and len({*rates}) == 4
    first.ended(jobs[2], run_with(0.5, 0))
    first.given_up()  # ^C
    one, other = search(), search()  # two workers take up what is left
    again = [job.recipe.lr for source in (one, other, one) for job in asked(source, 1)]
    assert again == [rates[0], rates[1], rates[3]]


def test_two_workers_that_ask_at_once_take_different_ranks() -> None:
    def trial(**attrs: int) -> SimpleNamespace:
        return SimpleNamespace(user_attrs=attrs)

    assert _free_rank([]) == 0 and _free_rank([trial(rank=0), trial(rank=2)]) == 1
    assert _free_rank([trial(rank=0), trial(rank=2), trial()]) == 3  # the last takes 1 this very moment


@over("damage", ["{nonsense\n", '{"op_code": 0', "[1]\n", "{}\n"])
@over("place", ["middle", "end"])
def test_a_damaged_journal_is_named(damage: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthscope.training.search.POLL", 0.0)
    Search(storage_of(tmp_path, None), {"a": "s"}, made, trials=1, lr=1e-3)
    journal = tmp_path / "search.journal"
    good = journal.read_text()
    assert good.endswith("\n")
    journal.write_text(good + damage + (good if place == "middle" else ""))
    with pytest.raises(RecordError, match=r"search\.journal: must be .* Delete it to search anew; finished runs stay"):
        storage_of(tmp_path, None)


@pytest.mark.long
def test_a_search_end_to_end(folder: Path) -> None:
    result = ds.compare("digits", "pre_norm,post_norm@3e-4", seeds=1, search=2, folder=folder, processes=1, **TINY)
    searched, own = result.lanes
    assert searched.trials[0]["lr"] == 1e-3 and len(searched.trials) == 2 and not own.trials
    assert searched.lr == min(searched.trials, key=lambda trial: trial["valid_loss"])["lr"] and own.lr == 3e-4
    assert "2 trials" in str(result) and "validation split" in str(result)
    assert len([*folder.glob("pre_norm-*")]) == 2  # the run of the chosen trial is the arm's first seed: not done again


@over(
    "wrong, kind, words",
    [
        ({"dept": 3}, UnknownNameError, "depth"),
        ({"seeds": 0}, UsageError, "seeds must be"),
        ({"seeds": [1, 1]}, UsageError, "seeds must be"),
        ({"search": -1}, UsageError, "search must be"),
        ({"processes": 0}, UsageError, "processes must be"),
        ({"arms": "de_escalate:tau=7"}, UsageError, "tau"),
        ({"task": "digit"}, UnknownNameError, "digits"),
        ({"search": 1, "storage": "nonsense"}, UsageError, "storage: must be the URL"),
        ({"seeds": None}, UsageError, "seeds must be"),
        ({"seeds": [2**63]}, UsageError, "seeds must be"),
        ({"augment": "flip"}, UnknownNameError, "flip_crop"),
        ({"arms": "de_escalate:learnable=no"}, UsageError, "learnable of DeEscalate must be true or false"),
        ({"folder": __file__}, UsageError, "folder must be writable"),
    ],
)
def test_mistakes_are_told_before_anything_runs(wrong: dict, kind: type, words: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=words):
        ds.compare(**{"task": "digits", "arms": "pre_norm", "folder": tmp_path} | TINY | wrong)


def test_the_command_prints_json_alone(folder: Path, trained: Comparison) -> None:
    sizes = "--depth 2 --d 8 --h 2 --q 8 --epochs 1 --set train=128".split()
    words = ["compare", "digits", "--arms", "post_norm", "--seeds", "1", "--folder", str(folder), *sizes, "--json", "-"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and json.loads(result.stdout) == trained.to_dict() | {"reused": 2}


@over("setting", ["seeds=2", "search=1", "folder=x", "watch=1"])
def test_set_is_not_for_options(setting: str) -> None:
    with pytest.raises(UsageError, match=f"--set: must name a setting of recipe, model or task; got '{setting[:5]}"):
        CliRunner().invoke(app, ["compare", "digits", "--set", setting], catch_exceptions=False)


@over("option", ["--json", "--out"])
def test_a_folder_is_no_place_for_a_file(option: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be a file; it is a folder"):
        CliRunner().invoke(app, ["compare", "digits", option, str(tmp_path)], catch_exceptions=False)
