"""drop_: what is saved is read by plain transformers and computes the same; what cannot be is refused, unharmed."""

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from small_families import FAMILIES, ByHand, ids, llama
from torch import nn

import depthscope as ds
from depthscope.errors import DepthscopeError, UsageError
from loops import over


def said(error: pytest.ExceptionInfo) -> str:
    return str(error.value)


@over("family", ["llama", "gpt2", "qwen3"])
def test_the_saved_folder_is_the_model(family: str, tmp_path: Path) -> None:
    """Logits and cached generation are those of the dropped model, and of the whole one without a cache."""
    from transformers import AutoModelForCausalLM

    tiny = FAMILIES[family]()
    ds.drop_(tiny.model, [1, 3], save=tmp_path / "small")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "small").eval()
    assert len(tiny.blocks) == again.config.num_hidden_layers == 2
    words = ids(2, 6)
    with torch.no_grad():
        assert torch.equal(again(words).logits, tiny.model(words).logits)
        chosen = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        cached = again.generate(words, use_cache=True, **chosen)
        assert torch.equal(cached, tiny.model.generate(words, use_cache=True, **chosen))
        assert torch.equal(cached, again.generate(words, use_cache=False, **chosen))
    assert [p.name for p in tmp_path.iterdir()] == ["small"]


def test_numbers_and_kinds_of_layers_go_with_their_blocks() -> None:
    tiny = FAMILIES["qwen3"]()
    kinds = list(tiny.model.config.layer_types)
    assert len({*kinds}) == 2
    ds.drop_(tiny.model, 2)
    assert tiny.model.config.layer_types == [kinds[0], *kinds[2:]]
    assert [block.self_attn.layer_idx for block in tiny.blocks] == [0, 1, 2]


@over(
    "blocks, part",
    [
        ([5], "got 5"),
        ([0], "got 0"),
        ([1, 1], "got [1, 1]"),
        ([], "got []"),
        ([1, 2, 3, 4], "all 4"),
        (None, "got None"),
    ],
)
def test_numbers_that_cannot_go(blocks: Any, part: str) -> None:
    tiny = llama()
    before = copy.deepcopy(tiny.model.state_dict())
    with pytest.raises(UsageError, match="drop_: ") as error:
        ds.drop_(tiny.model, blocks)
    assert part in said(error)
    assert len(tiny.blocks) == 4 and tiny.model.config.num_hidden_layers == 4
    assert all(torch.equal(value, before[name]) for name, value in tiny.model.state_dict().items())


def test_a_folder_that_exists(tmp_path: Path) -> None:
    tiny = llama()
    with pytest.raises(UsageError, match="drop_: the folder of save must be new"):
        ds.drop_(tiny.model, [1], save=tmp_path)
    assert len(tiny.blocks) == 4 and list(tmp_path.iterdir()) == []


def test_a_model_that_saves_nothing(tmp_path: Path) -> None:
    model = FAMILIES["encoder"]().model
    with pytest.raises(UsageError, match="with save_pretrained; got TransformerEncoder"):
        ds.drop_(model, [1], save=tmp_path / "small")
    assert len(model.layers) == 4


def test_shared_blocks_are_refused() -> None:
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        vocab_size=61,
        embedding_size=8,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
    )
    model = AlbertModel(config).eval()
    with pytest.raises(UsageError, match="weights of its own"):
        ds.drop_(model, [1])
    once = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    tied = nn.TransformerEncoder(once, 3, enable_nested_tensor=False)
    tied.layers = nn.ModuleList([once] * 3)
    with pytest.raises(UsageError, match="shared blocks"):
        ds.drop_(tied, [1])


def test_an_encoder_with_a_decoder_is_refused() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=61, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4)
    model = T5ForConditionalGeneration(config).eval()
    with pytest.raises(UsageError, match="an encoder and a decoder"):
        ds.drop_(model, [1])


def test_a_failure_while_saving_leaves_the_model_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, words = llama(), ids(2, 6)

    def fails(*_: object, **__: object) -> None:
        raise OSError("no space left")

    before = tiny.model(words).logits
    monkeypatch.setattr(type(tiny.model), "save_pretrained", fails)
    with pytest.raises(UsageError, match="no space left"):
        ds.drop_(tiny.model, [2], save=tmp_path / "small")
    assert len(tiny.blocks) == tiny.model.config.num_hidden_layers == 4
    assert [block.self_attn.layer_idx for block in tiny.blocks] == [0, 1, 2, 3]
    assert torch.equal(tiny.model(words).logits, before) and list(tmp_path.iterdir()) == []


