"""The options that several commands share, in groups: a parameter whose type is a group stands for all its options."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from depthscope.cli import completion
from depthscope.errors import UsageError

HELP = "A preset (see: depthscope ls models), package.module:function, a local Hugging Face folder, or a hub id."
EXECUTOR = (
    "Where jobs run: local, dask:ADDRESS or slurm:OPTIONS (as submitit names them). All workers share the folder."
)
Seed = Annotated[int, typer.Option(help="Seed of random weights and inputs.")]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A model by name, with the sizes of a preset, and its inputs."""

    model: Annotated[str | None, typer.Argument(help=HELP, show_default=False, autocompletion=completion.presets)]
    depth: Annotated[int, typer.Option(help="Number of blocks of a preset.")] = 12
    width: Annotated[int, typer.Option(help="Width d of a preset.")] = 256
    heads: Annotated[int, typer.Option(help="Number of attention heads of a preset.")] = 4
    tokens: Annotated[int, typer.Option("--tokens", "--n", help="Number of tokens n in each sequence.")] = 64
    batch: Annotated[int, typer.Option(help="Number of sequences.")] = 4
    seed: Seed = 0
    inputs: Annotated[
        str | None, typer.Option(help="package.module:function that returns inputs for the model.", show_default=False)
    ] = None
    text: Annotated[
        str | None, typer.Option(help="Use this text file as input instead of random tokens.", show_default=False)
    ] = None
    blocks: Annotated[
        str | None,
        typer.Option(help='Which modules are the blocks, for example "encoder.layers.*".', show_default=False),
    ] = None
    stream: Annotated[
        str | None,
        typer.Option(
            help="The stream to look at, if there are several: encoder, decoder, ... (depthscope doctor lists them).",
            show_default=False,
        ),
    ] = None

    offload: Annotated[
        str | None,
        typer.Option(
            help="A folder: weights of a Hugging Face model stay on disk until they are needed.", show_default=False
        ),
    ] = None
    memory: Annotated[
        str | None,
        typer.Option(help="How much memory weights may take, as 2GB; the others stay on disk.", show_default=False),
    ] = None

    def where(self, verb: Callable[..., Any]) -> dict[str, Any]:
        """What was said of blocks and stream, as the arguments of a verb; one that it does not take is an error."""
        said = {"blocks": self.blocks, "stream": self.stream}
        given = {name: value for name, value in said.items() if value is not None}
        missing = [name for name in given if name not in inspect.signature(verb).parameters]
        if missing:
            raise UsageError(
                f"--{missing[0]}: {verb.__name__} does not take it; got {given[missing[0]]!r}. Leave it out, or name "
                'the blocks, for example --blocks "decoder.block.*".'
            )
        return given

    def resolved(self, head: str = "none") -> tuple[Any, Any]:
        """The model and its inputs. head: of a Hugging Face model, "none" or "as saved"."""
        from depthscope.models.resolve import resolve
        from depthscope.models.sizes import Sizes

        sizes = Sizes(self.depth, self.width, self.heads, self.tokens, self.batch, self.seed)
        built, given = resolve(
            str(self.model),
            sizes,
            inputs=self.inputs,
            text=self.text,
            offload=self.offload,
            memory=self.memory,
            head=head,
        )
        self._put_back_fixes(built)
        return built, given

    def _put_back_fixes(self, built: Any) -> None:
        """A folder that was saved with fixes is the fixed model."""
        from depthscope.remedies.fix import fix_, fixes
        from depthscope.remedies.fix_record import FILE

        if Path(str(self.model), FILE).is_file():
            fix_(built, str(self.model))
            typer.echo(f"{self.model}: with what {FILE} says: {', '.join(map(repr, fixes(built)))}", err=True)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is learned, by a model of which size, and how; what is not given is what suits the task."""

    task: Annotated[
        str,
        typer.Argument(
            help="The task: digits, cifar10, pydoc, wikitext2, sorting, ... (depthscope ls tasks).",
            autocompletion=completion.tasks,
        ),
    ] = "digits"
    data: Annotated[str | None, typer.Option(help="The images or the text: a file, a folder or a hub id.")] = None
    depth: Annotated[int | None, typer.Option(help="Number of blocks. Without it, what suits the task.")] = None
    width: Annotated[int | None, typer.Option("--width", "--d", help="Width d. Without it, what suits the task.")] = (
        None
    )
    heads: Annotated[
        int | None, typer.Option("--heads", "--h", help="Number of attention heads. Without it, what suits the task.")
    ] = None
    ffn: Annotated[
        int | None, typer.Option("--ffn", "--q", help="Width of the feed-forward networks. Without it, twice d.")
    ] = None
    epochs: Annotated[int | None, typer.Option(help="Number of epochs. Without it, what suits the task.")] = None
    batch: Annotated[
        int | None,
        typer.Option(help="Images or rows of text in one step, over all processes. Without it, what suits the task."),
    ] = None
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; a search begins with it. Without it, what suits the task.")
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting of recipe, model, task or remedy: --set clip=1 --set train=500."),
    ] = None

    def said(self, **more: Any) -> dict[str, Any]:
        """The options that somebody gave, and more of the kind, by the names of Recipe and Build."""
        sizes = {"depth": self.depth, "d": self.width, "h": self.heads, "q": self.ffn}
        said = {**sizes, "epochs": self.epochs, "batch": self.batch, "lr": self.lr, **more}
        return {name: value for name, value in said.items() if value is not None}


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer understands it: every parameter that is a group in place of its options."""
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    groups = {name: hints[name] for name in own if is_dataclass(hints[name])}
    members = {name: [f.name for f in fields(group)] for name, group in groups.items()}

    def run(**given: Any) -> None:
        made = {name: group(**{key: given.pop(key) for key in members[name]}) for name, group in groups.items()}
        command(**made, **given)

    taken: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name not in groups:
            taken.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        kinds = get_type_hints(groups[name], include_extras=True)
        taken += [_parameter(f, kinds[f.name]) for f in fields(groups[name])]
    # rich would take [weights] for a style of its own, and leave it out
    run.__doc__, run.__name__ = (command.__doc__ or "").replace("[", r"\["), command.__name__
    run.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in taken}
    return run


def _parameter(f: "Field[Any]", kind: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if f.default is MISSING else f.default
    return inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
