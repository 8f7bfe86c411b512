"""Models of sound of transformers, with one stream."""

from functools import partial
from typing import Any

import torch
from tools.coverage.case import BATCH
from tools.coverage.hugging_face import SIZES, family

WAVE = {
    **SIZES, "conv_dim": [32, 32], "conv_kernel": [8, 4], "conv_stride": [5, 4], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "vocab_size": 100, "layerdrop": 0.0,
}  # fmt: skip


def wave() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(BATCH, 500, generator=torch.Generator().manual_seed(1)) + 0.2}


def frames() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(BATCH, 24, 160, generator=torch.Generator().manual_seed(1)) + 0.2}


sound: Any = partial(family, group="audio", base=WAVE, inputs=wave)
sound("wav2vec2", "Wav2Vec2Model", "encoder.layers.*")
sound("wav2vec2 stable", "Wav2Vec2Model", "encoder.layers.*", do_stable_layer_norm=True, feat_extract_norm="layer")
sound("hubert", "HubertModel", "encoder.layers.*")
sound("wavlm", "WavLMModel", "encoder.layers.*", heads=False)
sound("unispeech", "UniSpeechModel", "encoder.layers.*")
sound("unispeech-sat", "UniSpeechSatModel", "encoder.layers.*")
sound("data2vec-audio", "Data2VecAudioModel", "encoder.layers.*", conv_pos_kernel_size=3, num_conv_pos_embeddings=2)
sound("wav2vec2-conformer", "Wav2Vec2ConformerModel", "encoder.layers.*", heads=False)
sound("wav2vec2-bert", "Wav2Vec2BertModel", "encoder.layers.*", inputs=frames, heads=False)
sound("sew", "SEWModel", "encoder.layers.*", squeeze_factor=1, heads=False)
