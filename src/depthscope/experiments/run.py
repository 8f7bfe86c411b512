"""reproduce(): run an experiment, or all of a paper, and keep claims, numbers and figures."""

import dataclasses
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from depthscope.errors import RecordError, UnknownNameError, UsageError
from depthscope.experiments.axes import finish
from depthscope.experiments.claim import Claim
from depthscope.experiments.found import find, module_of, names
from depthscope.experiments.progress import listening
from depthscope.files import check_writable, whole_file
from depthscope.records import Record, plain, read
from depthscope.registry import unknown
from depthscope.reports.show import need_matplotlib, new_figure, picture
from depthscope.training.executors import using
from depthscope.training.lock import in_turn

FORMAT = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Reproduction(Record):
    """What one experiment gave: its settings, its numbers, and the claims that were tested on them.

    Examples:
        >>> result = ds.reproduce("yu2023/fig8", smoke=True)
        >>> result.name, len(result.claims) > 0, result.claims[0].holds
        ('yu2023/fig8', True, True)
    """

    FORMAT, VERSION = "depthscope.reproduction", 3  # 1 had no folder in some experiments with trainings, 2 no null

    name: str
    config: Any
    smoke: bool
    numbers: dict[str, torch.Tensor]
    claims: list[Claim]
    seconds: float
    versions: dict[str, str] = dataclasses.field(default_factory=lambda: made_with())  # of what computed it

    @property
    def holds(self) -> bool:
        """Whether every claim that is counted holds."""
        return all(claim.holds for claim in self.claims if claim.counted)

    def draw(self, figure: Any = None) -> Any:
        figure = new_figure((12, 4)) if figure is None else figure
        module_of(self.name).draw(self.numbers, self.config, figure)
        finish(figure)
        return figure

    def figure(self) -> Any:
        """The matplotlib figure."""
        return self.draw()

    def gist(self) -> str:
        counted = [claim for claim in self.claims if claim.counted]
        return f"{self.name}: {sum(claim.holds for claim in counted)} of {len(counted)} claims hold"

    def derived(self) -> dict[str, Any]:
        return self.versions

    @classmethod
    def from_dict(cls, record: Any) -> "Reproduction":
        found = super().from_dict(record)
        if found.name not in names():
            told = unknown("experiment", found.name, names())
            raise RecordError(f"Reproduction.name: must be an experiment of this depthscope; {told}")
        config = read(record["config"], module_of(found.name).Config, record["version"], "Reproduction.config")
        return dataclasses.replace(found, config=config)

    def save(self, folder: str | Path) -> Path:
        """Write the figure, and the record into results.json beside it; whole files or none.

        A name that ends in .json is not a folder: the record alone is written there.
        """
        if str(folder).endswith(".json"):
            return super().save(folder)
        target = home(folder, self.name, smoke=self.smoke) / f"{self.name.partition('/')[2]}.png"
        picture(self, target)
        results = target.with_name("results.json")
        with in_turn(results):  # others may reproduce something of this paper into the same folder
            kept = read_results(results) | {target.stem: self.to_dict()}
            lines = [f"{json.dumps(name)}: {json.dumps(record, allow_nan=False)}" for name, record in kept.items()]
            with whole_file(results) as part:
                part.write_text(f'{{"format": {FORMAT}, "experiments": {{\n' + ",\n".join(lines) + "\n}}\n")
        return target


def made_with() -> dict[str, str]:
    """The versions of what computes."""
    return {"torch": torch.__version__, "depthscope": version("depthscope")}


def results(path: str | Path) -> dict[str, Reproduction]:
    """The reproductions in a results.json, by their names.

    Examples:
        >>> result = ds.reproduce("yu2023/fig8", smoke=True, out="out")
        >>> list(ds.experiments.results("out/yu2023_smoke/results.json"))
        ['yu2023/fig8']
    """
    found = {}
    for item, record in read_results(Path(path)).items():
        if "format" not in record:  # written before records had one form
            name = next((name for name in names() if name.partition("/")[2] == item), item)
            claims = [Claim.of_words(claim) for claim in record["claims"]]
            versions = {part: record[part] for part in made_with()}
            record |= {"format": Reproduction.FORMAT, "version": 1, "name": name, "versions": versions}
            record["claims"] = plain(claims)
        found[record["name"]] = Reproduction.from_dict(record)
    return found


def home(folder: str | Path, name: str, *, smoke: bool) -> Path:
    """Where an experiment's files go: a folder for each paper, and one more for its small sizes."""
    return Path(folder) / (name.partition("/")[0] + "_smoke" * smoke)


