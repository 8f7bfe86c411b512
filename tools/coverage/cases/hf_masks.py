"""Models of transformers with the masks that their processors give: of words, of samples of sound, of both sides."""

from collections.abc import Callable
from typing import Any

import torch
from tools.coverage.case import BATCH, TOKENS, Case, Sample, Stream, enter, words
from tools.coverage.cases.hf_audio import WAVE
from tools.coverage.cases.hf_streams import BART, BLOCKS, LAYERS, SPLIT, T5
from tools.coverage.hooks import tapped_at
from tools.coverage.hugging_face import TEXT, built, pixels
from torch import Tensor

Given = Callable[[], dict[str, Tensor]]
Masks = Callable[[], dict[str, Tensor]]


def real(n: int = TOKENS, padding: int = 6) -> Tensor:
    """Which tokens count, (B, n): the second sequence is shorter."""
    keep = torch.ones(BATCH, n, dtype=torch.bool)
    keep[1, n - padding :] = False
    return keep


def masked(
    name: str,
    make: Callable[[], Any],
    given: Given,
    paths: dict[str, str],
    masks: Masks,
    *,
    token_axis: int | None = 1,
    causal: tuple[str, ...] = (),
    result: Callable[[Any], Tensor] | None = None,
) -> None:
    """Enter one case for each stream. masks: which of its tokens count, for streams with padding."""

    def build() -> Sample:
        model, inputs = make(), given()
        streams = {s: Stream(tapped_at(model, p), s in causal, masks().get(s)) for s, p in paths.items()}
        more = {} if result is None else {"result": result}
        return Sample(model, inputs, streams, token_axis=token_axis, **more)

    for stream in paths:
        enter(Case(name if stream == "main" else f"{name} {stream}", "padding", build, stream))


def captions() -> dict[str, Tensor]:
    return {"input_ids": words().where(real(), 0), "attention_mask": real().long(), **pixels()}


def embeddings(out: Any) -> Tensor:
    """Of both towers, without the padded text: some models read it at its last token."""
    return torch.cat([out.text_embeds[::2], out.image_embeds[::2]], -1)


TOWERS = {"text": "text_model.encoder.layers.*", "vision": "vision_model.encoder.layers.*"}
masked("clip with mask", lambda: built("CLIPModel", SPLIT, {}), captions, TOWERS, lambda: {"text": real()},
       token_axis=None, causal=("text",), result=embeddings)  # fmt: skip
masked("siglip with mask", lambda: built("SiglipModel", SPLIT, {}), captions, TOWERS, lambda: {"text": real()},
       token_axis=None, result=embeddings)  # fmt: skip
BLIP = {**SPLIT, "text_config": {**SPLIT["text_config"], "encoder_hidden_size": 64}}  # type: ignore[dict-item]
masked("blip with mask", lambda: built("BlipModel", BLIP, {}), captions,
       {**TOWERS, "text": "text_model.encoder.layer.*"}, lambda: {"text": real()}, token_axis=None,
       result=embeddings)  # fmt: skip


def seen() -> dict[str, Tensor]:
    return {**captions(), "pixel_mask": torch.ones(BATCH, 20, 20, dtype=torch.long)}


def of_words_and_patches() -> dict[str, Tensor]:
    return {"main": torch.cat([real(), torch.ones(BATCH, 26, dtype=torch.bool)], 1)}


masked("vilt with mask", lambda: built("ViltModel", {**TEXT, "image_size": 20, "patch_size": 4}, {}), seen,
       {"main": "encoder.layer.*"}, of_words_and_patches)  # fmt: skip


def texts() -> dict[str, Tensor]:
    both = {"input_ids": words().where(real(), 0), "attention_mask": real().long()}
    short = real(18, 4)
    return {**both, "decoder_input_ids": words(n=18, seed=2).where(short, 0), "decoder_attention_mask": short.long()}


def of_both() -> dict[str, Tensor]:
    return {"encoder": real(), "decoder": real(18, 4)}


LED = {"attention_window": 8, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}
for _name, _kind, _base, _paths, _more in (
    ("bart", "BartModel", BART, LAYERS, {}),
    ("t5", "T5Model", T5, BLOCKS, {}),
    ("led", "LEDModel", BART, LAYERS, LED),
    ("longt5", "LongT5Model", T5, BLOCKS, {"local_radius": 4}),
    ("longt5 global", "LongT5Model", T5, BLOCKS, {"local_radius": 4, "encoder_attention_type": "transient-global",
                                                  "global_block_size": 4}),
):  # fmt: skip
    masked(f"{_name} with masks", lambda k=_kind, b=_base, m=_more: built(k, b, m), texts, _paths, of_both,
           causal=("decoder",))  # type: ignore[misc]  # fmt: skip


def waves() -> dict[str, Tensor]:
    mask = torch.ones(BATCH, 500, dtype=torch.long)
    mask[1, 380:] = 0
    return {"input_values": (torch.randn(BATCH, 500, generator=torch.Generator().manual_seed(1)) + 0.2) * mask,
            "attention_mask": mask}  # fmt: skip


def of_frames() -> dict[str, Tensor]:
    """380 of 500 samples are 18 of 24 frames."""
    return {"main": real(24, 6)}


SMALL = {"conv_pos_kernel_size": 3, "num_conv_pos_embeddings": 2}
for _kind, _more in (("Wav2Vec2", {}), ("Hubert", {}), ("WavLM", {}), ("UniSpeechSat", {}), ("Data2VecAudio", SMALL)):
    masked(f"{_kind.lower()} with mask", lambda k=_kind, m=_more: built(f"{k}Model", WAVE, m), waves,
           {"main": "encoder.layers.*"}, of_frames)  # type: ignore[misc]  # fmt: skip


def with_global() -> dict[str, Tensor]:
    attends_to_all = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    attends_to_all[:, 0] = 1
    return {"input_ids": words().where(real(), 0), "attention_mask": real().long(),
            "global_attention_mask": attends_to_all}  # fmt: skip


masked("longformer with masks", lambda: built("LongformerModel", TEXT, {"attention_window": 8}), with_global,
       {"main": "encoder.layer.*"}, lambda: {"main": real()})  # fmt: skip
