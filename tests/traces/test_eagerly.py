"""Who watches a pass leaves compiled code as it was, in whatever order the watchers leave."""

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


@over("order", list(permutations(range(3))))
def test_the_last_to_leave_puts_back_what_was(order: tuple[int, ...]) -> None:
    contexts = [eagerly() for _ in order]
    for context in contexts:
        context.__enter__()
    for number in order:
        assert not compiles()
        contexts[number].__exit__(None, None, None)
    assert compiles()
