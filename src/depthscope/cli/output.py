"""Where results go: shown in the terminal, or JSON alone on stdout, and files of every kind that a record can take."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from depthscope.errors import UsageError
from depthscope.files import check_writable, whole_file

KINDS = (".html", ".png", ".svg", ".pdf", ".md", ".json")
OUT = "Write the result here, as .html, .png, .svg, .pdf, .md or .json. May be repeated."
JSON = "Write the numbers to this file; - writes them to stdout, alone."


@dataclass(frozen=True, kw_only=True)
class Told:
    """The options --json, --quiet and --verbose. Make one before the model runs: what cannot be written is told at
    once."""

    as_json: Annotated[str | None, typer.Option("--json", help=JSON)] = None
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the verdict only, without charts, tables and progress.")
    ] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print all rows, and what the columns mean.")] = False

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise UsageError("--quiet, --verbose: one of them at most; got both. Leave one out.")
        if self.as_json and self.as_json != "-":
            check_writable(self.as_json)

    def aside(self) -> Any:
        """The console for progress: stderr, silent with --quiet."""
        from rich.console import Console

        return Console(stderr=True, quiet=self.quiet)

    def note(self, words: str) -> None:
        """A line beside the result."""
        if not self.quiet:
            typer.echo(words, err=True)

    def told(self, record: Any, shown: Any = None) -> None:
        """Print the record, or plain data by what is `shown` of it, and write its numbers where --json says."""
        from depthscope.records import Record
        from depthscope.records import as_json as json_text

        if self.as_json == "-":
            typer.echo(json_text(record))
        else:
            self._print(record if shown is None else shown)
        if self.as_json and self.as_json != "-":
            if isinstance(record, Record):
                Record.save(record, self.as_json)
            else:
                with whole_file(self.as_json) as part:
                    part.write_text(json_text(record))
            self.note(f"wrote {self.as_json}")

    def _print(self, shown: Any) -> None:
        from rich.console import Console

        from depthscope.cli.screen import in_short, on_screen

        console = Console()
        if self.quiet:
            for line in in_short(shown):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(on_screen(shown, console.width, verbose=self.verbose))


@dataclass(frozen=True, kw_only=True)
class Output(Told):
    """And --out."""

    out: Annotated[list[str] | None, typer.Option(help=OUT)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for path in self.out or []:
            check_writable(path)
            if Path(path).suffix not in KINDS:
                raise UsageError(f"--out: the file must end in {', '.join(KINDS[:-1])} or .json; got {path!r}.")
            if Path(path).suffix in KINDS[1:4]:
                from depthscope.reports.show import need_matplotlib

                need_matplotlib()
            if Path(path).suffix == KINDS[0]:
                from depthscope.reports.pages.page import need_jinja

                need_jinja()

    def show(self, record: Any, shown: Any = None) -> None:
        """Print the record, or plain data by what is `shown` of it, and write all files."""
        self.told(record, shown)
        self.write(record)

    def write(self, record: Any) -> None:
        """Write a record into the files of --out."""
        for path in self.out or []:
            _write(record, path)
            self.note(f"wrote {path}")


def _write(record: Any, path: str) -> None:
    from depthscope.reports.pages.page import page
    from depthscope.reports.show import markdown, picture

    kind = Path(path).suffix
    if kind == ".json":
        record.save(path)
    elif kind == ".html":
        page(record, to=path)
    elif kind == ".md":
        with whole_file(path) as part:
            part.write_text(markdown(record), encoding="utf-8", errors="replace")
    else:
        picture(record, path)
