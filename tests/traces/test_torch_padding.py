"""torch's own padding masks: tokens first or batch first, encoders and decoders, boolean or minus infinity, B = n."""

import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.traces.inputs import padding_in
from loops import over

D = 16
SIZES = [(3, 7), (6, 6), (2, 2), (5, 3)]
later = nn.Transformer.generate_square_subsequent_mask


class Block(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(D, 4, batch_first=batch_first), nn.LayerNorm(D)
        self.ffn = nn.Linear(D, D)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        return x + self.ffn(x).relu()


class ByHand(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(batch_first) for _ in range(2))

    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, key_padding_mask)
        return x


def encoder(first: bool, x: Tensor, padding: Tensor, causal: Tensor | None) -> tuple:
    layer = nn.TransformerEncoderLayer(D, 4, 32, dropout=0.0, batch_first=first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, model.layers, {"src": x, "src_key_padding_mask": padding, "mask": causal}


def decoder(first: bool, x: Tensor, padding: Tensor, causal: Tensor | None) -> tuple:
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 4, 32, dropout=0.0, batch_first=first), 2)
    memory = torch.randn_like(x[:, :4] if first else x[:4])
    return model, model.layers, {"tgt": x, "memory": memory, "tgt_key_padding_mask": padding, "tgt_mask": causal}


def by_hand(first: bool, x: Tensor, padding: Tensor, causal: Tensor | None) -> tuple:
    model = ByHand(first)
    return model, model.layers, {"x": x, "key_padding_mask": padding}


def states(model: nn.Module, layers: nn.ModuleList, inputs: dict) -> list[Tensor]:
    seen: list[Tensor] = []
    hooks = [layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))]
    hooks += [layer.register_forward_hook(lambda *call: seen.append(call[-1].clone())) for layer in layers]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return seen


def literally(X: Tensor, keep: Tensor, first: bool) -> Tensor:
    """Mean over sequences of the share of the mean token, of tokens alone."""
    X = (X if first else X.transpose(0, 1)).double()
    shares = [x[k].mean(0).square().sum() * k.sum() / x[k].square().sum() for x, k in zip(X, keep, strict=True)]
    return torch.stack(shares).mean()


@over(
    "build, first, B, n, form, causal",
    [
        (build, first, *size, form, causal)
        for build in (encoder, decoder, by_hand)
        for first in (False, True)
        for size in SIZES
        for form in ("bool", "float")
        for causal in (False, True)
    ],
    every=7,
)
def test_padding_is_left_out_whatever_the_layout(build, first, B, n, form, causal):
    torch.manual_seed(B)
    padding = torch.arange(n) >= torch.randint(2, n + 1, (B, 1))
    given = padding if form == "bool" else torch.zeros(B, n).masked_fill(padding, -torch.inf)
    x = torch.randn(B, n, D) + torch.randn(B, 1, D)
    x = x if first else x.transpose(0, 1)
    scores = None if not causal else later(n) if form == "float" else later(n) < 0
    model, layers, inputs = build(first, x, given, scores)
    model.eval()
    found = ds.scan(model, inputs)
    truth = torch.stack([literally(X, ~padding, first) for X in states(model, layers, inputs)])
    torch.testing.assert_close(found["t_sim"], truth, rtol=1e-5, atol=1e-6)
    assert found.token_axis == int(first)


@over("first", [False, True])
@over("B, n", [(3, 7), (6, 6)])
@over("side", ["encoder", "decoder"])
def test_an_encoder_and_a_decoder_have_masks_of_their_own(first, B, n, side):
    model = nn.Transformer(D, 4, 2, 2, 32, dropout=0.0, batch_first=first).train()
    paddings = [torch.arange(m) >= torch.randint(2, m + 1, (B, 1)) for m in (4, n)]
    x = [torch.randn(B, m, D) for m in (4, n)]
    x = x if first else [one.transpose(0, 1) for one in x]
    inputs = dict(zip(("src", "tgt", "src_key_padding_mask", "tgt_key_padding_mask"), (*x, *paddings), strict=True))
    found = ds.scan(model, inputs, blocks=f"{side}.layers.*")
    keep = ~paddings[side == "decoder"]
    truth = [literally(X, keep, first) for X in states(model, getattr(model, side).layers, inputs)]
    torch.testing.assert_close(found["t_sim"], torch.stack(truth), rtol=1e-5, atol=1e-6)


@over("first", [False, True])
@over("B, n", SIZES)
def test_a_remedy_leaves_padding_out_too(first, B, n):
    """The mean that is subtracted is that of tokens: what padding holds moves no token."""
    torch.manual_seed(0)
    padding = torch.arange(n) >= torch.randint(2, n + 1, (B, 1))
    padding[0] = False
    x = torch.randn(B, n, D)
    other = torch.where(padding[..., None], 9.0, x)
    outputs = []
    for value in (x, other):
        model, _, inputs = encoder(first, value if first else value.transpose(0, 1), padding, None)
        torch.manual_seed(1)
        for p in model.parameters():
            nn.init.normal_(p, std=0.1)
        with ds.fix_(model.eval(), ds.remedies.DeEscalate(0.7)), torch.no_grad():
            y = model(**inputs)
        outputs.append((y if first else y.transpose(0, 1))[~padding])
    torch.testing.assert_close(*outputs)


def test_a_decoder_alone_is_masked_by_its_own_tokens():
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 4), 1)
    padding = torch.tensor([[False, False, True]])
    x = torch.randn(3, 1, D)
    named = {"tgt_key_padding_mask": padding, "memory_key_padding_mask": ~padding}
    assert torch.equal(padding_in(model, (x, x), named), ~padding)
    assert padding_in(model, (x, x), {"memory_key_padding_mask": padding}) is None
