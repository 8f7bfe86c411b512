"""x-transformers: `layers` is a list of [norms, attention or network, join], two or three of them a block."""

from collections.abc import Callable
from typing import Any

import torch
import x_transformers as X
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
    Tapped,
    enter,
    main_tensor,
    numbers,
    other_last,
    words,
)
from tools.coverage.hooks import tapped_at
from torch import Tensor, nn

SIZES: dict[str, Any] = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "attn_dim_head": 16}


def _wide(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.6 * WIDTH**-0.5)
    return model.eval()


def stream(model: nn.Module, under: str = "", *, parts: int = 2, post: bool = False) -> Tapped:
    """The stream of blocks of so many parts: the join of the last part of each, or the norm after it."""
    end = "0.2" if post else "2"
    count = len(model.get_submodule(f"{under}layers"))  # type: ignore[arg-type]
    ends = [f"{under}layers.{i}.{end}" for i in range(parts - 1, count, parts)]
    return tapped_at(model, ends, first=f"{under}layers.0.2", argument=1)


def layers(name: str, kind: str, *, parts: int = 2, post: bool = False, **options: Any) -> None:
    """Encoder or Decoder, on tokens."""

    def build() -> Sample:
        model = _wide(getattr(X, kind)(**SIZES, **options))
        tokens, causal = numbers(BATCH, TOKENS, WIDTH), kind == "Decoder"
        tapped = stream(model, parts=parts, post=post)
        changed = other_last(tokens) if causal else None
        patterns = None if "attn_num_mem_kv" in options else _patterns(model, tokens)  # there P is not square
        return Sample(model, tokens, {"main": Stream(tapped, causal, None, patterns, changed)})

    enter(Case(f"x {name}", "x-transformers", build))


def _patterns(model: nn.Module, tokens: Tensor) -> Callable[[], list[Tensor | None]]:
    def patterns() -> list[Tensor | None]:
        with torch.no_grad():
            _, hidden = model(tokens, return_hiddens=True)
        return [a.post_softmax_attn for a in hidden.attn_intermediates if a.layer_type == "a"]

    return patterns


def text(name: str, kind: str, *, options: dict[str, Any] | None = None, **wrapper: Any) -> None:
    """A TransformerWrapper around Encoder or Decoder, on ids."""

    def build() -> Sample:
        model = _wide(
            X.TransformerWrapper(
                num_tokens=WORDS, max_seq_len=64, attn_layers=getattr(X, kind)(**SIZES, **options or {}), **wrapper
            )
        )
        causal = kind == "Decoder"
        changed = other_last(words()) if causal else None
        return Sample(model, words(), {"main": Stream(stream(model, "attn_layers."), causal, None, None, changed)})

    enter(Case(f"x {name}", "x-transformers", build))


def padded() -> Sample:
    model = _wide(X.TransformerWrapper(num_tokens=WORDS, max_seq_len=64, attn_layers=X.Encoder(**SIZES)))
    mask = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    mask[1, -6:] = False
    given = {"x": words().where(mask, 0), "mask": mask}
    streams = {"main": Stream(stream(model, "attn_layers."), False, mask)}
    return Sample(model, given, streams, repadded={**given, "x": words().where(mask, 9)})


def vit() -> Sample:
    model = _wide(X.ViTransformerWrapper(image_size=20, patch_size=4, attn_layers=X.Encoder(**SIZES)))
    given = torch.randn(BATCH, 3, 20, 20, generator=torch.Generator().manual_seed(1)) + 0.5
    return Sample(model, given, {"main": Stream(stream(model, "attn_layers."))}, token_axis=None)


def pair() -> Sample:
    model = _wide(
        X.XTransformer(
            dim=WIDTH, enc_num_tokens=WORDS, enc_depth=DEPTH, enc_heads=HEADS, enc_max_seq_len=64, enc_attn_dim_head=16,
            dec_num_tokens=WORDS, dec_depth=4, dec_heads=HEADS, dec_max_seq_len=64, dec_attn_dim_head=16,
        )
    )  # fmt: skip
    given = {"src": words(), "tgt": words(n=19, seed=2)}
    changed = {**given, "tgt": other_last(given["tgt"])}
    kept: list[Tensor] = []  # the model itself gives a loss alone
    model.decoder.net.register_forward_hook(lambda module, args, out: kept.append(main_tensor(out)))  # type: ignore
    streams = {
        "encoder": Stream(stream(model, "encoder.attn_layers.")),
        "decoder": Stream(stream(model, "decoder.net.attn_layers.", parts=3), True, None, None, changed),
    }
    return Sample(model, given, streams, result=lambda loss: kept[-1])


layers("encoder", "Encoder")
layers("encoder post-norm", "Encoder", post=True, pre_norm=False)
layers("encoder flash", "Encoder", attn_flash=True)
layers("encoder rmsnorm", "Encoder", use_rmsnorm=True)
layers("encoder scalenorm", "Encoder", use_scalenorm=True)
layers("encoder gate residual", "Encoder", gate_residual=True)
layers("encoder scale residual", "Encoder", scale_residual=True)
layers("encoder sandwich norm", "Encoder", sandwich_norm=True)
layers("encoder macaron", "Encoder", macaron=True, parts=3)
layers("encoder talking heads", "Encoder", attn_pre_talking_heads=True, attn_post_talking_heads=True)
layers("encoder gated values", "Encoder", attn_gate_values=True)
layers("encoder weight-tied", "Encoder", weight_tie_layers=True)
layers("encoder alibi", "Encoder", alibi_pos_bias=True)
layers("encoder rotary", "Encoder", rotary_pos_emb=True)
layers("encoder t5 bias", "Encoder", rel_pos_bias=True)
layers("encoder qk-norm", "Encoder", attn_qk_norm=True)
layers("encoder glu", "Encoder", ff_glu=True, ff_swish=True)
layers("encoder relu squared", "Encoder", ff_relu_squared=True)
layers("encoder head scale", "Encoder", attn_head_scale=True)
layers("encoder one kv head", "Encoder", attn_one_kv_head=True)
layers("encoder memory keys", "Encoder", attn_num_mem_kv=4)
layers("encoder residual attention", "Encoder", residual_attn=True, pre_norm=False, post=True)
layers("encoder value residual", "Encoder", add_value_residual=True)
layers("encoder deepnorm", "Encoder", pre_norm=False, post=True, scale_residual=True, scale_residual_constant=1.5)
layers("decoder", "Decoder")
layers("decoder flash", "Decoder", attn_flash=True)
layers("decoder shift tokens", "Decoder", shift_tokens=1)
layers("decoder rotary gqa", "Decoder", rotary_pos_emb=True, attn_kv_heads=2)
layers("decoder gate residual", "Decoder", gate_residual=True)
text("text decoder", "Decoder", options={"rotary_pos_emb": True})
text("text encoder", "Encoder")
text("text encoder memory tokens", "Encoder", num_memory_tokens=4)
enter(Case("x text encoder padded", "padding", padded))
enter(Case("x vit", "x-transformers", vit))
for _stream in ("encoder", "decoder"):
    enter(Case(f"x pair {_stream}", "x-transformers", pair, _stream))
