"""More of transformers: sparse attention on long texts, keys chosen by an index, series of numbers, older pairs."""

from functools import partial
from typing import Any

import torch
from tools.coverage.case import BATCH, WIDTH, WORDS, words
from tools.coverage.cases.hf_streams import CAUSAL, LAYERS, texts
from tools.coverage.hugging_face import STD, TEXT, decoder, encoder, streams
from torch import Tensor

LONG = {**TEXT, "max_position_embeddings": 600}


def of_length(n: int) -> dict[str, Tensor]:
    return {"input_ids": words(n=n)}


long: Any = partial(encoder, base=LONG, heads=False)
long("longformer long", "LongformerModel", attention_window=8, inputs=lambda: of_length(64))
long("big-bird long", "BigBirdModel", attention_type="block_sparse", block_size=4, num_random_blocks=1,
     inputs=lambda: of_length(64))  # fmt: skip
long("nystromformer long", "NystromformerModel", num_landmarks=8, segment_means_seq_len=64,
     inputs=lambda: of_length(64))  # fmt: skip
decoder(
    "deepseek-v3.2", "DeepseekV32Model", num_key_value_heads=4, n_routed_experts=4, n_group=1, topk_group=1,
    q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, num_experts_per_tok=2,
    moe_intermediate_size=32, index_n_heads=2, index_head_dim=16, index_topk=8,
)  # fmt: skip

SIZES = {
    "encoder_layers": 5, "decoder_layers": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "init_std": STD,
}  # fmt: skip
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
older: Any = partial(streams, inputs=texts, group="several streams", causal=CAUSAL)
older(
    "prophetnet", "ProphetNetModel", LAYERS, base={
        "vocab_size": WORDS, "hidden_size": WIDTH, "num_encoder_layers": 5, "num_decoder_layers": 4, "ngram": 2,
        "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128, "max_position_embeddings": 64, "init_std": STD, "num_buckets": 8,
        "relative_max_distance": 16, **SPECIAL,
    },
)  # fmt: skip
TIME_FIRST = {name: {"blocks": path, "layout": "n b d"} for name, path in LAYERS.items()}
older(  # its decoder is causal only where it keeps no cache
    "fsmt", "FSMTModel", TIME_FIRST, inputs=lambda: {**texts(), "use_cache": False}, base={
        "langs": ["en", "de"], "src_vocab_size": WORDS, "tgt_vocab_size": WORDS, "d_model": WIDTH,
        "max_position_embeddings": 64, **SIZES, **SPECIAL,
    },
)  # fmt: skip


def series() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(BATCH, *shape, generator=generator)

    return {"past_values": draw(31), "past_time_features": draw(31, 2), "past_observed_mask": torch.ones(BATCH, 31),
            "future_values": draw(18), "future_time_features": draw(18, 2)}  # fmt: skip


SERIES = {
    "prediction_length": 18, "context_length": 24, "num_time_features": 2, "lags_sequence": [1, 2, 3, 4, 5, 6, 7],
    "d_model": WIDTH, "scaling": None, **SIZES,
}  # fmt: skip
numbers: Any = partial(streams, inputs=series, group="several streams", paths=LAYERS)
numbers("time series", "TimeSeriesTransformerModel", base=SERIES, causal={"decoder": "future_values"})
numbers("autoformer", "AutoformerModel", base={**SERIES, "label_length": 6, "moving_average": 5})
