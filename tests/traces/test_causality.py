"""Causality is behaviour: a stream is causal when changing a later token moves no earlier one, whatever the spelling."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers as T
from torch import Tensor, nn

import depthscope as ds
from depthscope.traces.causality import Causality, causality
from depthscope.traces.signature import signature_of
from depthscope.traces.trial import ROUNDING, Trial
from loops import crossed, over

sys.path.append(str(Path(__file__).parents[1] / "remedies"))
from masked import AFTER, SPELLINGS, TRIL, Model, N, past_moves

PLACE = torch.arange(N)
X = torch.randn(3, N, 16, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(1, 99, (3, N), generator=torch.Generator().manual_seed(2))


def tried(model: nn.Module, *args, blocks: str = "blocks.*", axis: int = 1, mask: Tensor | None = None, **kwargs):
    names = (
        [p for p, _ in model.named_modules() if ds.traces.blocks.template(p) == blocks] if "*" in blocks else [blocks]
    )
    return causality(model, names, axis, args, kwargs, mask)


def test_a_finite_mask_is_causal() -> None:
    for value in (-15.0, -30.0, -100.0, -1000.0, -9999.0, -1e4, -torch.inf):
        for name, spelling in SPELLINGS.items():
            assert tried(Model(spelling, value=value).eval(), X).kind == "causal", (value, name)
    for spelling in ("added", "sdpa"):
        assert ds.scan(Model(SPELLINGS[spelling], value=-100.0).eval(), X).causal is True


def test_a_mask_after_the_softmax_is_causal_although_its_normaliser_sees_all() -> None:
    for name, spelling in AFTER.items():
        found = tried(Model(spelling).eval(), X)
        assert found.kind == "causal" and found.held, name


KINDS = {  # who sees whom: what that is
    "all": (torch.ones(N, N).bool(), "open"),
    "a window": ((PLACE[:, None] - PLACE).abs() <= 1, "open"),
    "windows side by side": (PLACE[:, None] // 3 == PLACE // 3, "open"),
    "the past": (TRIL, "causal"),
    "the near past": (TRIL & (PLACE[:, None] - PLACE <= 1), "causal"),
    "a prefix": (TRIL | (PLACE < 4), "in part"),
    "nearly all": (TRIL | (PLACE < N - 1), "in part"),
    "chunks of 3": (PLACE[:, None] // 3 >= PLACE // 3, "in part"),
    "chunks of 4": (PLACE[:, None] // 4 >= PLACE // 4, "in part"),
    "itself": (torch.eye(N).bool(), "unknown"),
}


@crossed("name, spelling, dtype", list(KINDS), ["added", "sdpa"], [torch.float32, torch.float64, torch.bfloat16])
def test_prefixes_chunks_and_windows(name: str, spelling: str, dtype: torch.dtype) -> None:
    seen, kind = KINDS[name]
    model = Model(SPELLINGS[spelling], seen, -30.0).to(dtype).eval()
    assert tried(model, X.to(dtype)).kind == kind


class Mixing(nn.Module):
    """Blocks X + mix(norm X) of any kind."""

    def __init__(self, mixes: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), mix) for mix in mixes)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class Conv(nn.Module):
    def __init__(self, after: int) -> None:
        super().__init__()
        self.conv, self.after = nn.Conv1d(16, 16, 3), after

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(nn.functional.pad(x.mT, (2 - self.after, self.after))).mT


class Linear(nn.Module):
    """Linear attention, by running sums or by sums over all."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.qkv, self.causal = nn.Linear(16, 48), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
        kv = torch.einsum("bnd,bne->bnde", k, v)
        S, z = (kv.cumsum(1), k.cumsum(1)) if self.causal else (kv.sum(1, keepdim=True), k.sum(1, keepdim=True))
        S, z = S.expand(-1, x.shape[1], -1, -1), z.expand_as(k)
        return torch.einsum("bnd,bnde->bne", q, S) / (q * z).sum(-1, keepdim=True)


