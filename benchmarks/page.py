"""Run the benchmarks and write docs/benchmarks.md from what they print: python benchmarks/page.py [--only grid,peers]

No number on the page is written by hand. A section that is not run again stays as the run before left it.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import torch
from before import BEFORE, NOW

from depthscope.benches.record import Bench
from depthscope.records import load
from depthscope.reports.benches import compared
from depthscope.reports.show import markdown

ROOT = Path(__file__).parents[1]
PAGE, OUT = ROOT / "docs" / "benchmarks.md", ROOT / "out"
GRID = OUT / "grid.json"
HEAD = """# Benchmarks

A scan runs the model once and measures while it runs. This page says how much longer that takes
than the plain pass, at every size, and what the other verbs cost.

Both sides of a ratio take turns in one process, and the fastest run of each counts, because noise
only adds. Where the spread says *once*, each side ran once. Timings are never tests. `make bench`
runs everything and writes this page; `python benchmarks/page.py --only NAME` renews one section.
`depthscope bench` measures the same grid on your machine.
"""
FULL = ("--grid", "full", "--budget", "2400", "--repeats", "2", "--clock", "cpu", "--threads", "1")
COST = (
    "The aim is a scan of at most 1.10 times a plain pass with state metrics, and 1.60 with attention statistics. "
    "A scan does as many small operations for a small block as for a large one, so that models of small width, whose "
    "blocks take a few milliseconds, pay most. Attention statistics need products with every n x n matrix P, which no "
    "exact method "
    "avoids, and a block of width 256 computes little else: [the floor](notebook/scans.md#what-the-rest-is-the-floor)."
)


@dataclass(frozen=True)
class Section:
    """A title, what is said below it, and the function that runs and returns the text."""

    title: str
    about: str
    text: Callable[[], str]


def printed(script: str, **environment: str) -> str:
    """What a script prints, as it is."""
    words = [sys.executable, str(ROOT / "benchmarks" / script)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=os.environ | environment)
    if done.returncode:
        return f"{fenced(done.stdout)}\n\n`benchmarks/{script}` failed with exit code {done.returncode}."
    return fenced(done.stdout)


def fenced(words: str) -> str:
    return f"```text\n{words.rstrip()}\n```"


def of_the_grid() -> str:
    """depthscope bench, as its own report shows it. BENCH among the environment's names chooses other options."""
    words = os.environ["BENCH"].split() if "BENCH" in os.environ else FULL
    OUT.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "depthscope", "bench", *words, "--json", str(GRID)], check=True)
    told = markdown(load(GRID)).partition("\n")[2].strip()  # without its title
    command = fill(f"depthscope bench {' '.join(words)}", 98, break_on_hyphens=False)
    return f"{fenced(command)}\n\n{told}"


def before_and_after() -> str:
    """The cells of before.py, at an earlier commit and now, measured side by side."""
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / "before.py")], check=True)
    before, after = Bench.load(BEFORE), Bench.load(NOW)
    left_out = [f"- before, {one.cell}: {one.left_out}" for one in before.cells if one.left_out]
    told = [compared(before, after).markdown(), "", f"Before: {'; '.join(before.notes)}."]
    if left_out:
        told += ["", "What a scan did not read; these ratios do not count:", "", *left_out]
    return "\n".join(told)


def script(name: str, title: str, about: str = "", **environment: str) -> tuple[str, Section]:
    key = name.removesuffix(".py")
    return key, Section(title, about, lambda: printed(name, **environment))


SECTIONS: dict[str, Section] = dict(
    [
        ("grid", Section("What a scan costs", COST, of_the_grid)),
        (
            "before",
            Section(
                "Before and after",
                "Ratios to the plain pass, processor time of one thread, both measured at the same time; * is above "
                "the aim. `python benchmarks/before.py COMMIT` compares with another commit.",
                before_and_after,
            ),
        ),
        script("peers.py", "Peers", "Ratios to a plain pass of the same BERT, and their lowest and highest round."),
        script("scan.py", "Imports, metrics, long sequences"),
        script("long.py", "Sequences of 32,768 tokens"),
        script("watching.py", "Watching alone"),
        script("reproduce.py", "Experiments and the ViT"),
        script("remedies.py", "Remedies", "A training step with a remedy over one without."),
        script("spectral.py", "Eigenvalues in the place of W_V W_O"),
        script("forecast.py", "Forecasts", "The scan is the cheapest that gives the curve: t_sim alone."),
        script("paths.py", "Paths"),
        script("causality.py", "Trials of causality"),
        script("training.py", "Training", OMP_NUM_THREADS="1"),
        script(
            "monitor.py",
            "A monitor of any training",
            "A look every 100 steps makes a training longer by as many percent.",
            OMP_NUM_THREADS="1",
        ),
        script(
            "depth.py",
            "Effective depth",
            "The lens is not among the measures of one pass: it multiplies every state by the head.",
            OMP_NUM_THREADS="1",
        ),
        script("language.py", "Transformer-XL", "Against a plain reading of the paper, from the same weights."),
    ]
)


def written(page: str, fresh: dict[str, str]) -> str:
    """The page with fresh sections in the place of old ones; one that was never run says so."""
    parts = [HEAD]
    for name, section in SECTIONS.items():
        body = fresh.get(name) or old(page, name) or f"Not run yet: `python benchmarks/page.py --only {name}`."
        parts.append(f"## {section.title}\n\n<!-- {name} -->\n{body}\n<!-- end of {name} -->\n")
    return "\n".join(parts)


def old(page: str, name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end of {name} -->", page, re.DOTALL)
    return found.group(1) if found else ""


def run(section: Section) -> str:
    """What a section says now, with the machine and the commit."""
    commit = subprocess.check_output(["git", "-C", ROOT, "describe", "--always", "--dirty"], text=True).strip()
    threads = torch.get_num_threads()
    where = f"{platform.machine()}, {threads} thread{'s' * (threads > 1)}, torch {torch.__version__}, commit {commit}"
    about = fill(section.about, 98, break_on_hyphens=False)
    return "\n\n".join(words for words in (about, section.text(), f"Measured on {where}.") if words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections to run, with commas between them")
    names = parser.parse_args().only.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        parser.error(f"sections are {', '.join(SECTIONS)}; got {unknown[0]!r}")
    for name in names:  # the page is whole after every section, whatever happens to the next
        print(f"{name}: running", file=sys.stderr, flush=True)
        fresh = {name: run(SECTIONS[name])}
        PAGE.write_text(written(PAGE.read_text() if PAGE.exists() else "", fresh))


if __name__ == "__main__":
    main()
