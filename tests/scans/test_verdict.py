"""A verdict that cannot be fooled: each quantity alone says something else in these cases."""

import math

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from loops import over
from scans.played import gaussian, played, towards

LOST = ("collapsed", "at the numerical floor")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def alike(B: int, n: int, d: int, t_div: float) -> Tensor:
    """Tokens with about this t_div: a common vector, and differences."""
    return gaussian(B, 1, d) + math.sqrt(t_div) * gaussian(B, n, d)


def common_and_apart(B: int, n: int, d: int) -> tuple[Tensor, Tensor]:
    """A common vector and differences of the same energy: with sqrt(t) of the latter t_div is t / (1 + t)."""
    base, apart = gaussian(B, 1, d), gaussian(B, n, d)
    apart -= apart.mean(1, keepdim=True)
    return base, apart * n**0.5 * base.norm(dim=(1, 2), keepdim=True) / apart.norm(dim=(1, 2), keepdim=True)


# one token hides everything


@over("positions", [[0], [5], [31], [0, 9, 30], [1, 2, 3, 4, 5, 6]])
@over("times", [6.0, 30.0, 1e4])
def test_massive_tokens_do_not_hide_that_the_others_are_alike(positions: list[int], times: float) -> None:
    end = alike(3, 32, 48, 6e-6)
    end[:, positions] = times * gaussian(3, len(positions), 48)
    scan = played(towards(end))
    if times > 10:
        assert float(scan["t_div"][-1]) > 0.5  # which alone would say diverse
    assert scan.verdict.status == "collapsed" and scan.verdict.fix_needed
    assert set(scan.verdict.massive) >= {*positions}
    assert {one.position for one in scan.massive if one.block == scan.depth} == {*positions}
    assert scan.verdict.diversity == pytest.approx(6e-6, rel=0.3)
    assert "times larger than the median token" in scan.verdict.text and "hides the others" in scan.verdict.text


@over("times", [6.0, 300.0])
def test_massive_tokens_over_healthy_ones_are_named_and_change_nothing(times: float) -> None:
    end = gaussian(3, 32, 48)
    end[:, 7] *= times
    scan = played(towards(end))
    assert scan.verdict.status == "diverse" and scan.verdict.massive == (7,)
    found = [one for one in scan.massive if one.block == scan.depth]
    assert [(one.position, one.sequences) for one in found] == [(7, 3)]
    norms = end.norm(dim=-1)
    assert found[0].times == pytest.approx(float((norms[:, 7] / norms.median(-1).values).mean()))


def test_massive_tokens_of_different_sequences_may_be_anywhere() -> None:
    end = alike(4, 24, 32, 1e-5)
    for row, place in enumerate((0, 5, 5, 23)):
        end[row, place] = 100 * gaussian(32)
    scan = played(towards(end))
    assert scan.verdict.status == "collapsed" and scan.verdict.massive == (0, 5, 23)
    assert [(m.position, m.sequences) for m in scan.massive if m.block == scan.depth] == [(0, 1), (5, 2), (23, 1)]


def test_positions_count_tokens_and_padding_is_never_massive() -> None:
    end = gaussian(2, 20, 32)
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[0, :6] = 0  # on the left
    end[0, :6] *= 1000
    end[0, 8] *= 50
    scan = played(towards(end), mask=mask)
    assert [(m.position, m.sequences) for m in scan.massive if m.block == scan.depth] == [(2, 1)]


@over("n, odd", [(32, 1), (64, 4), (128, 8), (16, 2), (9, 1)])
@over("times", [0.3, 1.0, 4.0])
def test_nearly_all_tokens_the_same_is_collapsed(n: int, odd: int, times: float) -> None:
    end = alike(2, n, 40, 1e-7)
    end[:, torch.randperm(n)[:odd]] = times * gaussian(2, odd, 40)
    scan = played(towards(end))
    assert float(scan["t_div"][-1]) > 0.01
    assert scan.verdict.status == "collapsed"
    assert float(scan["same_share"][-1]) == pytest.approx((n - odd) / n)
    assert "hide" in scan.verdict.text


def test_a_net_in_which_31_of_32_tokens_are_the_same() -> None:
    """The case of the issue: the odd one is large, t_div 93 %, t_cos .94."""
    end = gaussian(1, 1, 64).expand(1, 32, 64).clone()
    end[:, 11] = 27 * gaussian(64)
    scan = played(towards(end))
    assert float(scan["t_div"][-1]) > 0.9 and float(scan["t_cos"][-1]) > 0.93
    assert scan.verdict.status in LOST


