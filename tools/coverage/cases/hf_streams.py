"""Encoder-decoders and models of several towers of transformers: one case for each stream."""

from functools import partial
from typing import Any

import torch
import transformers
from tools.coverage.case import BATCH, WIDTH, WORDS, words
from tools.coverage.hugging_face import IMAGE, STD, TEXT, pixels, streams
from torch import Tensor

BART = {
    "vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": 5, "decoder_layers": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 64,
    "init_std": STD, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
T5 = {
    "vocab_size": WORDS, "d_model": WIDTH, "d_kv": 16, "d_ff": 128, "num_layers": 5, "num_decoder_layers": 4,
    "num_heads": 4, "pad_token_id": 0, "decoder_start_token_id": 0, "relative_attention_num_buckets": 8,
}  # fmt: skip
LAYERS = {"encoder": "encoder.layers.*", "decoder": "decoder.layers.*"}
BLOCKS = {"encoder": "encoder.block.*", "decoder": "decoder.block.*"}
BOTH = {"encoder": "encoder_attentions", "decoder": "decoder_attentions"}
CAUSAL = {"decoder": "decoder_input_ids"}


def texts() -> dict[str, Tensor]:
    return {"input_ids": words(), "decoder_input_ids": words(n=18, seed=2)}


def sound(channels: int, length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(BATCH, channels, length, generator=generator) + 0.3
    return {"input_features": features, "decoder_input_ids": words(n=18, seed=2)}


pair: Any = partial(
    streams, paths=LAYERS, inputs=texts, base=BART, group="several streams", causal=CAUSAL, patterns=BOTH
)
pair("bart", "BartModel")
pair("mbart", "MBartModel")
pair("pegasus", "PegasusModel")
pair("marian", "MarianModel")
pair("m2m100", "M2M100Model")
pair("blenderbot", "BlenderbotModel")
pair("plbart", "PLBartModel")
pair("led", "LEDModel", patterns=None, attention_window=8, max_encoder_position_embeddings=64,
     max_decoder_position_embeddings=64)  # fmt: skip
pair("t5", "T5Model", paths=BLOCKS, base=T5)
pair("t5 v1.1", "T5Model", paths=BLOCKS, base=T5, feed_forward_proj="gated-gelu")
pair("mt5", "MT5Model", paths=BLOCKS, base=T5)
pair("umt5", "UMT5Model", paths=BLOCKS, base=T5)
pair("longt5", "LongT5Model", paths=BLOCKS, base=T5, patterns=None, local_radius=4)
pair("switch", "SwitchTransformersModel", paths=BLOCKS, base=T5, num_experts=4, patterns=None)
pair("whisper", "WhisperModel", inputs=lambda: sound(8, 48), num_mel_bins=8, max_source_positions=24,
     max_target_positions=64)  # fmt: skip
pair("speech-to-text", "Speech2TextModel", inputs=lambda: {**sound(96, 8)}, input_feat_per_channel=8, input_channels=1,
     conv_channels=32, max_source_positions=64, max_target_positions=64, patterns=None)  # fmt: skip

SPLIT = {"text_config": {**TEXT, "num_hidden_layers": 4}, "vision_config": IMAGE, "projection_dim": 32}


def captioned() -> dict[str, Tensor]:
    return {"input_ids": words(), **pixels()}


tower: Any = partial(
    streams, base=SPLIT, inputs=captioned, group="several streams", token_axis=None,
    paths={"text": "text_model.encoder.layers.*", "vision": "vision_model.encoder.layers.*"},
    result=lambda out: torch.cat([out.text_embeds, out.image_embeds], -1),
)  # fmt: skip
tower("clip", "CLIPModel", causal={"text": "input_ids"})
tower("siglip", "SiglipModel")
tower("chinese-clip", "ChineseCLIPModel",
      paths={"text": "text_model.encoder.layer.*", "vision": "vision_model.encoder.layers.*"})  # fmt: skip


def llava() -> Any:
    text = transformers.LlamaConfig(**{**TEXT, "num_key_value_heads": 2, "num_hidden_layers": 4})
    vision = transformers.CLIPVisionConfig(**IMAGE)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_id=99, image_seq_length=25)
    torch.manual_seed(0)
    return transformers.LlavaForConditionalGeneration(config).eval()


def with_image() -> dict[str, Tensor]:
    image = torch.full((BATCH, 25), 99)
    return {"input_ids": torch.cat([words(n=4).clamp(max=98), image, words(n=12).clamp(max=98)], 1), **pixels()}


tower("llava", "", make=llava, inputs=with_image, causal={"text": "input_ids"}, token_axis=1,
      result=lambda out: out.logits, paths={"text": "model.language_model.layers.*", "vision": {
          "blocks": [f"model.vision_tower.encoder.layers.{i}" for i in range(5)]}})  # fmt: skip


def seen() -> dict[str, Tensor]:
    return {**captioned(), "pixel_mask": torch.ones(BATCH, 20, 20, dtype=torch.long)}


streams("vilt", "ViltModel", {"main": "encoder.layer.*"}, seen, {**TEXT, "image_size": 20, "patch_size": 4},
        group="several streams", token_axis=None)  # fmt: skip
streams(
    "blip-vision alone", "BlipVisionModel", {"main": "encoder.layers.*"}, pixels, IMAGE, group="vision", token_axis=None
)


def detr() -> Any:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    sizes = {k: v for k, v in BART.items() if k in ("d_model", "encoder_layers", "decoder_layers", "init_std")}
    config = transformers.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, num_queries=12, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, init_xavier_std=0.5, **sizes,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.DetrModel(config).eval()


streams("detr", "", LAYERS, lambda: pixels(40), {}, group="several streams", make=detr)
