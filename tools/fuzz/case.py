"""What a case of the fuzz run is: a function of a random generator, which says what came or raises what is a finding.

A case is known by its kind and its number: the same two make the same case again, on any machine.
"""

from collections.abc import Callable
from random import Random

import torch

from depthscope.errors import DepthscopeError

Case = Callable[[Random], str]  # -> a word for what came, such as "read" or "refused"
KINDS: dict[str, tuple[Case, int]] = {}  # the cases of each kind, and how many there are in a whole run


def kind(count: int) -> Callable[[Case], Case]:
    """Put a function among the kinds of cases, by its name."""

    def put(case: Case) -> Case:
        KINDS[case.__name__] = (case, count)
        return case

    return put


def tried(name: str, number: int) -> str:
    """Run one case. An error that depthscope raises on purpose is an answer, and must be a sentence."""
    torch.manual_seed(number)
    try:
        return KINDS[name][0](Random(f"{name} {number}"))
    except DepthscopeError as error:
        said = str(error).rstrip()
        assert len(said) > 15 and said[-1] in ".?)", f"an error must be a sentence: {said!r}"
        return "refused"
