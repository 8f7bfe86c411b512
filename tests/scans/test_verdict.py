"""A verdict that cannot be fooled: each quantity alone says something else in these cases."""

import math

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from loops import over
from scans.played import alike, common_and_apart, gaussian, played, towards

LOST = ("collapsed", "at the numerical floor")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# "no fix needed"


def test_slow_at_the_crossing_and_fast_after_it() -> None:
    slow, fast = [0.0115 * 1.015**-i for i in range(13)], [0.0094 * 2.5**-i for i in range(1, 13)]
    base, apart = common_and_apart(2, 32, 32)
    scan = played([base + math.sqrt(t) * apart for t in (*slow, *fast)])
    assert float(scan["t_div"][-1]) < 1e-6
    assert scan.verdict.status == "collapsed" and scan.verdict.fix_needed


@over("end", [1.5e-7], long=[1e-5])
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


@over("pace, status", [(1.025, "collapsed"), (1.015, "escalating")])
def test_two_percent_a_block_is_the_pace_of_collapse(pace: float, status: str) -> None:
    base, apart = common_and_apart(2, 16, 16)
    scan = played([base + math.sqrt(0.012 * pace**-i) * apart for i in range(60)])
    assert 1e-3 < float(scan["t_div"][-1]) < 0.01
    assert scan.verdict.status == status and scan.verdict.fix_needed == (status == "collapsed")
