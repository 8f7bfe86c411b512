"""Verdicts where one token, or nearly all of them, would hide what the others do."""

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from loops import crossed, over
from scans.played import alike, gaussian, played, towards

LOST = ("collapsed", "at the numerical floor")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


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


@crossed("family, place, times", ["gpt2", "llama", "bert"], [0, 7], [30.0, 1000.0])
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
