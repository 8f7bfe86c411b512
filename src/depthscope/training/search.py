"""A learning rate for each arm, chosen on the validation split: equal trials, shared by all who share the storage."""

import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

from depthscope.errors import MissingExtraError, RecordError, UsageError, first_line
from depthscope.extras import install
from depthscope.files import refuse_link
from depthscope.training.arms import rate_words
from depthscope.training.job import Job
from depthscope.training.run import Run
from depthscope.training.workers import BEAT, gone, worker

RANGE = (1e-5, 1e-2)  # all rates lie between these, or wider when the given rate lies outside
LADDER = (1, 1 / 3, 3, 1 / 10, 10, 1 / 30, 30)  # the first rates over the given one, the same for all arms
RETRIES = 2  # trials of an arm that may fail for reasons outside of it and are made up for
JOURNAL = "search.journal"
LOOKS = 3  # how often a database that says no is asked
POLL = 1.0  # seconds between two questions to the storage when there is nothing to start


def storage_of(folder: Path, url: str | None) -> Any:
    """Where trials are kept: a relational database by its URL, or a journal file in the folder."""
    optuna = _optuna()
    if url is not None:
        try:
            return _database(optuna, url)
        except Exception as error:  # SQLAlchemy, its drivers and Optuna each have their own
            raise UsageError(
                f"storage: must be the URL of a database that can be reached, as sqlite:///trials.db; "
                f"{without_secrets(url, f'got {url!r}: {first_line(error)}')}. Leave it out for a file in the "
                "folder."
            ) from None  # whose words and locals have the password too
    folder.mkdir(parents=True, exist_ok=True)
    return _journal(optuna, folder / JOURNAL)


def without_secrets(url: str, words: str) -> str:
    """Words in which *** stands for the password of a URL, and for every value after its question mark."""
    place, _, options = url.partition("?")
    user = place.rpartition("@")[0].rpartition("://")[2]
    found = [user.partition(":")[2], *(pair.partition("=")[2] for pair in options.split("&"))]
    for secret in sorted({one for raw in found for one in (raw, unquote_plus(raw)) if one}, key=len, reverse=True):
        words = words.replace(secret, "***").replace(repr(secret)[1:-1], "***")
    return words


def _database(optuna: Any, url: str) -> Any:
    """The database, with its tables. Whoever comes while another makes them is told that they exist and looks again."""
    from sqlalchemy.exc import DBAPIError

    for _ in range(LOOKS - 1):
        try:
            return optuna.storages.RDBStorage(url)
        except DBAPIError:
            time.sleep(POLL)
    return optuna.storages.RDBStorage(url)


def _journal(optuna: Any, path: Path) -> Any:
    """The journal file, every line of which must be whole: Optuna would fail at a damaged one, here or later."""
    refuse_link(path)  # Optuna would write through it
    try:
        if not _whole(path):
            time.sleep(POLL)  # somebody may be writing to it this very moment
            if not _whole(path):
                raise ValueError("a line of it is cut off or is no JSON")
        return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    except Exception as error:  # Optuna asserts, and looks for what is not there
        raise RecordError(
            f"{path}: must be a journal of trials by Optuna; it is damaged: {error}. "
            "Delete it to search anew; finished runs stay."
        ) from None


def _whole(path: Path) -> bool:
    if not path.exists():
        return True
    *lines, rest = path.read_bytes().split(b"\n")
    try:
        return rest == b"" and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


