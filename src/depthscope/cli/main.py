"""depthscope: where does a Transformer stop gaining from depth, and why?"""

import sys

import typer

from depthscope.cli import (
    ablate,
    bench,
    bound,
    compare,
    doctor,
    forecast,
    gate,
    ls,
    paths,
    reproduce,
    scan,
    spectrum,
    train,
)
from depthscope.cli.options import grouped
from depthscope.errors import DepthscopeError

app = typer.Typer(
    help="Tokens all alike? Deep model will not train? See in which block the tokens collapse, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for module in (scan, doctor, forecast, ablate, paths, bound, spectrum, reproduce, compare, train, gate, bench, ls):
    app.command(module.__name__.rpartition(".")[2])(grouped(module.command))


def run() -> None:
    """The console entry: exit 0 fine, 1 a claim or gate fails, 2 wrong use; a known error is one line, no traceback."""
    try:
        app()
    except DepthscopeError as error:
        from rich.console import Console
        from rich.text import Text

        Console(stderr=True).print(Text.assemble(("error: ", "bold red"), str(error)))
        sys.exit(2)
