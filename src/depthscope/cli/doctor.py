"""depthscope doctor: what was recognised in a model, what was not, and the exact line that would help."""

from dataclasses import dataclass
from typing import Annotated

import typer

from depthscope.cli.options import Chosen
from depthscope.cli.output import Output


@dataclass(frozen=True, kw_only=True)
class Small(Chosen):
    """A model that is small enough to be looked at in a moment."""

    depth: Annotated[int, typer.Option(help="Number of blocks of a preset.")] = 2
    width: Annotated[int, typer.Option(help="Width d of a preset.")] = 64
    tokens: Annotated[int, typer.Option("--tokens", "--n", help="Number of tokens n in each sequence.")] = 16
    batch: Annotated[int, typer.Option(help="Number of sequences.")] = 2

    @property
    def target(self) -> str:
        """The model and its inputs, as they are written on the command line."""
        given = {"inputs": self.inputs, "text": self.text}
        return " ".join([str(self.model), *(f"--{name} {value}" for name, value in given.items() if value)])


def command(model: Small, output: Output) -> None:
    """Say what depthscope recognises in a model (streams, blocks, attention, padding), and what it can do with it.

    Exit code 1 if nothing was recognised. Example: depthscope doctor my_package.models:build
    """
    from depthscope.checkups.checkup import checkup

    built, given = model.resolved()
    with output.aside().status("looking at the model, and trying what can be done with it"):
        found = checkup(built, given, model.blocks, model.stream, model.target)
    output.show(found)
    if not found.recognised:
        raise typer.Exit(1)
