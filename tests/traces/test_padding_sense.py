"""mask= is 1 for a token. Given in torch's sense, True for padding, it is refused with the question by every verb."""

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import MaskError
from loops import over

B, N, D = 4, 8, 16
LENGTHS = torch.tensor([8, 5, 3, 6])
TOKENS = torch.arange(N) < LENGTHS[:, None]  # True for a token; padding is on the right
LEFT = TOKENS.flip(-1)


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


VERBS = {"scan": ds.scan, "paths": ds.paths, "ablate": ds.ablate}  # those that take mask=


def tokens() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(B, N, D)


@over("verb", VERBS)
def test_the_complement_of_the_mask_among_the_inputs_is_refused(verb):
    inputs = {"src": tokens(), "src_key_padding_mask": ~TOKENS}
    for reversed_mask in (~TOKENS, (~TOKENS).long(), (~TOKENS).float()):
        reversed_mask[0, -2:] = 1 if reversed_mask.dtype != torch.bool else True  # no sequence is all padding
        inputs["src_key_padding_mask"] = reversed_mask.bool()
        with pytest.raises(MaskError, match=r"says the opposite of every token\. Is it True for padding.*pass ~mask"):
            VERBS[verb](encoder(), inputs, mask=reversed_mask)


class Hand(nn.Module):
    """Blocks that are given the padding under a name that nobody knows, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = encoder().layers

    def forward(self, x: Tensor, absent: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=absent)
        return x


@over("verb", ["scan", "paths"])
@over("dtype", [torch.bool, torch.long])
def test_attention_tells_which_tokens_are_padding(verb, dtype):
    inputs = {"x": tokens()[1:], "absent": ~TOKENS[1:]}
    with pytest.raises(MaskError, match=r"gives no attention to the tokens that it calls padding.*pass ~mask"):
        VERBS[verb](Hand().eval(), inputs, mask=(~TOKENS[1:]).to(dtype))
    VERBS[verb](Hand().eval(), inputs, mask=TOKENS[1:].to(dtype))


def test_padding_on_the_left_is_accepted_where_the_model_hides_it():
    keep = LEFT[1:]
    found = ds.scan(Hand().eval(), {"x": tokens()[1:], "absent": ~keep}, mask=keep)
    assert found.valid_tokens == float(LENGTHS[1:].double().mean())


class ByKeys(nn.Module):
    """Attention without a mask: the padding has keys that no query looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, 2 * D) for _ in range(2))

    def forward(self, x: Tensor, absent: Tensor) -> Tensor:
        far = torch.cat([-1e4 * absent.unsqueeze(-1).to(x), torch.zeros_like(x[..., 1:])], -1)
        for layer in self.layers:
            q, v = layer(x).chunk(2, -1)
            q = torch.cat([torch.ones_like(q[..., :1]), q[..., 1:]], -1)
            x = x + nn.functional.scaled_dot_product_attention(q, x + far, v)
        return x


def test_padding_that_no_query_looks_at_is_told_without_a_mask():
    torch.manual_seed(0)
    keep = LEFT[1:]
    found = ds.scan(ByKeys().eval(), {"x": tokens()[1:], "absent": ~keep}, mask=keep)
    assert found.valid_tokens == float(LENGTHS[1:].double().mean())
    with pytest.raises(MaskError, match=r"gives no attention to the tokens that it calls padding.*pass ~mask"):
        ds.scan(ByKeys().eval(), {"x": tokens()[1:], "absent": ~keep}, mask=~keep)


def test_tokens_that_are_all_the_same_are_padding():
    x = tokens()[1:]
    x[~TOKENS[1:]] = 0.5
    with pytest.raises(MaskError, match=r"tokens that it counts are all the same one.*pass ~mask"):
        ds.scan(Hand().eval(), x, mask=~TOKENS[1:])
    ds.scan(Hand().eval(), x, mask=TOKENS[1:])
    left = tokens()[1:]
    left[~LEFT[1:]] = 0.5
    assert ds.scan(Hand().eval(), left, mask=LEFT[1:]).depth == 2  # boolean, on the left, and plain to see


def test_where_nothing_tells_a_boolean_mask_that_begins_with_false_is_a_question():
    x = tokens()[1:]
    with pytest.raises(MaskError, match=r"nothing in the model .* tells.*pass ~mask\. Or is the padding on the left"):
        ds.scan(Hand().eval(), x, mask=~TOKENS[1:])
    answered = ds.scan(Hand().eval(), x, mask=(~TOKENS[1:]).long())  # yes, on the left
    assert answered.valid_tokens == float((N - LENGTHS[1:]).double().mean())
    ds.scan(Hand().eval(), x, mask=TOKENS[1:])  # on the right there is no question


def test_causal_models_keep_their_padding_on_the_left():
    """No attention to later tokens is no witness: it would be so with either sense."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, 4, 32, dropout=0.0, batch_first=True)

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).layers

        def forward(self, x: Tensor) -> Tensor:
            later = torch.ones(N, N, dtype=torch.bool).triu(1)
            for block in self.layers:
                x = block(x, src_mask=later)
            return x

    found = ds.scan(Causal().eval(), tokens()[1:], mask=LEFT[1:].long())
    assert found.valid_tokens == float(LENGTHS[1:].double().mean())


def test_a_sequence_that_is_all_padding_asks_for_the_sense_too():
    with pytest.raises(MaskError, match=r"all padding.*True for padding"):
        ds.scan(encoder(), tokens(), mask=(~TOKENS).long())