def kept_kinds(name: str) -> Any:
    """Small models whose configurations tell the kind of a layer by its number, in ways of their own."""
    import transformers as T

    sizes = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 4}
    few = {"num_experts_per_tok": 1, "pad_token_id": 0}
    if name == "first layers dense":
        low = {"q_lora_rank": 4, "kv_lora_rank": 4, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
        experts = {"moe_intermediate_size": 8, "n_routed_experts": 2, "n_group": 1, "topk_group": 1}
        chosen = sizes | few | low | experts | {"first_k_dense_replace": 2}
        return T.DeepseekV3ForCausalLM(T.DeepseekV3Config(**chosen))
    if name == "experts by number":
        experts = {"num_local_experts": 2, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 24}
        return T.Llama4ForCausalLM(T.Llama4TextConfig(**sizes, **few, **experts, attention_chunk_size=4))
    counts = {"encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    wide = {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32}
    alone = {"vocab_size": 61, "is_encoder_decoder": False, "is_decoder": True}
    return T.BartForCausalLM(T.BartConfig(**counts, **wide, **alone))


@over("name", ["first layers dense", "experts by number", "decoder alone"])
def test_kinds_of_layers_are_saved_with_their_blocks(name: str, tmp_path: Path) -> None:
    model, words = kept_kinds(name).eval(), ids(2, 6)
    ds.drop_(model, 1, save=tmp_path / "small")
    again = type(model).from_pretrained(tmp_path / "small").eval()
    with torch.no_grad():
        assert torch.equal(again(words).logits, model(words).logits)


def test_images_beside_text_keep_their_own_blocks(tmp_path: Path) -> None:
    """Two towers of as many blocks: the configuration of the other is left alone."""
    from transformers import CLIPConfig, CLIPModel

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    text = sizes | {"vocab_size": 61, "max_position_embeddings": 16, "eos_token_id": 2}
    images = sizes | {"image_size": 8, "patch_size": 4}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=images, projection_dim=8)).eval()
    ds.drop_(model, 2, among="vision_model.encoder.layers.*", save=tmp_path / "small")
    assert model.config.vision_config.num_hidden_layers == 2 and model.config.text_config.num_hidden_layers == 3
    again = CLIPModel.from_pretrained(tmp_path / "small").eval()
    given = {"input_ids": ids(2, 6), "pixel_values": torch.randn(2, 3, 8, 8)}
    with torch.no_grad():
        assert torch.equal(again(**given).logits_per_image, model(**given).logits_per_image)