def reproduce(
    name: str, *, smoke: bool = False, out: str | Path | None = None, executor: Any = None, **settings: Any
) -> Any:
    """Run an experiment ("yu2023/fig2"), all of a paper ("yu2023") or "all".

    Returns a Reproduction, or a list of them for more than one experiment.

    Args:
        name: The name of an experiment, a paper, or "all".
        smoke: True runs at small sizes, in seconds.
        out: A folder for figures and results.json.
        executor: Who runs trainings that can run side by side, as for ds.compare.
        **settings: Replace the settings of the experiment, such as depth=40.

    Examples:
        >>> ds.reproduce("yu2023/fig8", smoke=True).name
        'yu2023/fig8'
    """
    planned = plan(name, smoke=smoke, **settings)
    if out is not None:
        check_out(out, [item for item, _ in planned], smoke=smoke)
    done = []
    for item, config in planned:
        with using(executor):
            done.append(run_one(item, config, smoke=smoke))
        if out is not None:
            done[-1].save(out)
    return done[0] if [item for item, _ in planned] == [name] else done


def plan(name: str, *, smoke: bool = False, **settings: Any) -> list[tuple[str, Any]]:
    """The experiments that a name stands for, each with its Config: all is checked before anything runs.

    For a whole paper a setting goes to the experiments that have it.
    """
    items = {item: module_of(item) for item in find(name)}
    configs = {item: module.SMOKE if smoke else module.Config() for item, module in items.items()}
    known = {field.name for config in configs.values() for field in dataclasses.fields(config)}
    for key in settings:
        if key not in known:
            raise UnknownNameError(f"{name}: " + unknown("setting", key, known))
    return [
        (item, configured(item, config, {k: v for k, v in settings.items() if hasattr(config, k)}))
        for item, config in configs.items()
    ]


def run_one(
    name: str, config: Any, *, smoke: bool = False, listener: Callable[[int, int], None] | None = None
) -> Reproduction:
    """One experiment with its own seed; the caller's random state is left alone."""
    module = module_of(name)
    begin = time.perf_counter()
    with torch.random.fork_rng(devices=[]), listening(listener):
        torch.manual_seed(config.seed)
        numbers = module.run(config)
    return Reproduction(name, config, smoke, numbers, module.claims(numbers, config), time.perf_counter() - begin)


# A Config whose experiment makes sense with less says so in a LEAST of its own.
LEAST = {"seed": 0, "n": 2, "depth": 2, "trials": 2, "draws": 2, "cases": 2, "pairs": 8, "points": 10, "segment": 2}


def configured(name: str, config: Any, settings: dict[str, Any]) -> Any:
    """The settings put into an experiment's Config, held to the kind of its defaults and the LEAST that makes sense."""
    bounds = LEAST | getattr(config, "LEAST", {})
    for key, value in settings.items():
        like = getattr(config, key)
        value = settings[key] = tuple(value) if isinstance(value, list) else value
        entries, likes = (value, like) if isinstance(like, tuple) and isinstance(value, tuple) else ((value,), (like,))
        if not entries or not all(_alike(entry, likes[0]) for entry in entries):
            raise UsageError(f"{name}: {key} must be like {like!r}; got {value!r}.")
        least = bounds.get(key, 1)
        if any(type(entry) is type(likes[0]) is int and entry < least for entry in entries):
            raise UsageError(f"{name}: {key} must be {least} or more; got {value!r}.")
        if key == "seed" and entries[0] >= 2**63:
            raise UsageError(f"{name}: seed must be below 2^63; got {value}.")
    return dataclasses.replace(config, **settings)


def _alike(value: Any, like: Any) -> bool:
    """Of the same type, or a number where a number is meant; not NaN, and not out of all proportion."""
    if isinstance(like, float):
        return type(value) in (int, float) and abs(value) <= 1e6
    return type(value) is type(like)


def read_results(path: Path) -> dict[str, Any]:
    """The experiments already in a results.json, by name; none when there is no such file."""
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text())
        assert record["format"] == FORMAT and all(isinstance(one, dict) for one in record["experiments"].values())
        return record["experiments"]
    except (ValueError, KeyError, AssertionError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(
            f"{path}: must be a results.json of format {FORMAT}; it is not. Move it away, or choose another --out."
        ) from error


def check_out(folder: str | Path, items: list[str], *, smoke: bool) -> None:
    """Before the first minute is spent: can the figures be drawn, and can the folder be written?"""
    need_matplotlib()
    for results in {home(folder, item, smoke=smoke) / "results.json" for item in items}:
        check_writable(results)
        read_results(results)
