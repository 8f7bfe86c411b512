"""Models of images and videos of transformers, with one stream."""

from functools import partial
from typing import Any

import torch
from tools.coverage.case import BATCH
from tools.coverage.hugging_face import STD, pixels, vision
from torch import Tensor

HIERARCHY = {"initializer_range": STD}
stages: Any = partial(vision, group="stages", base=HIERARCHY, heads=False)


def video(frames: int = 4, size: int = 8) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(BATCH, frames, 3, size, size, generator=generator) + 0.5}


vision("vit", "ViTModel", "layers.*")
vision("vit eager", "ViTModel", "layers.*", attn_implementation="eager")
vision("vit classifier", "ViTForImageClassification", "vit.layers.*")
vision("deit", "DeiTModel", "layers.*")
vision("beit", "BeitModel", "layers.*", use_relative_position_bias=True, layer_scale_init_value=0.5)
vision("data2vec-vision", "Data2VecVisionModel", "encoder.layer.*", layer_scale_init_value=0.5)
vision("vit-mae", "ViTMAEModel", "layers.*", mask_ratio=0.0, heads=False)
vision("vit-msn", "ViTMSNModel", "layers.*")
vision("ijepa", "IJepaModel", "layers.*")
vision("dinov2", "Dinov2Model", "encoder.layer.*", layerscale_value=0.5)
vision("dinov2 registers", "Dinov2WithRegistersModel", "encoder.layer.*", layerscale_value=0.5, num_register_tokens=4)
vision("dinov3", "DINOv3ViTModel", "model.layer.*", layerscale_value=0.5, num_register_tokens=4)
vision("yolos", "YolosModel", "encoder.layer.*", image_size=[20, 20], num_detection_tokens=5)
vision("dpt", "DPTModel", "encoder.layer.*", heads=False)
vision("vitdet", "VitDetModel", "encoder.layer.*", heads=False, pretrain_image_size=20, window_size=3,
       window_block_indices=[0, 2], hooks={"layout": "b d h w"})  # fmt: skip
vision("sam vision", "SamVisionModel", "vision_encoder.layers.*", heads=False, num_channels=3, output_channels=16,
       mlp_dim=128, window_size=3, global_attn_indexes=[1, 3], use_rel_pos=True,
       hooks={"layout": "b h w d"})  # fmt: skip
vision("siglip-vision alone", "SiglipVisionModel", "encoder.layers.*")
vision("clip-vision alone", "CLIPVisionModel", "encoder.layers.*")
vision("aimv2-vision alone", "Aimv2VisionModel", "encoder.layers.*")
vision("mlcd", "MLCDVisionModel", "encoder.layers.*")
vision("audio spectrogram", "ASTModel", "layers.*", group="audio", max_length=20, num_mel_bins=20, frequency_stride=4,
       time_stride=4, inputs=lambda: {"input_values": torch.randn(3, 20, 20) + 0.5})  # fmt: skip
vision("timesformer", "TimesformerModel", "encoder.layer.*", image_size=8, num_frames=4, inputs=video, heads=False)
vision("videomae", "VideoMAEModel", "encoder.layer.*", image_size=8, num_frames=4, tubelet_size=1, inputs=video)
vision("vivit", "VivitModel", "layers.*", image_size=8, num_frames=4, tubelet_size=[1, 4, 4], inputs=video)

SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 32, "depths": [2, 3], "num_heads": [2, 4], "window_size": 4}
stages("swin", "SwinModel", "encoder.layers.*.blocks.*", inputs=lambda: pixels(16), **SWIN)
stages("swinv2", "Swinv2Model", "encoder.layers.*.blocks.*", inputs=lambda: pixels(16), **SWIN)
stages(
    "pvt", "PvtModel", "encoder.block.*.*", inputs=lambda: pixels(32), image_size=32, depths=[2, 2, 2],
    num_encoder_blocks=3, hidden_sizes=[32, 64, 64], num_attention_heads=[1, 2, 4], sequence_reduction_ratios=[2, 2, 1],
    patch_sizes=[4, 2, 2], strides=[4, 2, 2], mlp_ratios=[2, 2, 2],
)  # fmt: skip
stages(
    "segformer", "SegformerModel", "stages.*.blocks.*", inputs=lambda: pixels(32), depths=[2, 2, 2],
    num_encoder_blocks=3, hidden_sizes=[32, 64, 64], num_attention_heads=[1, 2, 4], sr_ratios=[2, 2, 1],
    patch_sizes=[7, 3, 3], strides=[4, 2, 2], mlp_ratios=[2, 2, 2],
)  # fmt: skip
stages(
    "pvt-v2", "PvtV2Model", "encoder.layers.*.blocks.*", inputs=lambda: pixels(32), image_size=32, depths=[2, 2, 2],
    num_encoder_blocks=3, hidden_sizes=[32, 64, 64], num_attention_heads=[1, 2, 4], sr_ratios=[2, 2, 1],
    patch_sizes=[7, 3, 3], strides=[4, 2, 2], mlp_ratios=[2, 2, 2],
)  # fmt: skip
stages(
    "hiera", "HieraModel", "encoder.stages.*.layers.*", inputs=lambda: pixels(32), image_size=[32, 32], embed_dim=32,
    depths=[2, 3], num_heads=[2, 4], query_stride=[2, 2], masked_unit_size=[4, 4], masked_unit_attention=[True, False],
    num_query_pool=1, patch_size=[7, 7], patch_stride=[4, 4], patch_padding=[3, 3], layer_norm_init=1.0,
)  # fmt: skip
stages(
    "poolformer", "PoolFormerModel", "encoder.block.*.*", inputs=lambda: pixels(32), depths=[2, 2, 2],
    num_encoder_blocks=3, hidden_sizes=[32, 64, 64], patch_sizes=[7, 3, 3], strides=[4, 2, 2], padding=[2, 1, 1],
    layer_scale_init_value=0.5, mlp_ratio=2.0, hooks={"layout": "b d h w"},
)  # fmt: skip
stages(
    "cvt", "CvtModel", "encoder.stages.*.layers.*", inputs=lambda: pixels(32), depth=[1, 2, 3], embed_dim=[32, 64, 64],
    num_heads=[1, 2, 4],
)  # fmt: skip
stages(
    "convnext", "ConvNextModel", "encoder.stages.*.layers.*", inputs=lambda: pixels(32), depths=[2, 2], num_stages=2,
    hidden_sizes=[32, 64], layer_scale_init_value=0.5, repeats=False, hooks={"layout": "b d h w"},
)  # fmt: skip