@over("share", [0.3, 0.5])
def test_some_tokens_the_same_is_not_collapsed(share: float) -> None:
    end = gaussian(2, 32, 40)
    end[:, : int(share * 32)] = end[:, :1]
    assert played(towards(end)).verdict.status in ("diverse", "escalating")


def sinks(family: str, depth: int = 4) -> tuple[nn.Module, Tensor]:
    """Transformers whose embeddings are one vector up to a thousandth, but one position."""
    import transformers as T

    sizes = {"hidden_size": 48, "num_hidden_layers": depth, "num_attention_heads": 4, "intermediate_size": 96}
    ids = torch.randint(2, 60, (3, 24))
    if family == "gpt2":
        config = T.GPT2Config(n_embd=48, n_layer=depth, n_head=4, vocab_size=60, n_positions=24)
        model = T.GPT2Model(config).eval()
        words = model.wte
    elif family == "llama":
        model = T.LlamaModel(T.LlamaConfig(**sizes, vocab_size=60)).eval()
        words = model.embed_tokens
    else:
        model = T.BertModel(T.BertConfig(**sizes, vocab_size=60, max_position_embeddings=24)).eval()
        words = model.embeddings.word_embeddings
    with torch.no_grad():
        words.weight.copy_(torch.randn(48) + 1e-3 * torch.randn_like(words.weight))
        for name, table in model.named_parameters():
            if "wpe" in name or "position_embeddings" in name:
                table.mul_(0.02)
    return model, ids


@over("family", ["gpt2", "llama", "bert"])
@over("place", [0, 7])
@over("times", [30.0, 1000.0])
def test_a_massive_position_in_every_family(family: str, place: int, times: float) -> None:
    model, ids = sinks(family)
    blocks = model.h if family == "gpt2" else model.layers if family == "llama" else model.encoder.layer

    def grow(module: nn.Module, args: object, out: object) -> object:
        tokens = out[0] if isinstance(out, tuple) else out
        large = torch.zeros_like(tokens)
        large[:, place] = times * tokens[:, :1].norm(dim=-1) / 48**0.5 * torch.randn(48)
        return (tokens + large, *out[1:]) if isinstance(out, tuple) else tokens + large

    blocks[-1].register_forward_hook(grow)
    scan = ds.scan(model, ids)
    assert float(scan["t_div"][-1]) > 0.5
    assert scan.verdict.status == "collapsed" and scan.verdict.massive == (place,)


# "no fix needed"


def test_slow_at_the_crossing_and_fast_after_it() -> None:
    slow, fast = [0.0115 * 1.015**-i for i in range(13)], [0.0094 * 2.5**-i for i in range(1, 13)]
    base, apart = common_and_apart(2, 32, 32)
    scan = played([base + math.sqrt(t) * apart for t in (*slow, *fast)])
    assert float(scan["t_div"][-1]) < 1e-6
    assert scan.verdict.status == "collapsed" and scan.verdict.fix_needed


@over("end", [1.5e-7, 1e-5])
def test_a_level_counts_however_slowly_it_was_reached(end: float) -> None:
    depth = 1200
    base, apart = common_and_apart(1, 8, 8)
    pace = (0.02 / end) ** (1 / depth)
    assert pace < 1.02
    scan = played([base + math.sqrt(0.02 * pace**-i) * apart for i in range(depth + 1)], metrics=[])
    assert scan.verdict.status == "collapsed" and scan.verdict.fix_needed
    assert "No fix needed" not in str(scan.verdict)


def test_alike_and_slow_is_escalating() -> None:
    base, apart = common_and_apart(2, 16, 16)
    scan = played([base + math.sqrt(0.012 * 1.01**-i) * apart for i in range(60)])
    assert 1e-3 < float(scan["t_div"][-1]) < 0.01
    assert scan.verdict.status == "escalating" and not scan.verdict.fix_needed


