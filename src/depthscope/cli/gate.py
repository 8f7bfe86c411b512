"""depthscope gate: exit code 1 when a model collapses, or lost diversity since an earlier state; for CI."""

from dataclasses import fields, replace
from typing import Annotated, Any

import typer

from depthscope.cli.options import Chosen
from depthscope.cli.output import Output
from depthscope.errors import UsageError
from depthscope.files import check_writable, whole_file


def command(
    model: Chosen,
    *,
    min_diversity: Annotated[
        float | None,
        typer.Option(
            help="The share of the signal that must differ between tokens after the last block.", show_default=False
        ),
    ] = None,
    verdict: Annotated[
        str | None,
        typer.Option(help="The verdicts that pass, with commas: diverse, escalating, ...", show_default=False),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="An earlier state to compare with: a model as above, or a saved scan.", show_default=False),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="With --against: the share of diversity that may be lost (0.1).", show_default=False),
    ] = None,
    junit: Annotated[
        str | None, typer.Option(help="Write one test case for each check, as JUnit XML.", show_default=False)
    ] = None,
    output: Output,
) -> None:
    """Let a build fail when tokens collapse. Exit code 0: passes; 1: fails; 2: wrong use.

    MODEL may be a saved scan (scan.json). Without thresholds the verdict decides. A NaN always fails. --out saves the
    scan. Examples: depthscope gate bert --depth 48;  depthscope gate ./after --against ./before --tolerance 0.1
    """
    from depthscope.gates.demands import demanded
    from depthscope.gates.gate import gate
    from depthscope.gates.junit import junit as as_junit

    if junit is not None:
        check_writable(junit)
    asked: dict[str, Any] = {"min_diversity": min_diversity, "verdict": verdict, "tolerance": tolerance}
    demanded(**asked, compared=against is not None)
    check_options(model, against)
    before = None if against is None else scanned(replace(model, model=against), "the earlier state", output)
    after = scanned(model, str(model.model), output)
    found = named(gate(after, against=before, **asked), str(model.model), against)
    output.told(found)
    output.write(after if before is None else replace(after, before=before))
    if junit is not None:
        with whole_file(junit) as part:
            part.write_text(as_junit(found), encoding="utf-8")
        output.note(f"wrote {junit}")
    if not found.passed:
        raise typer.Exit(1)


def named(gate: Any, model: str, against: str | None) -> Any:
    """The same gate, with the words by which the user knows the models: two checkpoints are of one class."""
    return replace(gate, model=f"{model} ({gate.model})", against=against)


def is_saved(name: str | None) -> bool:
    return str(name).endswith(".json")


def check_options(model: Chosen, against: str | None) -> None:
    """Raise UsageError where an option for a model is given and there are saved scans alone."""
    names = [f.name for f in fields(model) if getattr(model, f.name) != f.default and f.name not in ("model", "stream")]
    if names and is_saved(model.model) and (against is None or is_saved(against)):
        raise UsageError(f"--{names[0]}: goes with a model alone; a saved scan has run already. Leave it out.")


def scanned(model: Chosen, what: str, output: Output) -> Any:
    """A scan of a model, or one from a file; of the named stream alone, where one is named."""
    from depthscope.scans.record import Scan
    from depthscope.scans.scan import scan
    from depthscope.traces.streams import stream_called

    if is_saved(model.model):
        found = Scan.load(str(model.model))
        if found.before is not None:
            changed = ", ".join(found.remedies) or "a change"
            output.note(f"{model.model}: holds two scans, before and after {changed}; the second counts.")
            found = replace(found, before=None)
    else:
        built, given = model.resolved()
        with output.aside().status(f"scanning {what}"):
            found = scan(built, given, **model.where(scan))
    name = stream_called(model.stream, found.streams)
    return found if name is None else replace(found.streams[name], others={})
