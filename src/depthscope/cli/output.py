"""Where results go: shown in the terminal, or JSON alone on stdout, and files of every kind that a record can take."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from depthscope.errors import UsageError
from depthscope.files import check_writable, whole_file
from depthscope.records import as_json as json_text

KINDS = (".html", ".png", ".svg", ".pdf", ".md", ".json")
OUT = "Write the result here, as .html, .png, .svg, .pdf, .md or .json. May be repeated."
JSON = "Write the numbers to this file; - writes them to stdout, alone."


@dataclass(frozen=True, kw_only=True)
class Output:
    """The options --out and --json. Make one before the model runs: what cannot be written is told at once."""

    out: Annotated[list[str] | None, typer.Option(help=OUT)] = None
    as_json: Annotated[str | None, typer.Option("--json", help=JSON)] = None

    def __post_init__(self) -> None:
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
        if self.as_json and self.as_json != "-":
            check_writable(self.as_json)

    def show(self, record: Any, shown: Any = None) -> None:
        """Print the record, or plain data by what is `shown` of it, and write all files."""
        if self.as_json == "-":
            typer.echo(json_text(record))
        else:
            from rich.console import Console

            Console().print((shown or record).view())
        if self.as_json and self.as_json != "-":
            with whole_file(self.as_json) as part:
                part.write_text(json_text(record))
            typer.echo(f"wrote {self.as_json}", err=True)
        for path in self.out or []:
            _write(record, path)
            typer.echo(f"wrote {path}", err=True)


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
            part.write_text(markdown(record), encoding="utf-8")
    else:
        picture(record, path)