@over("bad, of, status", [(1, 2, "collapsed"), (3, 4, "collapsed"), (1, 4, "escalating"), (3, 8, "escalating")])
def test_sequences_are_counted(bad: int, of: int, status: str) -> None:
    end = gaussian(of, 24, 40)
    rows = torch.randperm(of)[:bad]
    end[rows] = alike(bad, 24, 40, 1e-6)
    scan = played(towards(end))
    assert scan.verdict.status == status and scan.verdict.sequences_collapsed == bad
    assert f"In {bad} of {of} sequences" in scan.verdict.text


@over("offset", [0.0, 3.0])
def test_tokens_on_one_line_are_collapsed(offset: float) -> None:
    end = gaussian(2, 24, 1) * gaussian(2, 1, 40) + offset * gaussian(2, 1, 40)
    scan = played(towards(end + 1e-3 * gaussian(2, 24, 40)))
    assert float(scan["t_div"][-1]) > 0.05
    assert scan.verdict.status == "collapsed" and scan.verdict.rank == pytest.approx(1.0, abs=0.05)
    assert "one line" in scan.verdict.text


@over("points", [2, 3, 4])
def test_a_few_points_are_collapsed(points: int) -> None:
    end = gaussian(2, points, 40)[:, torch.randint(0, points, (32,))] + 1e-3 * gaussian(2, 32, 40)
    scan = played(towards(end))
    assert float(scan["t_div"][-1]) > 0.2 and scan.verdict.status == "collapsed"


def test_words_that_enter_equal_are_no_collapse() -> None:
    """Two words and no positions: the tokens enter in two points, and a model that keeps them apart is healthy."""
    words = gaussian(1, 2, 40)[:, torch.arange(32) % 2].expand(2, 32, 40)
    states = [words * (1 + 0.01 * i) + 0.1 * i * gaussian(2, 32, 40) for i in range(8)]
    assert played(states).verdict.status == "diverse"


def test_complete_de_escalation_after_pure_attention_leaves_a_line() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(32, 32, bias=False) for _ in range(3))
            self.norm = nn.LayerNorm(32)

        def forward(self, x: Tensor) -> Tensor:
            P = (self.q(x) @ self.k(x).mT / 32**0.5).softmax(-1)
            return self.norm(P @ self.v(x))

    model = nn.Sequential(*[Attention() for _ in range(14)])
    X = torch.randn(3, 24, 32)
    with ds.fix_(model, ds.remedies.DeEscalate(tau=1.0), at="block_out"):
        scan = ds.scan(model, X)
    assert float(scan["t_div"][-1]) > 0.99
    assert scan.verdict.status == "collapsed" and scan.verdict.rank < 1.1


@over("size", [30.0, 1e3, 1e5])
@over("channels", [1, 2])
def test_a_growing_channel_that_all_share_is_no_collapse(size: float, channels: int) -> None:
    end = gaussian(2, 32, 40)
    end[..., :channels] += size
    scan = played([end - (1 - i / 8) * size * (torch.arange(40) < channels) for i in range(9)])
    assert float(scan["t_div"][-1]) < 0.05 and float(scan["difference_rank"][-1]) > 15
    assert scan.verdict.status in ("diverse", "escalating") and not scan.verdict.fix_needed
    assert scan.verdict.diversity > 0.5 or "offset" in scan.verdict.text
    end[..., channels:] = alike(2, 32, 40 - channels, 1e-6)
    assert played(towards(end)).verdict.status == "collapsed"


def test_an_offset_in_any_direction_is_named() -> None:
    tokens, offset = gaussian(2, 32, 40), 20 * gaussian(40)
    verdict = played([tokens + i / 8 * offset for i in range(9)]).verdict
    assert verdict.t_div < 0.01
    assert verdict.status == "escalating" and not verdict.fix_needed
    assert "common offset" in verdict.text


# who is to blame, what is vanished


def test_nobody_is_blamed_where_steps_cannot_be_followed() -> None:
    def unseen_sum(x: Tensor, y: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return x + y

    class Hidden(nn.TransformerEncoderLayer):
        def forward(self, x: Tensor, *args: object, **options: object) -> Tensor:
            y = self.norm1(unseen_sum(x, self.self_attn(x, x, x, need_weights=False)[0]))
            return self.norm2(unseen_sum(y, self.linear2(self.linear1(y).relu())))

    model = nn.Sequential(*[Hidden(32, 4, 64, batch_first=True) for _ in range(40)]).eval()
    scan = ds.scan(model, torch.randn(2, 16, 32))
    assert not scan.step_names and scan.verdict.status == "collapsed"
    assert scan.verdict.shares == {} and "Driven" not in scan.verdict.text


def test_a_vanished_vector_is_a_status() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(32, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x).mean(1))

    model = Pooled().eval()
    with ds.fix_(model, ds.remedies.DeEscalate(tau=1.0), at="block_out"):
        scan = ds.scan(model, torch.randn(4, 9, 32))
    assert scan.verdict.status == "vanished" and scan.verdict.fix_needed and "head" in scan.verdict.text
    assert [*scan.vanished] == ["head"] and "No fix needed" not in str(scan)


