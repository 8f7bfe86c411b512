"""Weights that were read from a packed file are those of a plain model, which transformers saves."""

from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

import depthscope as ds
from depthscope.models.packaged import _model


def test_a_model_of_unpacked_weights_is_saved_without_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = pytest.importorskip("transformers.quantizers.quantizer_gguf")  # older versions leave no mark
    from transformers.utils.quantization_config import GgufConfig

    config = LlamaConfig(
        vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4
    )
    marked = LlamaForCausalLM(config)
    marked.hf_quantizer = gguf.GgufHfQuantizer(GgufConfig())
    marked.config.quantization_config = marked.hf_quantizer.quantization_config
    with pytest.raises(ValueError, match="not serializable"):
        marked.save_pretrained(tmp_path / "marked")
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: marked)
    ds.drop_(_model(tmp_path, "AutoModelForCausalLM", gguf_file="weights.gguf"), 2, save=tmp_path / "small")
    again = LlamaForCausalLM.from_pretrained(tmp_path / "small")
    assert again.config.num_hidden_layers == 2 and not hasattr(again.config, "quantization_config")
