"""What training changes: norms with weights of their own, special tokens of another size than patches."""

from typing import Any

import torch
from tools.coverage.hugging_face import decoder, encoder, vision


def trained_norms(model: Any) -> None:
    """Weights and biases of all norms move away from where they start."""
    with torch.no_grad():
        for module in model.modules():
            if "norm" in type(module).__name__.lower():
                for p in module.parameters(recurse=False):
                    p.add_(0.5 * torch.randn(p.shape))


def small_special_tokens(model: Any) -> None:
    """Class tokens, registers and detection tokens a hundred times smaller than patches."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "token" in name and p.ndim == 3:
                p.mul_(0.01)


encoder("bert trained norms", "BertModel", group="trained", change=trained_norms)
decoder("gpt2 trained norms", "GPT2Model", "h.*", group="trained", change=trained_norms)
decoder("llama trained norms", "LlamaModel", group="trained", num_key_value_heads=2, change=trained_norms)
decoder("gemma trained norms", "GemmaModel", group="trained", num_key_value_heads=2, head_dim=16, change=trained_norms)
decoder("qwen3 trained norms", "Qwen3Model", group="trained", num_key_value_heads=2, head_dim=16, change=trained_norms)
vision("vit trained norms", "ViTModel", "layers.*", group="trained", change=trained_norms)
vision(
    "dinov2 small registers", "Dinov2WithRegistersModel", "encoder.layer.*", group="trained", layerscale_value=0.5,
    num_register_tokens=4, change=small_special_tokens,
)  # fmt: skip
vision(
    "yolos small tokens", "YolosModel", "encoder.layer.*", group="trained", image_size=[20, 20], num_detection_tokens=5,
    change=small_special_tokens,
)  # fmt: skip
