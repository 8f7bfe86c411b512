"""The Transformer of torch.nn: batch or time first, norm before or after, encoder, decoder and both."""

from typing import Any

import torch
from tools.coverage.case import BATCH, DEPTH, HEADS, TOKENS, WIDTH, Case, Sample, Stream, enter, numbers, other_last
from tools.coverage.hooks import tapped_at
from torch import Tensor, nn


def _wide(model: nn.Module) -> nn.Module:
    """Weights so wide that heads differ and states move."""
    for p in model.parameters():
        if p.ndim > 1:
            nn.init.normal_(p, std=0.6 * p.shape[-1] ** -0.5)
    return model.eval()


def _tokens(batch_first: bool, n: int = TOKENS, seed: int = 1) -> Tensor:
    X = numbers(BATCH, n, WIDTH, seed=seed)
    return X if batch_first else X.transpose(0, 1)


def _layer(kind: Any, batch_first: bool, norm_first: bool) -> Any:
    return kind(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=batch_first, norm_first=norm_first)


def encoder(batch_first: bool, norm_first: bool, causal: bool = False, padded: bool = False) -> Sample:
    layer = _layer(nn.TransformerEncoderLayer, batch_first, norm_first)
    model = _wide(nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False))
    X, mask = _tokens(batch_first), None
    given: dict[str, Any] = {"src": X}
    if causal:
        given |= {"mask": nn.Transformer.generate_square_subsequent_mask(TOKENS), "is_causal": True}
    repadded = None
    if padded:
        mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
        mask[1, -6:] = False
        given["src_key_padding_mask"] = ~mask
        repadded = {**given, "src": torch.where(mask[..., None] if batch_first else mask.T[..., None], X, X + 1)}
    axis = 1 if batch_first else 0
    layout = "b n d" if batch_first else "n b d"
    changed = {**given, "src": other_last(X, axis)} if causal else None
    stream = Stream(tapped_at(model, "layers.*", layout=layout), causal, mask, None, changed)
    return Sample(model, given, {"main": stream}, token_axis=axis, repadded=repadded)


def pair(batch_first: bool, norm_first: bool, masked: bool) -> Sample:
    """nn.Transformer; with norm_first the encoder's last state is normed after the stream."""
    model = _wide(
        nn.Transformer(WIDTH, HEADS, DEPTH, 4, 2 * WIDTH, dropout=0.0, batch_first=batch_first, norm_first=norm_first)
    )
    layout, axis = ("b n d", 1) if batch_first else ("n b d", 0)
    given: dict[str, Any] = {"src": _tokens(batch_first), "tgt": _tokens(batch_first, 18, seed=2)}
    changed = None
    if masked:
        given |= {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(18)}
        changed = {**given, "tgt": other_last(given["tgt"], axis)}
    streams = {
        "encoder": Stream(tapped_at(model, "encoder.layers.*", layout=layout)),
        "decoder": Stream(tapped_at(model, "decoder.layers.*", layout=layout), masked, None, None, changed),
    }
    return Sample(model, given, streams, token_axis=axis)


def decoder(batch_first: bool) -> Sample:
    """nn.TransformerDecoder alone, with a memory that is given."""
    model = _wide(nn.TransformerDecoder(_layer(nn.TransformerDecoderLayer, batch_first, True), DEPTH))
    layout, axis = ("b n d", 1) if batch_first else ("n b d", 0)
    mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)
    given = {"tgt": _tokens(batch_first), "memory": _tokens(batch_first, 18, seed=2), "tgt_mask": mask}
    changed = {**given, "tgt": other_last(given["tgt"], axis)}
    stream = Stream(tapped_at(model, "layers.*", layout=layout), True, None, None, changed)
    return Sample(model, given, {"main": stream}, token_axis=axis)


def _enter(name: str, build: Any, *streams: str) -> None:
    for stream in streams or ("main",):
        full = name if stream == "main" else f"{name} {stream}"
        enter(Case(full, "torch.nn", build, stream))


for _batch in (True, False):
    _axis = "batch first" if _batch else "time first"
    for _first in (True, False):
        _norm = "pre" if _first else "post"
        _enter(f"torch encoder {_axis} {_norm}-norm", lambda b=_batch, f=_first: encoder(b, f))
        _enter(
            f"torch transformer {_axis} {_norm}-norm", lambda b=_batch, f=_first: pair(b, f, True), "encoder", "decoder"
        )
    _enter(f"torch encoder {_axis} causal", lambda b=_batch: encoder(b, True, causal=True))
    _enter(f"torch encoder {_axis} padded", lambda b=_batch: encoder(b, False, padded=True))
    _enter(f"torch decoder {_axis}", lambda b=_batch: decoder(b))
_enter("torch transformer unmasked", lambda: pair(True, False, False), "encoder", "decoder")
