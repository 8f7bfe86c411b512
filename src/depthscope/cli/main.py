"""depthscope: where does a Transformer stop gaining from depth, and why?"""

import errno
import signal
import sys
from typing import Annotated

import typer

import depthscope
from depthscope.cli import (
    ablate,
    bench,
    bound,
    compare,
    depth,
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
from depthscope.errors import DepthscopeError, first_line

COMMANDS = {  # by what people want
    "Look": (scan, doctor),
    "Explain": (ablate, depth, spectrum, paths, bound),
    "Forecast": (forecast,),
    "Fix and prove": (compare, train, gate),
    "Papers": (reproduce,),
    "This installation": (ls, bench),
}

app = typer.Typer(
    help="Tokens all alike? Deep model will not train? See in which block the tokens collapse, and why.",
    epilog="Begin with: depthscope scan bert --depth 48. Remedies go into it by --fix (depthscope ls remedies).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # of a disk, or of what this user may use of it
for panel, modules in COMMANDS.items():
    for module in modules:
        app.command(module.__name__.rpartition(".")[2], rich_help_panel=panel)(grouped(module.command))


def tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"depthscope {depthscope.__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=tell_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    pass


def run() -> None:
    """The console entry: exit 0 fine, 1 a claim or gate fails, 2 wrong use; a known error is one line, no traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as ^C: what was begun is put away, processes end
    try:
        app()
    except SystemExit as end:
        if end.code == 130:  # also where a command put its things away, or typer saw ^C, neither of which says a word
            _say("interrupted: ", "files that have their names are whole. Give the same command again.")
        raise
    except DepthscopeError as error:
        _refuse(str(error))
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "memory" in str(error)):  # torch says it in words
            raise
        _refuse(
            f"there must be memory for it; {first_line(error)}. Try a smaller --depth, --width, --tokens or --batch."
        )
    except OSError as error:
        if error.errno == errno.EROFS:
            _refuse(f"the disk must be writable; {first_line(error)}. Name a folder on another disk.")
        if error.errno not in NO_ROOM and "temporary directory" not in str(error):  # as tempfile says of a full disk
            raise
        words = f"there must be room on the disk for it; {first_line(error)}. Make room, or set TMPDIR to where it is."
        typer.echo(f"error: {words}", err=True)  # plainly: without any room torch cannot be imported, nor our sheets
        sys.exit(2)


def _refuse(words: str) -> None:
    _say("error: ", words)
    sys.exit(2)


def _say(what: str, words: str) -> None:
    from rich.console import Console

    from depthscope.reports.sheet import Line

    Console(stderr=True).print(Line([(what, "bold red"), words]).view())