def test_a_backbone_whose_name_has_a_number(tmp_path: Path) -> None:
    """The module dinov2 is no block; its configuration names the ends of blocks."""
    from transformers import Dinov2Config, Dinov2ForImageClassification

    sizes = {"hidden_size": 16, "mlp_ratio": 2, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = Dinov2Config(**sizes, image_size=8, patch_size=4, drop_path_rate=0.3, num_labels=3)
    model, pixels = Dinov2ForImageClassification(config).eval(), torch.randn(2, 3, 8, 8)
    ds.drop_(model, 1, save=tmp_path / "small")
    again = Dinov2ForImageClassification.from_pretrained(tmp_path / "small").eval()
    assert again.config.out_features == ["stage2"] and again.config.stage_names == ["stem", "stage1", "stage2"]
    with torch.no_grad():
        assert torch.equal(again(pixels).logits, model(pixels).logits)


def test_a_list_that_is_as_long_by_chance_stays() -> None:
    model = llama(depth=3).model
    model.config.eos_token_id = [5, 6, 7]
    ds.drop_(model, 2)
    assert model.config.eos_token_id == [5, 6, 7] and model.config.num_hidden_layers == 2


def test_a_block_that_holds_what_others_use_is_refused() -> None:
    """T5's first block makes the relative positions of all."""
    from transformers import T5Config, T5EncoderModel

    model = T5EncoderModel(T5Config(vocab_size=61, d_model=16, d_kv=4, d_ff=24, num_layers=3, num_heads=4)).eval()
    with pytest.raises(UsageError, match=r"block 1 alone has '.*relative_attention_bias.weight'"):
        ds.drop_(model, [1])
    assert len(ds.drop_(model, 2).encoder.block) == 2


class Words(nn.Module):
    """Not repeated: what comes before the blocks of a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(61, 16)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.table(words)


def layers(count: int) -> list[nn.Module]:
    return [nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True) for _ in range(count)]


def test_what_else_a_sequential_holds_stays() -> None:
    """Block 1 is the first block, not the first entry."""
    blocks = layers(4)
    model = nn.Sequential(Words(), *blocks, nn.LayerNorm(16), nn.Linear(16, 61)).eval()
    first, *_, norm, head = model
    truth = nn.Sequential(first, blocks[1], blocks[3], norm, head)(ids())
    ds.drop_(model, [1, 3], among="[1-4]")
    assert list(model) == [first, blocks[1], blocks[3], norm, head]
    assert torch.equal(model(ids()), truth)


def test_blocks_may_have_names() -> None:
    blocks = layers(3)
    model = nn.Sequential(OrderedDict(zip(("low", "middle", "high"), blocks, strict=True))).eval()
    ds.drop_(nn.Sequential(Words(), model), 2, among="1.*")
    assert dict(model.named_children()) == {"low": blocks[0], "high": blocks[2]}


@over("kind", ["parameter", "list"])
def test_what_counts_blocks_beside_the_list_is_refused(kind: str) -> None:
    """One scalar or one norm for each block: those that are left would get another's."""
    model = nn.TransformerEncoder(layers(1)[0], 4, enable_nested_tensor=False)
    scalars = nn.Parameter(torch.ones(4))
    model.beside = scalars if kind == "parameter" else nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
    with pytest.raises(UsageError, match="'beside' of TransformerEncoder has 4 entries"):
        ds.drop_(model, 2)
    assert len(model.layers) == 4


def test_a_folder_of_the_user_is_never_touched(tmp_path: Path) -> None:
    mine = tmp_path / "part-of-small" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("kept")
    ds.drop_(llama().model, 2, save=tmp_path / "small")
    assert mine.read_text() == "kept"
    assert {p.name for p in tmp_path.iterdir()} == {"small", "part-of-small"}
    assert (tmp_path / "small").stat().st_mode & 0o777 == mine.parent.stat().st_mode & 0o777


def test_a_fixed_model_is_refused() -> None:
    tiny = llama()
    with ds.fix_(tiny.model, ds.remedies.DeEscalate(), at="sa_sum"), pytest.raises(UsageError, match="must be plain"):
        ds.drop_(tiny.model, [1])


def test_pairs_in_a_list_go_too() -> None:
    """Blocks that are no modules but stand in one list."""
    model = ByHand(3).eval()
    kept = model.layers[1]
    ds.drop_(model, [1, 3], among="layers.*")
    assert len(model.layers) == 1 and model.layers[0] is kept


def test_stages_are_refused_and_keep_their_configuration() -> None:
    """A stage of two blocks in a model of two stages: its configuration counts stages, not blocks."""
    from transformers import SwinConfig, SwinForImageClassification

    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "num_heads": [2, 4], "window_size": 2}
    model = SwinForImageClassification(SwinConfig(depths=[2, 2], **sizes)).eval()
    for among in (None, "swin.encoder.layers.0.blocks.*"):
        with pytest.raises(UsageError, match=r"has stages of 2, 2 blocks.*set config\.depths"):
            ds.drop_(model, [1], among=among)
    assert model.config.depths == [2, 2] and model.config.num_hidden_layers == 2


@over("among, part", [("decoder.*", "among='decoder.\\*'"), ("model.layers.0", "every entry of the list")])
def test_blocks_that_were_named_wrongly(among: str, part: str) -> None:
    tiny = llama()
    with pytest.raises(DepthscopeError, match=part):
        ds.drop_(tiny.model, [1], among=among)
    assert len(tiny.blocks) == 4


def test_blocks_that_no_name_tells_are_those_that_depth_found() -> None:
    """Jamba's blocks are of two classes, and CLIP has two towers: what ds.depth found says which are meant."""
    from transformers import JambaConfig, JambaForCausalLM

    config = JambaConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        use_mamba_kernels=False,
        mamba_d_state=4,
    )
    model = JambaForCausalLM(config).eval()
    with pytest.raises(DepthscopeError, match='among="'):
        ds.drop_(model, [1])
    found = ds.depth(model, ids(), what=[])
    kept = model.model.layers[2:]
    assert list(ds.drop_(model, [1, 2], among=found.blocks).model.layers) == list(kept)