class Recurrent(nn.Module):
    def __init__(self, both: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 8 if both else 16, batch_first=True, bidirectional=both)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


@over("kind, causal", [(Conv, (0, 1)), (Linear, (True, False)), (Recurrent, (False, True))])
def test_convolutions_linear_attention_and_recurrences(kind: type, causal: tuple) -> None:
    assert tried(Mixing([kind(causal[0]) for _ in range(2)]).eval(), X).kind == "causal"
    assert tried(Mixing([kind(causal[1]) for _ in range(2)]).eval(), X).kind == "open"


def test_a_weak_encoder_is_not_taken_for_causal() -> None:
    """2048 tokens of width 8, weights of size 0.02: the last token moves others by a millionth of their length."""
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True), 2)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        found = tried(model.eval().to(dtype), torch.randn(1, 2048, 8).to(dtype), blocks="layers.*")
        assert found.kind == "open"


def test_branches_that_add_nothing_yet() -> None:
    """ReZero: the stream does not move at all; what attention gives tells which way it looks."""
    for causal in (False, True):
        model = ds.models.classic(3, 16, 2, wiring="rezero", causal=causal).eval()
        name = next(p for p, m in model.named_modules() if type(m).__name__ == "Block").rpartition(".")[0]
        assert tried(model, X, blocks=f"{name}.*".lstrip(".")).kind == ("causal" if causal else "open")


def test_padding_on_either_side() -> None:
    for build, blocks, kind in ((gpt2, "h.*", "causal"), (bert, "encoder.layer.*", "open")):
        for row in ([0, 0, 0] + [1] * 6, [1] * 6 + [0, 0, 0]):
            mask = torch.tensor([[1] * 4 + [0] * 5, row, [0] * 5 + [1] * 4])
            found = tried(build(), blocks=blocks, mask=mask.bool(), input_ids=IDS, attention_mask=mask)
            assert found.kind == kind and (kind == "open" or found.cuts[0][1:] == (1, 5))


def gpt2() -> nn.Module:
    return T.GPT2Model(T.GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=99)).eval()


def bert() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    return T.BertModel(T.BertConfig(**sizes, vocab_size=99), add_pooling_layer=False).eval()


def encoder(**options) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.0, **options), 2)


@over("sequences", [1, 3, N])
def test_time_first_and_as_many_sequences_as_tokens(sequences: int) -> None:
    x, mask = torch.randn(N, sequences, 16), torch.full((N, N), -30.0).triu(1)
    for options, tokens in (({}, x), ({"batch_first": True}, x.transpose(0, 1))):
        model, axis = encoder(**options).eval(), int(bool(options))
        assert tried(model, tokens, blocks="layers.*", axis=axis).kind == "open"
        assert tried(model, tokens, blocks="layers.*", axis=axis, mask=None, **{}).kind == "open"
        names = ["layers.0", "layers.1"]
        assert causality(model, names, axis, (tokens,), {"mask": mask}, None).kind == "causal"


def test_a_batch_in_which_one_sequence_is_causal() -> None:
    """(B, n, n) masks: the first sequence sees all, the second does not; a mean over all would leak in the second."""

    class Masked(Model):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            for block in self.blocks:
                block.seen = mask[:, None]
            return super().forward(x)

    masks = torch.stack([torch.ones(N, N).bool(), TRIL, torch.ones(N, N).bool()])
    model = Masked(SPELLINGS["sdpa"], value=-30.0).eval()
    assert causality(model, ["blocks.0", "blocks.1"], 1, (X,), {"mask": masks}, None).kind == "in part"
    with ds.fix_(model, ds.remedies.DeEscalate()) as fix:
        model(X, mask=masks)
        assert fix.remedy.form == "sink"


def test_what_cannot_be_told() -> None:
    model = Model(SPELLINGS["sdpa"]).eval()
    model.blocks[0].seen = model.blocks[1].seen = TRIL[:1, :1]
    assert "two tokens or more" in tried(model, X[:, :1]).why
    broken = tried(Model(SPELLINGS["sdpa"]).eval(), torch.full_like(X, torch.nan))
    assert broken.kind == "unknown" and broken.why == "its tokens are not finite"


