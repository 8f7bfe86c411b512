"""The plan of a comparison: which jobs there are, in which folders, and what their results are put together to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from depthscope.training.arms import Arm, rate_words
from depthscope.training.build import Build
from depthscope.training.comparison import Comparison
from depthscope.training.executors import Crew
from depthscope.training.job import RECORD, Job, key
from depthscope.training.lane import Lane, thinned
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from depthscope.training.search import Search, best, in_words, storage_of
from depthscope.training.tasks import Task
from depthscope.training.work import OnMoment, work


class Plan:
    """What all jobs of a comparison share."""

    def __init__(
        self,
        folder: Path,
        task: Task,
        options: dict[str, Any],
        base: Build,
        recipe: Recipe,
        seeds: list[int],
        crew: Crew,
        watch: OnMoment | None,
    ) -> None:
        self.folder, self.task, self.options, self.base, self.recipe = folder, task, options, base, recipe
        self.seeds, self.crew, self.watch = seeds, crew, watch
        self._earlier = {path.parent for path in folder.glob(f"*/{RECORD}")}  # not those that our own search will do

    def job(self, arm: Arm, rate: float, seed: int, label: str) -> Job:
        """Its folder is told by all that decides its result, so that what is found there is what would be computed."""
        build, recipe = arm.build(self.base), replace(self.recipe, lr=rate, seed=seed)
        settings = key(build.to_dict(), recipe.to_dict(), self.task.name, self.task.fingerprint)
        name = arm.name.partition("@")[0].translate(str.maketrans(":=,+/ ", "______"))
        folder = self.folder / f"{name}-{settings}"
        return Job(label, folder, self.task.name, self.options, build, recipe, fingerprint=self.task.fingerprint)

    def search(
        self, arms: list[Arm], trials: int, url: str | None
    ) -> tuple[dict[str, float], dict[str, list[dict[str, Any]]], str]:
        """The rate of each arm that has none of its own, the trials that it was chosen from, and words on them."""
        free = {arm.name: arm for arm in arms if arm.lr is None}
        shared = (self.recipe.to_dict(), self.seeds[0], self.task.name, self.task.fingerprint)
        studies = {name: f"{name} {key(arm.build(self.base).to_dict(), *shared)}" for name, arm in free.items()}

        def job(name: str, rate: float, number: int) -> Job:
            return self.job(free[name], rate, self.seeds[0], f"{name}, trial {number} at {rate_words(rate)}")

        source = Search(storage_of(self.folder, url), studies, job, trials=trials, lr=self.recipe.lr)
        at_once = self.crew.workers  # no more: a later trial learns from those before it
        work(source, self.crew.executor, self.folder, at_once=at_once, watch=self.watch)
        done = {name: source.completed(name) for name in free}
        plain = {
            name: [{"lr": t.params["lr"], "valid_loss": t.value, "why": t.user_attrs["why"]} for t in found]
            for name, found in done.items()
        }
        chosen = {name: one.params["lr"] for name, found in done.items() if (one := best(found)) is not None}
        return chosen, plain, in_words(source, [arm.name for arm in arms if arm.lr is not None])

    def compare(
        self, arms: list[Arm], rates: dict[str, float], trials: dict[str, list[dict[str, Any]]], words: str
    ) -> Comparison:
        rate = {arm.name: arm.lr or rates.get(arm.name, self.recipe.lr) for arm in arms}
        jobs = {
            (arm.name, seed): self.job(arm, rate[arm.name], seed, f"{arm.name}, seed {seed}")
            for seed in self.seeds
            for arm in arms
        }
        reused = sum(job.folder in self._earlier and job.ended() is not None for job in jobs.values())
        source = Listed([*jobs.values()])
        work(source, self.crew.executor, self.folder, at_once=self.crew.asked, watch=self.watch)
        lanes, steps = [], self.recipe.steps(len(self.task))
        for arm in arms:
            found = {seed: source.outcomes[jobs[arm.name, seed]] for seed in self.seeds}
            runs = {seed: thinned(run, steps) for seed, run in found.items() if isinstance(run, Run)}
            failed = {seed: why for seed, why in found.items() if isinstance(why, str)}
            lanes.append(Lane(arm, rate[arm.name], runs, failed, trials.get(arm.name, [])))
        told = {"score": self.task.score, "answers": self.task.answers, "sites": self.task.sites}
        facts = {"fingerprint": self.task.fingerprint, **told, **self.task.facts}
        return Comparison(self.task.name, facts, self.base, self.recipe, steps, self.seeds, lanes, words, reused)


class Listed:
    """A source of jobs that are all known from the start."""

    def __init__(self, jobs: list[Job]) -> None:
        self._left, self._all, self.outcomes = list(jobs), len(jobs), dict[Job, Run | str]()

    @property
    def done(self) -> bool:
        return len(self.outcomes) == self._all

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.outcomes), self._all

    def next(self) -> Job | None:
        return self._left.pop(0) if self._left else None

    def ended(self, job: Job, outcome: Run | str) -> None:
        self.outcomes[job] = outcome

    def show_life(self) -> None:
        """The locks of the folders are sign enough."""

    def given_up(self) -> None:
        """The folders remember what was done."""
