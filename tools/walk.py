"""The files that a verb passes, in the order in which they are first entered, and every call against the imports.

    python tools/walk.py scan|fix_|forecast ...     print them
    python tools/walk.py --write                    put them into docs/explanation/architecture.md

The model is a plain one of torch, so that no file of depthscope is a part of it. A file is listed once: its number, the
function by which it is entered first, the number of the file that called it, and the first words of its docstring. A
call goes up where the caller does not import the file that it calls: a listener is told, a subclass is asked, a
function was handed over. tests/test_architecture.py holds the page to what this script gives.
"""

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depthscope as ds

ROOT = Path(ds.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "architecture.md"
WIDTH = 100  # of a line on the page
WORDS = 14  # a purpose that is cut at a mark has at least so many characters
ROOMS = ("metrics", "theory")  # folders of formulas, listed as one
REMEDY = ds.remedies.DeEscalate(0.5)
MODEL, CALLER = "model", "you"  # frames of this file: the forward pass of the model, and who calls depthscope


class Block(nn.Module):
    """Pre-norm, with one head."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ffn = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, X: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_1(X)).unsqueeze(1).chunk(3, -1)
        X = X + self.out(F.scaled_dot_product_attention(q, k, v).squeeze(1))
        return X + self.ffn(self.norm_2(X))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(16) for _ in range(3))

    def forward(self, X: Tensor) -> Tensor:
        for block in self.blocks:
            X = block(X)
        return X


def scan(model: nn.Module, X: Tensor) -> None:
    ds.scan(model, X)


def fix_(model: nn.Module, X: Tensor) -> None:
    with ds.fix_(model, REMEDY, at="sa_sum"), torch.no_grad():
        model(X)


def forecast(model: nn.Module, X: Tensor) -> None:
    ds.forecast(model, X)


VERBS: dict[str, Callable[[nn.Module, Tensor], None]] = {"scan": scan, "fix_": fix_, "forecast": forecast}


class Walk:
    """A profile of one call: who entered which file first, and which calls go up."""

    def __init__(self) -> None:
        self.entered: dict[str, tuple[str, str]] = {}  # file -> function, caller
        self.up: dict[tuple[str, str], set[str]] = {}  # caller, file -> functions

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        file, function = file_of(frame), function_of(frame)
        if file in (None, MODEL, CALLER) or function is None:
            return
        caller = MODEL if function == "__torch_function__" else caller_of(frame)  # torch calls it, for whoever computes
        if caller == file:
            return
        self.entered.setdefault(str(file), (function, caller))
        if caller not in (MODEL, CALLER) and file not in reached(caller):
            self.up.setdefault((caller, str(file)), set()).add(function)


def file_of(frame: FrameType) -> str | None:
    """The file of depthscope in which a frame runs; MODEL or CALLER for this file; None for all others."""
    name = frame.f_code.co_filename
    if name == __file__:
        return MODEL if frame.f_code.co_name == "forward" else CALLER
    file = name[len(str(ROOT)) + 1 :] if name.startswith(str(ROOT)) else None
    room = str(file).partition("/")[0]
    return f"{room}/__init__.py" if room in ROOMS else file


def function_of(frame: FrameType) -> str | None:
    """The function's name; of one inside another, the outer one's; None for the body of a module or class."""
    names = frame.f_code.co_qualname.split(".<locals>")[0].split(".")
    return None if names[-1].startswith("<") else names[-1]


def caller_of(frame: FrameType) -> str:
    """The nearest frame below that is of depthscope, of the model, or of the user."""
    back = frame.f_back
    while back is not None and file_of(back) is None:
        back = back.f_back
    return CALLER if back is None else str(file_of(back))


@cache
def imported(file: str) -> set[str]:
    """The files that a file imports itself."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = {name.removeprefix("depthscope.").replace(".", "/") for name in found if name.startswith("depthscope.")}
    candidates = {f"{path}.py" for path in paths} | {f"{path}/__init__.py" for path in paths}
    rooms = {f"{room}/__init__.py" for room in ROOMS if any(path.startswith(f"{room}/") for path in paths)}
    return rooms | {candidate for candidate in candidates if (ROOT / candidate).exists()}


@cache
def reached(file: str) -> set[str]:
    """The files that a file imports, and those that they import, and so on."""
    found, waiting = {file}, [file]
    while waiting:
        new = imported(waiting.pop()) - found
        found |= new
        waiting += new
    return found


def purpose(file: str) -> str:
    """The first words of a file's docstring, up to the first mark that leaves enough of them."""
    first = (ast.get_docstring(ast.parse((ROOT / file).read_text())) or "").split("\n\n")[0].replace("\n", " ")
    first = re.sub(r"^(ds\.)?[a-z_]+(\(\))?: ", "", first).rstrip(".")
    marks = (mark.start() for mark in re.finditer(r"[:;.,] | \(", first))
    return first[: next((mark for mark in marks if mark >= WORDS), None)]


def walked(verb: str) -> Walk:
    """The walk of one verb; it runs once before, so that what is cached or imported late is there."""
    torch.manual_seed(0)
    VERBS[verb](Model().eval(), torch.randn(2, 5, 16))
    walk, model, X = Walk(), Model().eval(), torch.randn(2, 5, 16)
    sys.setprofile(walk)
    try:
        VERBS[verb](model, X)
    finally:
        sys.setprofile(None)
    return walk


def listed(walk: Walk) -> str:
    """The files, one a line."""
    numbers = {file: str(i) for i, file in enumerate(walk.entered, 1)} | {MODEL: MODEL, CALLER: CALLER}
    rows = []
    for file, (function, caller) in walk.entered.items():
        row = f"{numbers[file]:>2} {shown(file):26} {function:15} {numbers[caller]:>5}  {purpose(file)}"
        rows.append(row if len(row) <= WIDTH else row[: WIDTH - 3].rpartition(" ")[0] + " ...")
    return "\n".join(rows)


def listed_up(walk: Walk) -> list[str]:
    """The calls against the imports: files of one folder together, functions where it is one file."""
    folders: dict[tuple[str, str], list[str]] = {}
    for caller, file in walk.up:
        folders.setdefault((caller, file.partition("/")[0]), []).append(file)
    rows = []
    for (caller, folder), files in folders.items():
        if len(files) == 1:
            called = f"{files[0]}: {', '.join(sorted(walk.up[caller, files[0]]))}"
        else:
            called = f"{folder}/: {', '.join(sorted(Path(file).stem for file in files))}"
        rows += textwrap.wrap(f"{shown(caller)} -> {called}", WIDTH, subsequent_indent="    ")
    return rows


def shown(file: str) -> str:
    return file.replace("__init__.py", "")


def sections(verbs: list[str]) -> dict[str, str]:
    """What the page quotes, by the name of the marker."""
    walks = {verb: walked(verb) for verb in verbs}
    lists = {f"walk of {verb}": listed(walk) for verb, walk in walks.items()}
    return lists | {"calls up": "\n".join(dict.fromkeys(r for walk in walks.values() for r in listed_up(walk)))}


def quoted(page: str, name: str) -> str:
    """What a page has between the markers of a section."""
    return page.partition(f"<!-- {name} -->\n```output\n")[2].partition("\n```")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="The files that a verb passes.")
    parser.add_argument("verbs", nargs="*", choices=[*VERBS, []], help="all when left out")
    parser.add_argument("--write", action="store_true", help="put them into docs/explanation/architecture.md")
    given = parser.parse_args()
    found = sections(given.verbs or list(VERBS))
    if not given.write:
        print("\n\n".join(f"{name}\n\n{lines}" for name, lines in found.items()))
        return
    page = PAGE.read_text()
    for name, lines in found.items():
        page = page.replace(
            f"<!-- {name} -->\n```output\n{quoted(page, name)}\n```", f"<!-- {name} -->\n```output\n{lines}\n```"
        )
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
