"""Who watches a pass leaves compiled code as it was, in whatever order the watchers leave."""

import subprocess
import sys
from itertools import permutations

import torch
import torch._dynamo

from depthscope.traces.eagerly import eagerly
from loops import over


def compiles() -> bool:
    """Whether torch.compile compiles at the moment."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    torch.compiler.reset()
    return bool(graphs)


@over("order", [(0,), *permutations(range(3))])
def test_the_last_to_leave_puts_back_what_was(order: tuple[int, ...]) -> None:
    contexts = [eagerly() for _ in order]
    for context in contexts:
        context.__enter__()
    for number in order:
        assert not compiles()
        contexts[number].__exit__(None, None, None)
    assert compiles()


NEW = """
import sys, torch
from depthscope.traces.eagerly import eagerly
seen = []
backend = lambda graph, _: seen.append(graph) or graph.forward
with eagerly():
    assert "torch._dynamo" not in sys.modules
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert "torch._dynamo" in sys.modules and not seen
torch.compile(lambda x: x + 2, backend=backend)(torch.ones(2))
assert seen and not any("eagerly" in type(one).__module__ for one in sys.meta_path)
"""


def test_code_that_is_first_compiled_inside_runs_eagerly_too() -> None:
    """And nothing loads the compiler, which takes seconds, where nobody compiles."""
    subprocess.run([sys.executable, "-c", NEW], check=True)


def test_a_scan_does_not_load_the_compiler() -> None:
    words = "import sys, torch, depthscope as ds; ds.scan(ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 4, 8))"
    subprocess.run([sys.executable, "-c", f"{words}; assert 'torch._dynamo' not in sys.modules"], check=True)