def test_dropout_does_not_hide_what_massive_tokens_hide() -> None:
    class Noisy(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model, self.drop = model, nn.Dropout(0.2)

        def forward(self, x: Tensor) -> Tensor:
            return self.model(self.drop(x))

    from scans.played import Played

    end = alike(2, 24, 32, 1e-6)
    end[:, 3] = 200 * gaussian(32)
    states = towards(end)
    states[0] = end  # dropout alone makes the input differ
    model = Noisy(Played(states)).train()
    scan = ds.scan(model, states[0], blocks="model.blocks.*", attention=False)
    assert scan.without_dropout is not None
    assert scan.verdict.status == "collapsed" and scan.verdict.massive == (3,)


def test_the_record_keeps_sequences_massive_tokens_and_the_verdict(tmp_path) -> None:
    end = alike(3, 24, 32, 1e-6)
    end[:, 0] = 100 * gaussian(32)
    scan = played(towards(end))
    scan.save(tmp_path / "scan.json")
    again = ds.Scan.load(tmp_path / "scan.json")
    assert again.verdict == scan.verdict and again.massive == scan.massive
    assert again.sequences["t_div_rest"].shape == (scan.depth + 1, 3)
    torch.testing.assert_close(again.sequences["t_div"].mean(-1), scan["t_div"])


def test_batches_are_sequences_of_one_record() -> None:
    from scans.played import Played

    lost, kept = alike(1, 24, 32, 1e-6), gaussian(1, 24, 32)
    model = Played([torch.zeros(1, 24, 32, dtype=torch.float64)] * 3)
    scan = ds.scan(model, [lost, kept, kept], blocks="blocks.*", attention=False)
    assert scan.sequences["t_div_core"].shape == (3, 3)
    assert scan.verdict.status == "escalating" and scan.verdict.sequences_collapsed == 1


# pooled, short, noisy


@over(
    "same_answer, curve, status",
    [
        (False, (3.0, 3.0, 2.5, 0.8, 0.05, 0.005), "escalating"),
        (True, (3.0, 3.0, 2.5, 0.8, 0.05, 0.005), "collapsed"),
        (False, (3.0, 0.8, 0.2, 0.06, 0.02, 0.005), "collapsed"),
        (False, (3.0, 3.0, 2.5, 0.8, 0.05, 1e-5), "collapsed"),
    ],
)
def test_tokens_that_take_over_the_answer_of_their_sequence(same_answer: bool, curve: tuple, status: str) -> None:
    """As after mean pooling: alike within sequences, in the last blocks alone, and apart between sequences."""
    base, apart = common_and_apart(8, 24, 32)
    base = base[:1].expand_as(base) if same_answer else base
    scan = played([base + math.sqrt(t) * apart for t in curve])
    assert scan.verdict.status == status and scan.verdict.fix_needed == (status == "collapsed")
    means = base[:, 0] / base[:, 0].norm(dim=-1, keepdim=True)
    assert float(scan.sequences["sequences_apart"][-1, 0]) == pytest.approx(1 - float(means.mean(0).square().sum()))
    assert ("judge it by its score" in scan.verdict.advice) == (status == "escalating")


def test_batches_together_tell_how_far_sequences_are_apart() -> None:
    from scans.played import Played

    model = Played([torch.zeros(1, 9, 32, dtype=torch.float64)] * 3)
    tokens = gaussian(6, 1, 32) + 0.3 * gaussian(6, 9, 32)
    options = {"blocks": "blocks.*", "attention": False}
    one, many = ds.scan(model, tokens, **options), ds.scan(model, list(tokens.split(2)), **options)
    torch.testing.assert_close(one.sequences["sequences_apart"], many.sequences["sequences_apart"])


@over("short", [2, 3])
def test_short_sequences_are_no_line(short: int) -> None:
    """Two tokens always lie on one, whatever the mean length of the batch is."""
    tokens, mask = gaussian(4, 20, 48), torch.ones(4, 20, dtype=torch.bool)
    mask[:2, short:] = False
    scan = played([tokens, 1.1 * tokens, 1.2 * tokens], mask=mask)
    assert scan.verdict.status == "diverse" and scan.sequences["tokens"][0].tolist() == [short, short, 20, 20]


def test_unrelated_tokens_of_any_lengths_blame_nobody() -> None:
    tokens, mask = gaussian(4, 40, 48), torch.ones(4, 40, dtype=torch.bool)
    mask[:2, 4:] = False
    assert played([tokens, 1.1 * tokens], mask=mask).verdict.shares == {}


def test_advice_does_not_say_that_nothing_is_to_be_done() -> None:
    """A forecast follows all tokens, and the massive one hides that the others are the same."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True), 4)
    tokens = gaussian(3, 1, 32).expand(3, 24, 32).float() * (1 + 1e-3 * torch.randn(3, 24, 32))
    tokens[:, 0] = 200 * torch.randn(3, 32)
    verdict = ds.scan(model.eval(), tokens).verdict
    assert verdict.fix_needed and ": ;" not in verdict.advice and "DeEscalate" in verdict.advice


@over("points", [2, 3, 4])
def test_points_with_some_noise_are_points(points: int) -> None:
    end = gaussian(3, points, 64)[:, torch.arange(64) % points] + 0.1 * gaussian(3, 64, 64)
    assert played(towards(end)).verdict.status == "collapsed"


@over("noise", [0.05, 0.1])
def test_a_line_with_noise_is_named(noise: float) -> None:
    end = gaussian(3, 64, 1) * gaussian(3, 1, 64) + noise**0.5 * gaussian(3, 64, 64)
    verdict = played(towards(end)).verdict
    assert verdict.status == "escalating" and "directions" in verdict.text


@over("n", [3, 5, 6, 10, 40])
@over("scale", [0.2, 1.0])
def test_an_offset_is_one_at_any_length_and_scale(n: int, scale: float) -> None:
    """Tokens that enter with the offset and shrink with it, and tokens that get it on the way."""
    tokens, offset = gaussian(2, n, 40), 20 * gaussian(40)
    entered = played([scale ** (i / 8) * (tokens + offset) for i in range(9)]).verdict
    added = played([tokens + i / 8 * offset for i in range(9)]).verdict
    for verdict in (entered, added):
        assert (
            verdict.status == "escalating" and not verdict.fix_needed and "a bias of the next layer" in verdict.advice
        )


def test_an_offset_that_grows_on_needs_a_fix() -> None:
    base, apart = common_and_apart(3, 32, 48)
    verdict = played([3.0**i * (base + 0.5**i * apart) for i in range(7)]).verdict
    assert verdict.status == "escalating" and verdict.fix_needed and "a quarter more blocks" in verdict.advice


@over("n", [4, 5, 8, 12, 16])
@over("times", [3.0, 4.5])
def test_a_larger_token_makes_no_line_and_no_points(n: int, times: float) -> None:
    end = gaussian(3, 1, 48) + 0.25 * gaussian(3, n, 48)
    end[:, 0] = times * gaussian(3, 48)
    verdict = played(towards(end)).verdict
    assert verdict.status in ("diverse", "escalating") and verdict.sequences_collapsed == 0
    assert "hide that" not in verdict.text  # no share of equal tokens, where there are none


def test_the_floor_tells_of_whom_it_speaks() -> None:
    end = gaussian(4, 24, 32)
    end[:2] = gaussian(2, 1, 32)
    end[:2, 3] = 50 * gaussian(2, 32)
    verdict = played(towards(end)).verdict
    assert verdict.status == "at the numerical floor"
    assert verdict.text.startswith("In 2 of 4 sequences all tokens (outliers and massive ones apart) are the same")


def test_at_least_one_more_block_is_foreseen() -> None:
    base, apart = common_and_apart(2, 32, 32)
    verdict = played([base + math.sqrt(t) * apart for t in (3.0, 0.3, 0.03, 0.0102)]).verdict
    assert verdict.status == "escalating" and " 0 more blocks" not in verdict.text
