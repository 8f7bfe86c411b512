"""The options that several commands share."""

from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        help="A preset (see: depthscope ls models), package.module:function, a local Hugging Face folder, or a hub id.",
        show_default=False,
    ),
]
Depth = Annotated[int, typer.Option(help="Blocks of a preset.")]
Width = Annotated[int, typer.Option(help="Width d of a preset.")]
Heads = Annotated[int, typer.Option(help="Attention heads of a preset.")]
Tokens = Annotated[int, typer.Option("--tokens", "--n", help="Tokens n in each sequence.")]
Batch = Annotated[int, typer.Option(help="Sequences.")]
Seed = Annotated[int, typer.Option(help="Seed of weights and inputs.")]
Inputs = Annotated[
    str | None, typer.Option(help="package.module:function that returns inputs for the model.", show_default=False)
]
Text = Annotated[str | None, typer.Option(help="Feed this text file instead of random tokens.", show_default=False)]
Blocks = Annotated[
    str | None,
    typer.Option(help='Which modules are the blocks, for example "encoder.layers.*".', show_default=False),
]