def test_nothing_is_left_behind() -> None:
    model = encoder(batch_first=True)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
    calls = []
    model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    torch.manual_seed(3)
    x, state = X.clone().requires_grad_(), torch.random.get_rng_state()
    assert tried(model, x, blocks="layers.*").kind == "open"  # dropout is on, and the same in both passes
    assert torch.equal(torch.random.get_rng_state(), state) and not calls and model.training
    assert torch.equal(x, X) and x.grad is None and len(model.layers[0]._forward_hooks) == 1


def test_signatures_differ_where_masks_do() -> None:
    model = encoder(batch_first=True)
    causal, full = torch.full((N, N), -torch.inf).triu(1), torch.zeros(N, N)
    prefix = causal.masked_fill(PLACE < 4, 0.0)
    masks = [None, full, causal, causal.nan_to_num(neginf=-30.0), prefix, TRIL, ~TRIL]
    keys = [signature_of(model, (X,), {} if m is None else {"mask": m}) for m in masks]
    assert len(set(keys)) == len(keys)
    assert signature_of(model, (X, causal), {}) == keys[2] == signature_of(model, (X[:1, :5],), {"mask": causal})
    assert signature_of(model, (X,), {"is_causal": True}) != keys[0] != signature_of(model.eval(), (X,), {})


def test_a_chunk_shows_in_sequences_longer_than_itself() -> None:
    assert not Causality("open", length=6).holds(7) and Causality("open", length=6).holds(6)
    assert Causality("causal", length=6).holds(600)


def test_scans_agree_with_what_tokens_do() -> None:
    for name, (seen, kind) in KINDS.items():
        model = Model(SPELLINGS["added"], seen, -30.0).eval()
        assert ds.scan(model, X).causal is {"open": False, "causal": True}.get(kind), name
    for spelling in AFTER:
        if "exp" not in spelling:
            assert ds.scan(Model(AFTER[spelling]).eval(), X).causal is True, spelling
    assert past_moves(Model(AFTER["tril"]).eval(), X, 5) < 0.2


def test_finite_masks_have_the_chance_of_causal_sinks() -> None:
    scans = [ds.scan(Model(SPELLINGS["added"], value=v).eval(), X) for v in (-30.0, -100.0, -torch.inf)]
    for scan in scans:
        torch.testing.assert_close(scan["sink_chance"], scans[-1]["sink_chance"])
    with pytest.raises(AssertionError):
        torch.testing.assert_close(scans[-1]["sink_chance"], torch.full_like(scans[-1]["sink_chance"], 1 / N))


@over("dtype, expected", [(torch.float64, 0), (torch.float32, 0), (torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_what_rounding_moves_has_not_moved(dtype: torch.dtype, expected: float) -> None:
    trial = SimpleNamespace(tokens=torch.ones(1, dtype=dtype))
    assert Trial.rounding.fget(trial) == max(ROUNDING, expected)  # type: ignore[attr-defined]
    assert Trial.rounding.fget(SimpleNamespace(tokens=None)) == ROUNDING  # type: ignore[attr-defined]


@over("spelling", ["added", "sdpa"])
def test_a_sequence_in_its_batch_is_looked_at_as_alone(spelling: str) -> None:
    model = Model(SPELLINGS[spelling]).eval()
    names = [path for path, _ in model.named_modules() if ds.traces.blocks.template(path) == "blocks.*"]
    for row in range(3):
        among, alone = Trial(model, names, 1, (X,), {}, row=row), Trial(model, names, 1, (X[row : row + 1],), {})
        assert [kind for kind, _ in among.base] == [kind for kind, _ in alone.base] and len(among.base) > len(names)
        for (_, found), (_, true) in zip(among.base, alone.base, strict=True):
            torch.testing.assert_close(found, true)
