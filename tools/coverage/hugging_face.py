"""Tiny models of transformers with random weights, and their streams by hooks."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from tools.coverage.case import (
    BATCH,
    DEPTH,
    HEADS,
    TOKENS,
    WIDTH,
    WORDS,
    Case,
    Sample,
    Stream,
    enter,
    other_last,
    words,
)
from tools.coverage.hooks import eager_patterns, tapped_at
from torch import Tensor

STD = 0.02 * (768 / WIDTH) ** 0.5  # the usual 0.02 is meant for width 768
SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * WIDTH,
    "initializer_range": STD,
}
TEXT = {
    **SIZES,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IMAGE = {**SIZES, "image_size": 20, "patch_size": 4}  # 25 patches
Inputs = Callable[[], dict[str, Any]]


def built(kind: str, base: dict[str, Any], changes: dict[str, Any]) -> Any:
    """A model of a class of transformers; changes with the value None are left out of the config."""
    model = getattr(transformers, kind)
    config = {name: value for name, value in {**base, **changes}.items() if value is not None}
    torch.manual_seed(0)
    return model(model.config_class(**config)).eval()


def ids() -> dict[str, Tensor]:
    return {"input_ids": words()}


def pixels(size: int = 20, channels: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(BATCH, channels, size, size, generator=generator) + 0.5}


def family(
    name: str,
    kind: str,
    blocks: str,
    *,
    group: str,
    base: dict[str, Any],
    inputs: Inputs = ids,
    causal: bool = False,
    heads: bool = True,
    repeats: bool = True,
    token_axis: int | None = 1,
    change: Callable[[Any], None] | None = None,
    hooks: dict[str, Any] | None = None,
    **config: Any,
) -> None:
    """Enter a model with one stream. heads=False: it hands out no attention matrix over all tokens."""

    def build() -> Sample:
        model = built(kind, base, config)
        if change is not None:
            change(model)
        given = inputs()
        tapped = tapped_at(model, blocks, **hooks or {})
        patterns = eager_patterns(model, given) if heads else None
        key = next(iter(given))
        changed = {**given, key: other_last(given[key])} if causal else None
        return Sample(model, given, {"main": Stream(tapped, causal, None, patterns, changed)}, token_axis=token_axis)

    enter(Case(name, group, build, repeats=repeats))


def encoder(name: str, kind: str, blocks: str = "encoder.layer.*", **more: Any) -> None:
    """A text encoder."""
    family(name, kind, blocks, **{"group": "text encoders", "base": TEXT, **more})


def decoder(name: str, kind: str, blocks: str = "layers.*", **more: Any) -> None:
    """A causal model of text."""
    family(name, kind, blocks, **{"group": "text decoders", "base": TEXT, "causal": True, **more})


def vision(name: str, kind: str, blocks: str = "encoder.layer.*", **more: Any) -> None:
    """A model of images."""
    more = {"group": "vision", "base": IMAGE, "inputs": pixels, "token_axis": None, **more}
    family(name, kind, blocks, **more)


def padded(name: str, kind: str, blocks: str, *, causal: bool = False, left: bool = False, **config: Any) -> None:
    """A batch whose second sequence is shorter, with the attention_mask that a tokenizer gives."""

    def build() -> Sample:
        model = built(kind, TEXT, config)
        mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
        mask[1, slice(0, 6) if left else slice(TOKENS - 6, None)] = 0
        here = words().where(mask.bool(), 0)
        given = {"input_ids": here, "attention_mask": mask}
        other = {**given, "input_ids": here.where(mask.bool(), 9)}
        changed = {**given, "input_ids": other_last(here)} if causal else None
        patterns = eager_patterns(model, given)
        stream = Stream(tapped_at(model, blocks), causal, mask.bool(), patterns, changed)
        return Sample(model, given, {"main": stream}, repadded=other)

    enter(Case(name, "padding", build))


def streams(
    name: str,
    kind: str,
    paths: dict[str, str | dict[str, Any]],
    inputs: Inputs,
    base: dict[str, Any],
    *,
    group: str,
    causal: dict[str, str] | None = None,
    patterns: dict[str, str] | None = None,
    result: Callable[[Any], Tensor] | None = None,
    token_axis: int | None = 1,
    make: Callable[[], Any] | None = None,
    **config: Any,
) -> None:
    """Enter one case for each stream of a model with several.

    paths: stream -> blocks, or the arguments of tapped_at. causal: stream -> the input whose last entry is changed.
    patterns: stream -> the attribute of the output that holds its attention.
    """

    def build() -> Sample:
        model = make() if make is not None else built(kind, base, config)
        given = inputs()
        found = {}
        for stream, where in paths.items():
            where = {"blocks": where} if isinstance(where, str) else where
            key = (causal or {}).get(stream)
            changed = None if key is None else {**given, key: other_last(given[key])}
            heads = eager_patterns(model, given, patterns[stream]) if patterns and stream in patterns else None
            found[stream] = Stream(tapped_at(model, **where), key is not None, None, heads, changed)
        more = {} if result is None else {"result": result}
        return Sample(model, given, found, token_axis=token_axis, **more)

    for stream in paths:
        enter(Case(name if stream == "main" else f"{name} {stream}", group, build, stream))
