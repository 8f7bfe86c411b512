"""The options that several commands share, in groups: a parameter whose type is a group stands for all its options."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

HELP = "A preset (see: depthscope ls models), package.module:function, a local Hugging Face folder, or a hub id."
Seed = Annotated[int, typer.Option(help="Seed of weights and inputs.")]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A model by name, with the sizes of a preset, and its inputs."""

    model: Annotated[str | None, typer.Argument(help=HELP, show_default=False)]
    depth: Annotated[int, typer.Option(help="Blocks of a preset.")] = 12
    width: Annotated[int, typer.Option(help="Width d of a preset.")] = 256
    heads: Annotated[int, typer.Option(help="Attention heads of a preset.")] = 4
    tokens: Annotated[int, typer.Option("--tokens", "--n", help="Tokens n in each sequence.")] = 64
    batch: Annotated[int, typer.Option(help="Sequences.")] = 4
    seed: Seed = 0
    inputs: Annotated[
        str | None, typer.Option(help="package.module:function that returns inputs for the model.", show_default=False)
    ] = None
    text: Annotated[
        str | None, typer.Option(help="Feed this text file instead of random tokens.", show_default=False)
    ] = None
    blocks: Annotated[
        str | None,
        typer.Option(help='Which modules are the blocks, for example "encoder.layers.*".', show_default=False),
    ] = None

    def resolved(self) -> tuple[Any, Any]:
        """The model and its inputs."""
        from depthscope.models.resolve import resolve
        from depthscope.models.sizes import Sizes

        sizes = Sizes(self.depth, self.width, self.heads, self.tokens, self.batch, self.seed)
        return resolve(str(self.model), sizes, inputs=self.inputs, text=self.text)


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
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in taken}
    return run


def _parameter(f: "Field[Any]", kind: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if f.default is MISSING else f.default
    return inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
