"""What can be measured is; what is missing is said, with how to give it; the model is as before."""

import pytest
import torch
from small_families import FAMILIES, ids, llama
from torch import nn

import depthscope as ds
from depthscope.errors import DepthscopeError, UnknownNameError, UsageError
from loops import over


def test_a_model_without_a_head_is_measured() -> None:
    body = llama().model.model
    found = ds.depth(body, ids())
    assert found.prices is None and found.lens is None and found.depth_of_use is None
    assert bool((found.plain.influence > 0).all())
    [loss] = [note for note in found.notes if "no loss" in note]
    assert "gives no logits" in loss and "loss=f" in loss and "labels" in loss
    assert any("no lens" in note for note in found.notes)
    assert found.to_drop(1) and "Without a loss" in found.verdict


def test_a_model_that_sees_later_tokens_has_no_next_token() -> None:
    tiny = FAMILIES["bert"]()
    found = ds.depth(tiny.model, {"input_ids": ids()})
    assert found.prices is None and found.lens is not None
    assert any("sees later tokens" in note for note in found.notes)


def test_calls_of_a_shared_block_are_priced() -> None:
    """Skipping a call of ALBERT's block is allowed: without the last, the model ends one call earlier."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    config = AlbertConfig(
        vocab_size=61,
        embedding_size=8,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
    )
    model, words = AlbertForMaskedLM(config).eval(), ids()
    given = {"input_ids": words, "labels": words.flip(0)}
    found = ds.depth(model, given, held_out=given, what=["prices"])
    whole = float(model(**given).loss.detach())
    model.config.num_hidden_layers = 2
    shorter = float(model(**given).loss.detach())
    assert found.prices is not None and found.depth == 3
    # one block called again and again: whichever call is left out, two are made
    torch.testing.assert_close(found.prices.skip, torch.full((3,), shorter - whole).double(), rtol=0, atol=1e-6)


def test_a_score_of_the_user() -> None:
    def right(output, inputs) -> torch.Tensor:
        return (output.logits[:, :-1].argmax(-1) == inputs[:, 1:]).double().flatten()

    tiny = llama()
    found = ds.depth(tiny.model, ids(), held_out=ids(), score=right, what=["prices"]).prices
    assert found is not None and found.score is not None
    with torch.no_grad():
        whole = right(tiny.model(ids()), ids()).mean()
        del tiny.blocks[0]
        tiny.model.config.num_hidden_layers, tiny.model.config.use_cache = 3, False
        assert float(found.score[0]) == pytest.approx(float(right(tiny.model(ids()), ids()).mean() - whole))


@over(
    "choice, part",
    [
        ({"what": ["lense"]}, "lens"),
        ({"what": ["swaps"]}, "Add prices"),
        ({"tolerance": 0.0}, "above 0"),
        ({"tolerance": "0.1"}, "above 0"),
        ({"drops": 4}, "1 to 3 of 4"),
        ({"drops": 1.5}, "1 to 3 of 4"),
        ({"drops": True}, "1 to 3 of 4"),
        ({"what": None}, "some of lens, prices"),
        ({"loss": 3.0}, "functions of output and inputs"),
        ({"loss": lambda output, inputs: None}, "got NoneType"),
        ({"score": lambda output, inputs: "good"}, "got str"),
        ({"loss": lambda output, inputs: torch.tensor(torch.nan)}, "must be finite"),
        ({"stream": "decoder"}, "decoder"),
    ],
)
def test_choices_that_cannot_be(choice: dict, part: str) -> None:
    tiny = llama()
    with pytest.raises(DepthscopeError, match="depth: ") as error:
        ds.depth(tiny.model, ids(), **choice)
    assert part in str(error.value)


def test_a_fixed_model_is_refused_and_a_cache_too() -> None:
    from transformers import DynamicCache

    tiny = llama()
    with (
        ds.fix_(tiny.model, ds.remedies.DeEscalate(), at="sa_sum"),
        pytest.raises(UsageError, match="must have no remedy"),
    ):
        ds.depth(tiny.model, ids())
    with pytest.raises(UsageError, match="cache"):
        ds.depth(tiny.model, {"input_ids": ids(), "past_key_values": DynamicCache()})


def test_blocks_that_differ_in_width_are_refused() -> None:
    class Wider(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = [nn.TransformerEncoderLayer(d, 2, 8, batch_first=True, dropout=0.0) for d in (8, 8, 16, 16)]
            self.first, self.second = nn.ModuleList(layer[:2]), nn.ModuleList(layer[2:])
            self.between = nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.first:
                x = layer(x)
            x = self.between(x)
            for layer in self.second:
                x = layer(x)
            return x

    with pytest.raises(DepthscopeError, match=r"depth: .*blocks="):
        ds.depth(Wider().eval(), torch.randn(2, 5, 8), blocks=["first.*", "second.*"])


def test_a_loss_of_no_labels_is_no_price() -> None:
    """All labels are -100: the loss is NaN, and no block is dear because of that."""
    words = ids()
    with pytest.raises(UsageError, match=r"the model's own loss gives nan in batch 1.*-100"):
        ds.depth(llama().model, {"input_ids": words, "labels": torch.full_like(words, -100)})


def test_a_loss_gives_as_many_numbers_in_every_pass() -> None:
    calls = []

    def growing(output, inputs) -> torch.Tensor:
        calls.append(1)
        return output.logits.flatten()[: len(calls)]

    with pytest.raises(UsageError, match="got 1 of the whole model and 2 without block 1"):
        ds.depth(llama().model, ids(), growing, held_out=ids(), what=["prices"])


def test_texts_of_one_token_have_no_next_one() -> None:
    found = ds.depth(llama().model, ids()[:, :1])
    assert found.prices is None and any("no token of the inputs has a next one" in note for note in found.notes)


def test_the_first_block_that_gives_nan_is_named() -> None:
    tiny = llama()
    with torch.no_grad():
        tiny.blocks[2].mlp.down_proj.weight.fill_(torch.nan)
    found = ds.depth(tiny.model, ids(), what=[])
    assert any("block 3 is the first to give NaN" in note for note in found.notes)
    assert bool(found.rest.influence[:2].isfinite().all()) and "nan" not in found.verdict


def test_branches_that_were_not_seen_are_said_to_be_missing() -> None:
    """OPT's network works on all tokens in one row."""
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=61,
        hidden_size=16,
        word_embed_proj_dim=16,
        ffn_dim=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        pad_token_id=0,
    )
    found = ds.depth(OPTForCausalLM(config).eval(), ids(), what=[])
    assert not bool(found.rest.size[0].isnan().any()) and bool(found.rest.size[1].isnan().all())
    assert found.notes == ("no sum of the stream and ffn was seen in blocks 1 and 2: its contribution is missing",)


