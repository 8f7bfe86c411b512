"""Padding is left out wherever it is said: in a record, by the model itself, for frames, for another stream.

The truth is each sequence alone, without padding, by the literal formula on states that a hook has kept.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import MaskError
from loops import over
from padded_models import LENGTHS, SEEN, SPELLINGS, N, built, padded_ids, places, similarity

READ_OFF = "padding was found by looking at attention"


@torch.no_grad()
def states(model: nn.Module, blocks: Any, *args: Any, **kwargs: Any) -> list[Tensor]:
    """What entered the first block, and what left each, in a pass."""
    kept: list[Tensor] = []

    def enters(_: nn.Module, args: tuple, kwargs: dict) -> None:
        kept.append(args[0] if args else kwargs["hidden_states"])

    def leaves(_: nn.Module, args: tuple, output: Any) -> None:
        kept.append(output if isinstance(output, Tensor) else output[0])

    handles = [blocks[0].register_forward_pre_hook(enters, with_kwargs=True)]
    handles += [block.register_forward_hook(leaves) for block in blocks]
    model(*args, **kwargs)
    for handle in handles:
        handle.remove()
    return kept


def mean_over_tokens(found: list[Tensor], tokens: list[slice]) -> list[float]:
    """t_sim of each state, averaged over sequences, each by its tokens alone."""
    return [sum(similarity(X[i][place]) for i, place in enumerate(tokens)) / len(X) for X in found]


@over("spelling", list(SPELLINGS))
@over("seen", list(SEEN))
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_that_the_model_finds_itself(spelling: str, seen: str, side: str, causal: bool) -> None:
    model, ids = built(spelling, seen, causal), padded_ids(side)
    rows = [ids[i : i + 1, place] for i, place in enumerate(places(side))]
    alone = [[similarity(X[0]) for X in states(model, model.blocks, row)] for row in rows]
    found = ds.scan(model, ids, attention=False)
    assert found["t_sim"].tolist() == pytest.approx([sum(x) / 3 for x in zip(*alone, strict=True)], abs=1e-12)
    assert any(READ_OFF in note for note in found.notes)


@over("spelling", list(SPELLINGS))
@pytest.mark.parametrize("causal", [False, True])
def test_where_nothing_is_padded_all_tokens_count(spelling: str, causal: bool) -> None:
    """The last key of a causal sequence is seen by the last query alone, which sees all keys: no padding."""
    model, ids = built(spelling, causal=causal), padded_ids("right").clamp(min=1)
    truth = mean_over_tokens(states(model, model.blocks, ids), [slice(0, N)] * 3)
    found = ds.scan(model, ids, attention=False)
    assert found["t_sim"].tolist() == pytest.approx(truth, abs=1e-12)
    assert not any("padding" in note for note in found.notes)


def test_attention_metrics_leave_padding_out_too() -> None:
    model, ids = built("filled"), padded_ids("right")
    rows = [ids[i : i + 1, place] for i, place in enumerate(places("right"))]
    alone = [ds.scan(model, row) for row in rows]
    found = ds.scan(model, ids)
    for name in ("delta", "lambda_2", "attention_entropy", "omega"):
        truth = torch.stack([one[name] for one in alone]).mean(0)
        torch.testing.assert_close(found[name], truth, atol=1e-6, rtol=1e-6)


def test_content_that_hides_keys_is_no_padding() -> None:
    """Sparse attention leaves keys unseen too, but other ones in each head and block."""

    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            scores = 9 * q @ k.mT
            best = scores == scores.amax(-1, keepdim=True)
            return x + (scores.masked_fill(~best, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)

    torch.manual_seed(0)
    model, X = nn.Sequential(Sparse(), Sparse()).double(), torch.randn(3, 12, 16).double()
    truth = mean_over_tokens(states(model, model, X), [slice(0, 12)] * 3)
    assert ds.scan(model, X, attention=False)["t_sim"].tolist() == pytest.approx(truth, abs=1e-12)


# the mask is inside a record


@dataclass
class Features:
    input_ids: Tensor
    attention_mask: Tensor


class Wrapped(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Any) -> Any:
        given = features if isinstance(features, dict) else vars(features)
        return self.model(**given).last_hidden_state


def bert() -> Any:
    import transformers as T

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return T.BertModel(T.BertConfig(**sizes, vocab_size=60)).double().eval()


def mask_of(lengths: tuple[int, ...], n: int) -> Tensor:
    return (torch.arange(n) < torch.tensor(lengths)[:, None]).long()


@pytest.mark.parametrize("record", [dict, Features])
def test_a_mask_inside_the_batch(record: Any) -> None:
    model, ids, mask = bert(), padded_ids("right"), mask_of(LENGTHS, N)
    truth = mean_over_tokens(
        states(model, model.encoder.layer, input_ids=ids, attention_mask=mask), [slice(0, n) for n in LENGTHS]
    )
    found = ds.scan(Wrapped(model), (record(input_ids=ids, attention_mask=mask),))
    assert found["t_sim"].tolist() == pytest.approx(truth, abs=1e-12)
    assert found["t_sim"].tolist() != pytest.approx(ds.scan(model, ids)["t_sim"].tolist(), abs=1e-3)


@over("sense", ["padding_mask", "pad_mask", "src_mask", "keep"])
def test_a_mask_of_any_name_and_sense_is_known_by_what_it_closes(sense: str) -> None:
    inner = built("sdpa")

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = inner.blocks

        def forward(self, x: Tensor, **masks: Tensor) -> Tensor:
            (name, mask), n = next(iter(masks.items())), x.shape[1]
            tokens = mask if name in ("keep", "src_mask") else ~mask
            for block in self.blocks:
                x = block(x, tokens[:, None, None, :].expand(-1, 1, n, -1))
            return x

    model, tokens = Named(), mask_of(LENGTHS, N).bool()
    X, given = inner.embed(padded_ids("right")).detach(), tokens if sense in ("keep", "src_mask") else ~tokens
    truth = mean_over_tokens(states(model, model.blocks, X, **{sense: given}), [slice(0, n) for n in LENGTHS])
    assert ds.scan(model, {"x": X, sense: given})["t_sim"].tolist() == pytest.approx(truth, abs=1e-12)


def test_a_mask_that_nobody_understands_is_an_error() -> None:
    class Means(nn.Module):
        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            return x + torch.tanh((x * keep).sum(1, keepdim=True) / keep.sum(1, keepdim=True))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8)) for _ in range(2)])

        def forward(self, x: Tensor, pad_mask: Tensor) -> Tensor:
            for block in self.blocks:
                x = x + block(x) * ~pad_mask[..., None]
            return x

    X, pad = torch.randn(3, 6, 8), mask_of((6, 4, 2), 6) == 0
    with pytest.raises(MaskError, match=r"pad_mask may be a padding mask.*Pass mask="):
        ds.scan(Model(), {"x": X, "pad_mask": pad}, attention=False)
    assert ds.scan(Model(), {"x": X, "pad_mask": pad}, mask=~pad, attention=False).depth == 2


def test_padding_ids_that_attention_looks_at_are_told() -> None:
    model, ids = bert(), padded_ids("right")
    assert any("9 tokens at the ends" in note for note in ds.scan(model, ids).notes)
    assert not any("padding id" in note for note in ds.scan(model, ids.clamp(min=1)).notes)


# a mask belongs to the stream whose tokens it counts


@pytest.mark.parametrize("same_length", [True, False])
def test_an_encoders_mask_is_not_the_decoders(same_length: bool) -> None:
    import transformers as T

    torch.manual_seed(0)
    config = T.T5Config(d_model=32, num_layers=2, num_heads=4, d_ff=64, d_kv=8, vocab_size=60, pad_token_id=0)
    model, ids, mask = T.T5Model(config).double().eval(), padded_ids("right").clamp(min=1), mask_of(LENGTHS, N)
    given = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids if same_length else ids[:, :6]}
    tokens = {"encoder": [slice(0, n) for n in LENGTHS], "decoder": [slice(0, N if same_length else 6)] * 3}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        truth = mean_over_tokens(states(model, stack.block, **given), tokens[side])
        found = ds.scan(model, given, blocks=f"{side}.block.*")
        assert found["t_sim"].tolist() == pytest.approx(truth, abs=1e-12)
    own = mask_of((10, 9, 8), N)[:, : given["decoder_input_ids"].shape[1]]
    truth = mean_over_tokens(
        states(model, model.decoder.block, **given, decoder_attention_mask=own),
        [slice(0, int(row.sum())) for row in own],
    )
    found = ds.scan(model, {**given, "decoder_attention_mask": own}, blocks="decoder.block.*")
    assert found["t_sim"].tolist() == pytest.approx(truth, abs=1e-12)


def test_masks_of_samples_and_of_another_tower() -> None:
    import transformers as T

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    convolutions = {"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 4), "num_feat_extract_layers": 2}
    config = T.Wav2Vec2Config(
        **sizes, **convolutions, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, feat_extract_norm="layer"
    )
    model, mask = T.Wav2Vec2Model(config).double().eval(), mask_of((400, 300, 150), 400)
    given = {"input_values": torch.randn(3, 400).double() * mask, "attention_mask": mask}
    frames = [slice(0, int(n)) for n in model._get_feat_extract_output_lengths(mask.sum(-1))]
    truth = mean_over_tokens(states(model, model.encoder.layers, **given), frames)
    found = ds.scan(model, given, blocks="encoder.layers.*")
    assert found["t_sim"].tolist() == pytest.approx(truth, abs=1e-12)
    assert any(READ_OFF in note for note in found.notes)
    text = {**sizes, "vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = T.CLIPConfig(text_config=text, vision_config={**sizes, "image_size": 16, "patch_size": 8})
    clip, ids = T.CLIPModel(config).double().eval(), padded_ids("right")
    both = {"input_ids": ids, "pixel_values": torch.randn(3, 3, 16, 16).double(), "attention_mask": mask_of(LENGTHS, N)}
    for tower, tokens in (("vision", [slice(0, 5)] * 3), ("text", [slice(0, n) for n in LENGTHS])):
        blocks = getattr(clip, f"{tower}_model").encoder.layers
        found = ds.scan(clip, both, blocks=f"{tower}_model.encoder.layers.*")
        assert found["t_sim"].tolist() == pytest.approx(
            mean_over_tokens(states(clip, blocks, **both), tokens), abs=1e-12
        )
        assert any("was left aside" in note for note in found.notes) == (tower == "vision")


def test_a_model_that_pads_to_its_window() -> None:
    """Longformer makes sequences longer inside; its windows show no (n, n) pattern, but its blocks are given a mask."""
    import transformers as T

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = T.LongformerConfig(**sizes, vocab_size=60, attention_window=8, max_position_embeddings=64)
    model, ids = T.LongformerModel(config).double().eval(), padded_ids("right").clamp(min=2)
    given = {"input_ids": ids, "attention_mask": mask_of(LENGTHS, N)}
    truth = mean_over_tokens(states(model, model.encoder.layer, **given), [slice(0, n) for n in LENGTHS])
    assert ds.scan(model, given, attention=False)["t_sim"].tolist() == pytest.approx(truth, abs=1e-12)


class Encoder(nn.Module):
    """Padding is told to it, or is id 0."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.embed, self.encoder = nn.Embedding(50, 64), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, ids: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        padding = ids.eq(0) if key_padding_mask is None else key_padding_mask
        return self.encoder(self.embed(ids), src_key_padding_mask=padding)


def test_a_forecast_leaves_out_what_attention_does() -> None:
    torch.manual_seed(0)
    model, ids = Encoder().eval(), padded_ids("right")
    told = ds.forecast(model, {"ids": ids, "key_padding_mask": ids.eq(0)}).t_sim
    torch.testing.assert_close(ds.forecast(model, ids).t_sim, told, atol=1e-12, rtol=0)
    start = mean_over_tokens([model.embed(ids)], [slice(0, n) for n in LENGTHS])
    assert float(told[0]) == pytest.approx(start[0], abs=1e-6)
