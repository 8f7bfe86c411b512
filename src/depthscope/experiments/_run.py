"""reproduce(): run an experiment, or all of a paper, and keep claims, numbers and figures."""

import dataclasses
import importlib
import json
import math
import pkgutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from depthscope._files import check_writable, whole_file
from depthscope._registry import unknown
from depthscope.errors import MissingExtraError, RecordError, UnknownNameError, UsageError
from depthscope.experiments._claim import Claim
from depthscope.experiments._progress import listening

FORMAT = 1
ROOT = Path(__file__).parent


def names() -> list[str]:
    """All experiments, as paper/item."""
    papers = [p.name for p in pkgutil.iter_modules([str(ROOT)]) if p.ispkg]
    return [
        f"{paper}/{item.name}"
        for paper in papers
        for item in pkgutil.iter_modules([str(ROOT / paper)])
        if not item.name.startswith("_")
    ]


def find(name: str) -> list[str]:
    """The experiments that a name stands for: one item, all of a paper, or all."""
    known = names()
    found = [k for k in known if name in ("all", k, k.partition("/")[0])]
    if not found:
        papers = {k.partition("/")[0] for k in known}
        raise UnknownNameError(unknown("experiment", name, [*known, *papers, "all"]))
    return found


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"depthscope.experiments.{name.replace('/', '.')}")


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What one experiment gave: its settings, its numbers, and the claims that were held against them."""

    name: str
    config: Any
    numbers: dict[str, torch.Tensor]
    claims: list[Claim]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether every claim that was expected to hold does."""
        return all(claim.holds for claim in self.claims if claim.expected)

    def figure(self) -> Any:
        """The matplotlib figure."""
        need_matplotlib()
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 4), layout="constrained")
        module_of(self.name).draw(self.numbers, self.config, figure)
        return figure

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": dataclasses.asdict(self.config),
            "seconds": round(self.seconds, 2),
            "claims": [claim.to_dict() for claim in self.claims],
            "numbers": {name: plain(value) for name, value in self.numbers.items()},
        }

    def save(self, folder: str | Path) -> Path:
        """Write the figure, and the numbers and claims into results.json beside it; whole files or none."""
        paper, _, item = self.name.partition("/")
        target = Path(folder) / paper / f"{item}.png"
        figure = self.figure()
        with whole_file(target) as part:
            figure.savefig(part, dpi=140)
        results = target.with_name("results.json")
        kept = read_results(results)
        kept[item] = self.to_dict()
        with whole_file(results) as part:
            part.write_text(json.dumps({"format": FORMAT, "experiments": kept}, indent=1, allow_nan=False))
        return target


def reproduce(name: str, *, smoke: bool = False, out: str | Path | None = None, **settings: Any) -> Any:
    """Run an experiment ("yu2023/fig2"), all of a paper ("yu2023") or "all"; settings replace the paper's sizes.

    Gives a Reproduction, or a list of them for more than one. With out, figures and results.json are written there.
    """
    done = []
    for item in find(name):
        done.append(run_one(item, smoke=smoke, **settings))
        if out is not None:
            done[-1].save(out)
    return done[0] if find(name) == [name] else done


def run_one(
    name: str, *, smoke: bool = False, listener: Callable[[int, int], None] | None = None, **settings: Any
) -> Reproduction:
    """One experiment with its own seed; the caller's random state is left alone."""
    module = module_of(name)
    config = configured(name, module.SMOKE if smoke else module.Config(), settings)
    begin = time.perf_counter()
    with torch.random.fork_rng(devices=[]), listening(listener):
        torch.manual_seed(config.seed)
        numbers = module.run(config)
    return Reproduction(name, config, numbers, module.claims(numbers, config), time.perf_counter() - begin)


def configured(name: str, config: Any, settings: dict[str, Any]) -> Any:
    """The settings put into an experiment's Config, by name and kind."""
    known = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    for key, value in settings.items():
        if key not in known:
            raise UnknownNameError(f"{name}: " + unknown("setting", key, known))
        if type(value) is not type(known[key]) and not (isinstance(known[key], float) and isinstance(value, int)):
            raise UsageError(f"{name}: {key} must be like {known[key]!r}; got {value!r}.")
    config = dataclasses.replace(config, **settings)
    for key, value in dataclasses.asdict(config).items():
        if key != "seed" and isinstance(value, int) and value < 1:
            raise UsageError(f"{name}: {key} must be 1 or more; got {value}.")
    return config


def plain(value: Any) -> Any:
    """Tensors as nested lists; what is no finite number as its name."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_results(path: Path) -> dict[str, Any]:
    """The experiments already in a results.json, by name; none when there is no such file."""
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text())
        assert record["format"] == FORMAT
        return record["experiments"]
    except (ValueError, KeyError, AssertionError, TypeError) as error:
        raise RecordError(
            f"{path}: must be a results.json of format {FORMAT}; it is not. Move it away, or choose another --out."
        ) from error


def check_out(folder: str | Path, items: list[str]) -> None:
    """Before the first minute is spent: can the figures be drawn, and can the folder be written?"""
    need_matplotlib()
    for paper in {item.partition("/")[0] for item in items}:
        check_writable(Path(folder) / paper / "results.json")
        read_results(Path(folder) / paper / "results.json")


def need_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("figures need matplotlib. pip install 'depthscope[plot]'")


def shelf() -> Iterator[tuple[str, str]]:
    """Every experiment with the first line of its file."""
    for name in names():
        yield name, (module_of(name).__doc__ or "").strip().splitlines()[0]