def test_an_unknown_measure_is_named() -> None:
    with pytest.raises(UnknownNameError, match="lens"):
        ds.depth(llama().model, ids(), what=["lenses"])


def test_the_model_is_left_as_it_was() -> None:
    tiny = llama()
    tiny.model.train()
    torch.manual_seed(7)
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in tiny.model.state_dict().items()}
    ds.depth(tiny.model, ids(), drops=1)
    assert torch.equal(torch.get_rng_state(), state) and tiny.model.training
    assert all(torch.equal(v, before[k]) for k, v in tiny.model.state_dict().items())
    assert all(p.grad is None for p in tiny.model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in tiny.model.modules())


def test_inputs_without_a_token_are_refused() -> None:
    model = ds.models.classic(2, 16, 2).eval()
    with pytest.raises(UsageError, match=r"depth: inputs must have a token .* got states \(\d, 0, 16\)"):
        ds.depth(model, torch.randn(2, 0, 16))


def test_a_complex_loss_is_refused() -> None:
    model = ds.models.classic(2, 16, 2).eval()
    with pytest.raises(UsageError, match="loss and score must give a number"):
        ds.depth(model, torch.randn(2, 6, 16), loss=lambda output, inputs: torch.tensor(1j))


def test_no_block_is_called_the_idlest_where_none_gives_numbers() -> None:
    model = ds.models.classic(2, 16, 2).eval()
    found = ds.depth(model, torch.full((2, 6, 16), torch.nan))
    assert found.verdict.endswith("the tokens of no block are numbers: see the notes.")
    assert any("block 1 is the first to give NaN" in note for note in found.notes)
