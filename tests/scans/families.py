"""The models that a scan must understand, each with an independent way to look into it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as T
from torch import Tensor, nn
from x_transformers import Encoder

DEPTH, D, HEADS, N, B = 3, 32, 4, 11, 4
STD = 0.02 * (768 / D) ** 0.5 * 3  # wide enough that heads differ
SIZES = {
    "hidden_size": D,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": 64,
    "initializer_range": STD,
}
TEXT = {**SIZES, "vocab_size": 99}


@dataclass
class Family:
    """A model, inputs, and hooks into it: the block outputs, what attention reads, and its P from eager attention."""

    model: nn.Module
    inputs: Tensor
    ends: list[nn.Module]  # modules whose outputs are the states after each block, in order of calls
    reads: list[nn.Module]  # modules whose inputs are the tokens that attention reads
    attention: Callable[[], list[Tensor]]  # (B, h, n, n) of every block
    time_first: bool = False
    placement: str = "post"
    causal: bool = False


def ids() -> Tensor:
    return torch.randint(1, 99, (B, N), generator=torch.Generator().manual_seed(1))


def tokens() -> Tensor:
    return torch.randn(B, N, D, generator=torch.Generator().manual_seed(1))


def hugging_face(
    name: str, config: dict[str, Any], ends: str, reads: str, *, model: str = "Model", **facts: Any
) -> Family:
    settings = getattr(T, f"{name}Config")(**config)
    torch.manual_seed(0)
    built = getattr(T, f"{name}{model}")(settings).eval()
    eager = getattr(T, f"{name}{model}")(settings).eval()
    eager.load_state_dict(built.state_dict())
    eager.set_attn_implementation("eager")
    inputs = facts.pop("inputs", None)
    inputs = ids() if inputs is None else inputs

    def attention() -> list[Tensor]:
        with torch.no_grad():
            return list(eager(inputs, output_attentions=True).attentions)

    return Family(built, inputs, matching(built, ends), matching(built, reads), attention, **facts)


def matching(model: nn.Module, pattern: str) -> list[nn.Module]:
    """encoder.layer.*: the modules with a number in the place of the star; a path without one, the module itself."""
    if "*" not in pattern:
        return [model.get_submodule(pattern)]
    return [model.get_submodule(pattern.replace("*", str(i))) for i in range(DEPTH)]


def torch_encoder(*, norm_first: bool, batch_first: bool, train: bool) -> Family:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, HEADS, 64, batch_first=batch_first, norm_first=norm_first, dropout=0.0)
    model = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False).train(train)
    for p in model.parameters():
        nn.init.normal_(p, std=0.25)
    X = tokens() if batch_first else tokens().transpose(0, 1)

    def attention() -> list[Tensor]:
        out, x = [], tokens()
        for block in model.layers:
            read = block.norm1(x) if norm_first else x
            q, k, _ = (read @ block.self_attn.in_proj_weight.T + block.self_attn.in_proj_bias).chunk(3, -1)
            q, k = (t.reshape(B, N, HEADS, -1).transpose(1, 2) for t in (q, k))
            out.append((q @ k.mT / (D / HEADS) ** 0.5).softmax(-1).detach())
            x = block(x if batch_first else x.transpose(0, 1))
            x = x if batch_first else x.transpose(0, 1)
        return out

    reads = [b.self_attn for b in model.layers]
    placement = "pre" if norm_first else "post"
    return Family(model, X, list(model.layers), reads, attention, not batch_first, placement)


def x_transformers(placement: str, *, flash: bool, **options: Any) -> Family:
    def build(flash: bool) -> nn.Module:
        torch.manual_seed(0)
        model = Encoder(dim=D, depth=DEPTH, heads=HEADS, attn_dim_head=8, attn_flash=flash, **options).eval()
        for p in model.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.25)
        return model

    model, plain = build(flash), build(False)
    plain.load_state_dict(model.state_dict())

    def attention() -> list[Tensor]:
        with torch.no_grad():
            _, hidden = plain(tokens(), return_hiddens=True)
        return [a.post_softmax_attn for a in hidden.attn_intermediates]

    halves = [model.layers[i] for i in range(1, 2 * DEPTH, 2)]
    ends = [half[0][2] if placement == "post" else half[2] for half in halves]
    reads = [model.layers[i][1] for i in range(0, 2 * DEPTH, 2)]
    return Family(model, tokens(), ends, reads, attention, placement=placement)


BERT_READS = "encoder.layer.*.attention.self"
LLAMA = {**TEXT, "num_key_value_heads": 2}
IMAGES = torch.randn(B, 3, 24, 24, generator=torch.Generator().manual_seed(1))

FAMILIES: dict[str, Callable[[], Family]] = {
    f"torch-{'pre' if pre else 'post'}-{'batch' if batch else 'time'}-{'train' if train else 'eval'}": (
        lambda pre=pre, batch=batch, train=train: torch_encoder(norm_first=pre, batch_first=batch, train=train)
    )
    for pre in (False, True)
    for batch in (False, True)
    for train in (False, True)
}
FAMILIES |= {
    "bert": lambda: hugging_face("Bert", TEXT, "encoder.layer.*", BERT_READS),
    "roberta": lambda: hugging_face("Roberta", TEXT, "encoder.layer.*", BERT_READS),
    "distilbert": lambda: hugging_face(
        "DistilBert",
        {"dim": D, "n_layers": DEPTH, "n_heads": HEADS, "hidden_dim": 64, "vocab_size": 99, "initializer_range": STD},
        "transformer.layer.*",
        "transformer.layer.*.attention",
    ),
    "albert": lambda: hugging_face(
        "Albert",
        {**TEXT, "embedding_size": 16},
        "encoder.albert_layer_groups.0",
        "encoder.albert_layer_groups.0.albert_layers.0.attention",
    ),
    "deberta-v2": lambda: hugging_face(
        "DebertaV2",
        {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "encoder.layer.*",
        BERT_READS,
    ),
    "xlnet": lambda: hugging_face(
        "XLNet",
        {"d_model": D, "n_layer": DEPTH, "n_head": HEADS, "d_inner": 64, "vocab_size": 99, "initializer_range": STD},
        "layer.*",
        "layer.*.rel_attn",
        time_first=True,
    ),
    "gpt2": lambda: hugging_face(
        "GPT2",
        {"n_embd": D, "n_layer": DEPTH, "n_head": HEADS, "vocab_size": 99, "initializer_range": STD},
        "h.*",
        "h.*.attn",
        placement="pre",
        causal=True,
    ),
    "llama": lambda: hugging_face("Llama", LLAMA, "layers.*", "layers.*.self_attn", placement="pre", causal=True),
    "qwen3": lambda: hugging_face(
        "Qwen3", {**LLAMA, "head_dim": 8}, "layers.*", "layers.*.self_attn", placement="pre", causal=True
    ),
    "modernbert": lambda: hugging_face(
        "ModernBert", {**TEXT, "pad_token_id": 0}, "layers.*", "layers.*.attn", placement="pre"
    ),
    "t5-encoder": lambda: hugging_face(
        "T5",
        {"d_model": D, "num_layers": DEPTH, "num_heads": HEADS, "d_ff": 64, "d_kv": 8, "vocab_size": 99},
        "encoder.block.*",
        "encoder.block.*.layer.0.SelfAttention",
        model="EncoderModel",
        placement="pre",
    ),
    "vit": lambda: hugging_face(
        "ViT",
        {**SIZES, "image_size": 24, "patch_size": 8},
        "layers.*",
        "layers.*.attention",
        placement="pre",
        inputs=IMAGES,
    ),
    "deit": lambda: hugging_face(
        "DeiT",
        {**SIZES, "image_size": 24, "patch_size": 8},
        "layers.*",
        "layers.*.attention",
        placement="pre",
        inputs=IMAGES,
    ),
}
for _flash in (False, True):
    FAMILIES |= {
        f"x-post{'-flash' * _flash}": lambda f=_flash: x_transformers("post", flash=f, pre_norm=False),
        f"x-pre{'-flash' * _flash}": lambda f=_flash: x_transformers("pre", flash=f),
        f"x-sandwich{'-flash' * _flash}": lambda f=_flash: x_transformers("sandwich", flash=f, sandwich_norm=True),
    }
