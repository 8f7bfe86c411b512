"""A mutant: one change of one module, its name, and the tests that may notice it."""

import ast
import difflib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.mutants.mutations import mutations
from tools.mutants.seen import SEEN, known
from tools.mutants.source import bodies, files, tree

CONTROL = SEEN.with_name("control.json")  # tests by "sound" and "unsound": those that fail though nothing is broken
SHOWN = 70  # characters of a changed line on the page
SAME_AREA = 0.3  # tests of the module's own folder come earlier, as if they took so much of their time
NAMED = 0.1  # and those with the name of the module or the function in theirs
BLOCK = 0.0005  # seconds by which a test comes later for every block that it runs: tests of one thing come first


@dataclass(frozen=True)
class Mutant:
    """The change number `number` of a module; `name` stays when other lines of the module move."""

    file: str
    number: int
    line: int
    kind: str
    name: str

    def change(self, file: str, module: ast.Module) -> ast.Module:
        mutations(module)[self.number][2]()
        return module


def mutants() -> Iterator[Mutant]:
    for file in files():
        module = tree(file)
        places, twins = owners(module), {}
        for number, (line, kind, _) in enumerate(mutations(module)):
            key = f"{file} {places[line]} {kind}"
            twins[key] = twins.get(key, 0) + 1
            yield Mutant(file, number, line, kind, f"{key} {twins[key]}")


def owners(module: ast.Module) -> dict[int, str]:
    """The function or class that each line is a part of."""
    lines = dict.fromkeys(range(1, 10**4), "module")
    for node in ast.walk(module):  # from the outside in
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            outer = lines[node.lineno]
            name = node.name if outer == "module" else f"{outer}.{node.name}"
            lines |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), name)
    return lines


def sample(n: int, seed: int) -> list[Mutant]:
    """n mutants by chance; a change of one module leaves the others in the sample as they are."""

    def chance(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed} {mutant.name}".encode()).hexdigest()

    return sorted(mutants(), key=chance)[:n]


def shown(mutant: Mutant) -> tuple[str, str]:
    """The line as it is and as the mutant has it, around what differs."""
    before = ast.unparse(tree(mutant.file)).splitlines()
    after = ast.unparse(mutant.change(mutant.file, tree(mutant.file))).splitlines()
    for tag, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            return window(" ".join(before[a:b]).strip(), " ".join(after[c:d]).strip())
    raise AssertionError(mutant)


def window(before: str, after: str) -> tuple[str, str]:
    same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    begin = max(0, min(same - SHOWN // 2, max(len(before), len(after)) - SHOWN))
    cut = slice(begin, begin + SHOWN)
    return before[cut], after[cut]


def controlled() -> dict[str, list[str]]:
    return json.loads(CONTROL.read_text()) if CONTROL.exists() else {"sound": [], "unsound": []}


@cache
def seen() -> dict[str, dict]:
    left_out = set(controlled()["unsound"])
    return {test: facts for test, facts in known().items() if not facts.get("failed") and test not in left_out}


def named(mutant: Mutant) -> list[str]:
    """The module and the functions that a mutant is in."""
    names = [Path(mutant.file).stem, *mutant.name.split()[1].split(".")]
    return [name.strip("_") for name in names if len(name.strip("_")) > 3 and name != "module"]


def tests(mutant: Mutant) -> tuple[list[str], list[str]]:
    """The tests that run the changed block, the likely and quick ones first; then all others of their files."""
    blocks = [(mutant.file, body[0].lineno, body[-1].end_lineno) for body in bodies(tree(mutant.file))]
    around = [block for block in blocks if block[1] <= mutant.line <= block[2]]
    inner = min(around, key=lambda block: block[2] - block[1], default=blocks[0])
    wanted = set(blocks) if inner == blocks[0] else {inner}  # a module's own lines: whoever uses it
    wanted.add((mutant.file, 0, 0))  # the file was edited since: some of it
    area, names = f"tests/{mutant.file.split('/')[0]}/", named(mutant)

    def rank(test: str) -> float:
        late = seen()[test]["time"] + BLOCK * len(seen()[test]["blocks"])
        likely = NAMED if any(name in test for name in names) else 1
        return late * likely * (SAME_AREA if test.startswith(area) else 1)

    direct = sorted((test for test, facts in seen().items() if wanted & facts["blocks"]), key=rank)
    homes = {test.split("::")[0] for test in direct}
    others = sorted((t for t in seen() if t.split("::")[0] in homes and t not in set(direct)), key=rank)
    return direct, others