class Search:
    """A source of trial jobs: `trials` for each arm, the first at the given rate, then up and down the ladder from it.

    studies: the study's name in the storage for each arm, the same on every machine. job(arm, rate, number) makes the
    job of a trial. A trial is judged by its validation loss; one that diverged counts, and loses. One that failed for
    reasons outside of it (a full disk, no memory) says nothing about its rate: another takes its place, RETRIES times
    for each arm; after that it is lost. Failures of earlier searches are forgiven: their reason may be gone.

    A trial has a rank, the least that is free: 0 is the given rate, the next are rungs of the ladder, those after it
    seeds of what is drawn by what was learned. So one that takes the place of another on the ladder has its rate, and
    goes on in its folder.
    """

    def __init__(
        self, storage: Any, studies: Mapping[str, str], job: Callable[[str, float, int], Job], *, trials: int, lr: float
    ) -> None:
        optuna = self._optuna = _optuna()
        self._job, self.trials, self.lr = job, trials, lr
        self.range = (min(RANGE[0], lr), max(RANGE[1], lr))
        self._rungs = [rate for rung in LADDER if self.range[0] <= (rate := lr * rung) <= self.range[1]]
        self.studies = {
            arm: optuna.create_study(study_name=name, storage=storage, load_if_exists=True)
            for arm, name in studies.items()
        }
        self._forgiven = {arm: {t.number for t in self._failed(arm)} for arm in studies}
        self._mine: dict[Job, tuple[str, Any]] = {}  # arm and trial of the jobs that were handed out
        self._beat = self._poll_at = 0.0

    @property
    def done(self) -> bool:
        return all(self._over(arm) >= self.trials for arm in self.studies)

    @property
    def counts(self) -> tuple[int, int]:
        ended = sum(min(self.trials, self._over(arm)) for arm in self.studies)
        return ended, self.trials * len(self.studies)

    def completed(self, arm: str) -> list[Any]:
        """The trials of an arm that have ended, by number."""
        return [t for t in self.studies[arm].get_trials(deepcopy=False) if t.state.name == "COMPLETE"][: self.trials]

    def lost(self, arm: str) -> list[str]:
        """Why each trial failed that nothing took the place of."""
        return [t.user_attrs["why"] for t in self._failed(arm) if t.number not in self._forgiven[arm]][RETRIES:]

    def next(self) -> Job | None:
        """A trial of the arm that has the fewest; None while others are at all that is left."""
        if time.monotonic() < self._poll_at:
            return None
        alive = {arm: self._alive(arm) for arm in self.studies}
        for arm in sorted(alive, key=lambda arm: alive[arm]):
            if alive[arm] < self.trials:
                trial = self._ask(arm)
                if trial is not None:
                    job = self._job(arm, trial.params["lr"], trial.number)
                    self._mine[job] = (arm, trial)
                    return job
        self._poll_at = time.monotonic() + POLL
        return None

    def ended(self, job: Job, outcome: Run | str) -> None:
        """Tell the others how a trial ended, unless they have given it up: then it is theirs."""
        self._poll_at = 0.0
        arm, trial = self._mine.pop(job, (None, None))
        if arm is None or not self._note(trial, "why", outcome if isinstance(outcome, str) else outcome.reason):
            return
        if isinstance(outcome, str):
            self._fail(arm, trial)
            return
        loss = outcome.final["valid"]["loss"] if outcome.status == "done" else math.inf
        self.studies[arm].tell(trial, loss, skip_if_finished=True)

    def given_up(self) -> None:
        """Give back the trials that will not end, so that others need not wait for them."""
        for job in [*self._mine]:
            arm, trial = self._mine.pop(job)
            self._fail(arm, trial)

    def show_life(self) -> None:
        """Tell the others that our trials are still on their way."""
        if time.monotonic() > self._beat + BEAT:
            self._beat = time.monotonic()
            self._mine = {job: mine for job, mine in self._mine.items() if self._note(mine[1], "worker", worker())}

    def _note(self, trial: Any, name: str, value: Any) -> bool:
        """Write something to a trial; False when others gave it up for gone, and it takes no more."""
        try:
            trial.set_user_attr(name, value)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            return False
        return True

    def _failed(self, arm: str) -> list[Any]:
        """The trials that ended without a result; those that were given up have no reason, and are not among them."""
        trials = self.studies[arm].get_trials(deepcopy=False)
        return [t for t in trials if t.state.name == "FAIL" and "why" in t.user_attrs]

    def _over(self, arm: str) -> int:
        return len(self.completed(arm)) + len(self.lost(arm))

    def _alive(self, arm: str) -> int:
        """Trials that are done, on their way or lost; those of workers that are gone are given up."""
        count = 0
        for trial in self.studies[arm].get_trials(deepcopy=False):
            if trial.state.name == "RUNNING" and _deserted(trial):
                self._fail(arm, trial.number)
            elif trial.state.name != "FAIL":
                count += 1
        return count + len(self.lost(arm))

    def _ask(self, arm: str) -> Any:
        """A new trial with its rate, or None when others were faster.

        Numbers of trials are unique in a storage and grow, so counting those before one's own is enough for any number
        of workers to do exactly as many as were asked for.
        """
        study, state = self.studies[arm], self._optuna.trial.TrialState
        study.sampler = self._sampler(0)
        trial = study.ask()
        before = [t for t in study.get_trials(deepcopy=False) if t.number < trial.number and t.state != state.FAIL]
        if len(before) + len(self.lost(arm)) >= self.trials:
            self._fail(arm, trial)
            return None
        rank = _free_rank(before)
        trial.set_user_attr("rank", rank)
        trial.set_user_attr("worker", worker())
        study.sampler = self._sampler(rank, self._rungs[rank] if rank < len(self._rungs) else None)
        trial.suggest_float("lr", *self.range, log=True)
        return trial

    def _sampler(self, rank: int, rate: float | None = None) -> Any:
        """A given rate, or TPE, seeded by the trial's rank: two workers do not draw the same."""
        samplers = self._optuna.samplers
        learned = samplers.TPESampler(seed=rank, n_startup_trials=len(self._rungs), multivariate=False)
        if rate is None:
            return learned
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            return samplers.PartialFixedSampler({"lr": rate}, learned)

    def _fail(self, arm: str, trial: Any) -> None:
        self.studies[arm].tell(trial, state=self._optuna.trial.TrialState.FAIL, skip_if_finished=True)


