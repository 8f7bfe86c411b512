"""Causal models of transformers that mix tokens by a state: alone, or beside attention."""

from functools import partial
from typing import Any

from tools.coverage.hugging_face import decoder

state: Any = partial(decoder, group="state spaces", heads=False)
MAMBA = {"mamba_d_state": 8, "mamba_expand": 2, "use_mamba_kernels": False}

state("mamba", "MambaModel", state_size=8)
state("mamba2", "Mamba2Model", state_size=8, num_heads=8, head_dim=16, n_groups=2, chunk_size=8)
state("falcon-mamba", "FalconMambaModel", state_size=8)
state("rwkv", "RwkvModel", "blocks.*", attention_hidden_size=64, context_length=64)
state("recurrent-gemma", "RecurrentGemmaModel", lru_width=64, attention_window_size=8, num_key_value_heads=1)
state("jamba", "JambaModel", num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=2, **MAMBA)
state("zamba", "ZambaModel", num_key_value_heads=4, attn_layer_period=2, attn_layer_offset=1, **MAMBA)
state(
    "bamba", "BambaModel", num_key_value_heads=2, attn_layer_indices=[1, 3], mamba_n_heads=8, mamba_d_head=16, **MAMBA
)
state("lfm2", "Lfm2Model", num_key_value_heads=2, full_attn_idxs=[1, 3], block_auto_adjust_ff_dim=False)
state("minimax", "MiniMaxModel", num_key_value_heads=2, head_dim=16, num_local_experts=2, block_size=8)
state("xlstm", "xLSTMModel", "blocks.*", num_blocks=5, num_heads=4, chunk_size=8, qk_dim_factor=1.0)