def _free_rank(before: Sequence[Any]) -> int:
    """The least rank that none of the trials before has; each that was asked for a moment ago will take one first."""
    ranks = [t.user_attrs.get("rank") for t in before]
    return next(islice((rank for rank in count() if rank not in ranks), ranks.count(None), None))


def best(trials: Iterable[Any]) -> Any:
    """The trial with the lowest validation loss, the earliest of equals; None when none came to a finite loss."""
    succeeded = [trial for trial in trials if math.isfinite(trial.value)]
    return min(succeeded, key=lambda trial: (trial.value, trial.number), default=None)


def in_words(search: Search, own: Sequence[str]) -> str:
    """How rates were chosen, and what went wrong with it. own: the arms that came with a rate."""
    low, high = map(rate_words, search.range)
    said = [words for arm in search.studies for words in _losses(search, arm)]
    if search.studies:
        said.insert(
            0,
            f"Each rate was chosen among {search.trials} trials: {rate_words(search.lr)}, a third of it, three times "
            f"it and so on, between {low} and {high}; by the loss on the validation split with the first seed.",
        )
    edge = [arm for arm in search.studies if at_the_edge(search.completed(arm))]
    if edge:
        said.append(
            f"Of {', '.join(edge)} the best rate is the largest or the smallest that was tried: a better one may "
            f"lie beyond. --search {search.trials + 2} tries further."
        )
    if own:
        said.append(f"Arms with a rate of their own were not searched: {', '.join(own)}.")
    return " ".join(said)


def at_the_edge(trials: Sequence[Any]) -> bool:
    """Whether the best rate of several is not between two others."""
    chosen, rates = best(trials), [trial.params["lr"] for trial in trials]
    return chosen is not None and len({*rates}) > 1 and chosen.params["lr"] in (min(rates), max(rates))


def _losses(search: Search, arm: str) -> list[str]:
    """The trials of an arm that came to nothing."""
    trials, lost = search.completed(arm), search.lost(arm)
    diverged = sum(math.isinf(trial.value) for trial in trials)
    said = [f"Trials of {arm} that diverged: {diverged}."] if diverged else []
    if lost:
        said.append(f"Trials of {arm} that were lost: {len(lost)} ({lost[-1]}).")
    if best(trials) is None:
        said.append(f"No trial of {arm} succeeded: it was trained at the given rate, {rate_words(search.lr)}.")
    return said


def _deserted(trial: Any) -> bool:
    """Whether nobody works on a running trial any more."""
    known = trial.user_attrs.get("worker") or {"seen": trial.datetime_start.timestamp()}  # asked for a moment ago
    return gone(known)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError(f"search: needs optuna. {install('train')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
