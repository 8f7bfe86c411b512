"""A loader of many batches: the scan of all sequences, nothing of a batch kept but its numbers, errors over batches."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.scans import sequences
from depthscope.traces.log import Log


@pytest.fixture
def model() -> torch.nn.Module:
    return ds.models.classic(3, 16, 2, q=32).eval()


def drawn(count: int, rows: int = 2) -> list[Tensor]:
    return list(torch.randn(count, rows, 6, 16, generator=torch.Generator().manual_seed(3)))


def test_batches_add_up_to_one_batch_of_all(model: torch.nn.Module) -> None:
    parts = [*drawn(3), drawn(1, rows=5)[0]]
    one, many = ds.scan(model, torch.cat(parts)), ds.scan(model, parts)
    assert (one.batches, many.batches, many.samples) == (1, 4, 11)
    for name in one.keys():
        torch.testing.assert_close(many[name], one[name], rtol=1e-9, atol=1e-12, msg=name)
    for name, spread in one.spread.items():
        torch.testing.assert_close(many.spread[name], spread, rtol=1e-7, atol=1e-12, msg=name)
    for name, curves in one.sequences.items():
        torch.testing.assert_close(many.sequences[name], curves, rtol=1e-9, atol=1e-12, msg=name)
    assert many.verdict.status == one.verdict.status and many.massive == one.massive


def test_errors_are_those_of_the_means_of_batches(model: torch.nn.Module, tmp_path) -> None:
    parts = drawn(5)
    many = ds.scan(model, iter(parts))
    single = [ds.scan(model, part) for part in parts]
    assert not single[0].errors and set(many.errors) == set(many.keys())
    for name in ("t_sim", "token_norm", "xi_1", "delta", "attention_entropy"):
        means = np.stack([one[name].numpy() for one in single])
        np.testing.assert_allclose(many.errors[name], means.std(0, ddof=1) / np.sqrt(5), rtol=1e-6, atol=1e-12)
    again = ds.Scan.load(many.save(tmp_path / "scan.json"))
    assert again.batches == 5 and torch.equal(again.errors["t_sim"], many.errors["t_sim"])
    assert "means over 5 batches; largest standard error over blocks: t_sim" in " ".join(str(many).split())
    assert "standard error" not in str(single[0])


def test_a_loader_is_streamed(model: torch.nn.Module) -> None:
    alive = []

    def loader() -> Iterator[Tensor]:
        for batch in drawn(3):
            gc.collect()
            alive.append(sum(type(one) is Log for one in gc.get_objects()))
            yield batch

    assert ds.scan(model, loader()).batches == 3
    assert max(alive) <= 1, "logs of earlier batches are kept"


def test_curves_of_sequences_are_bounded_and_means_are_not_cut(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = drawn(9)
    whole = ds.scan(model, parts)
    monkeypatch.setattr(sequences, "MOST", 8)
    many = ds.scan(model, parts)
    assert many.samples == 18 and many.sequences["t_div"].shape == (4, 6)  # batches 0, 4 and 8
    kept = torch.cat([whole.sequences["t_div"][:, 2 * i : 2 * i + 2] for i in (0, 4, 8)], dim=1)
    assert torch.equal(many.sequences["t_div"], kept) and torch.equal(many["t_div"], whole["t_div"])
    assert any("6 of 18 sequences (every 4th batch)" in note for note in many.notes)
    torch.testing.assert_close(many.sequences["sequences_apart"][:, 0], whole.sequences["sequences_apart"][:, 0])


def test_batches_of_gradients_count_once_each(model: torch.nn.Module) -> None:
    parts = [*drawn(1), *drawn(1, rows=6)]
    single = [ds.scan(model, part, gradients=lambda out: out.square().mean()) for part in parts]
    many = ds.scan(model, parts, gradients=lambda out: out.square().mean())
    mean = (single[0]["gradient_norm"] + single[1]["gradient_norm"]) / 2
    torch.testing.assert_close(many["gradient_norm"], mean, rtol=1e-12, atol=0)


def test_an_empty_loader_and_a_lost_process_group_are_told(model: torch.nn.Module) -> None:
    with pytest.raises(UsageError, match=r"scan: inputs must hold at least one batch; got an empty iterable"):
        ds.scan(model, iter(()))
    with pytest.raises(UsageError, match=r"across: the processes must know each other; .* Start them with torchrun"):
        ds.scan(model, drawn(2), across="world")


class Towers(nn.Module):
    """Texts, and images where there are any: with one stream alone it has another name."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.text = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.vision = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor, image: Tensor | None = None) -> Tensor:
        return self.text(x) if image is None else self.text(x) + self.vision(image).mean(1, keepdim=True)


def test_batches_of_other_streams_are_refused_not_forgotten() -> None:
    x, image = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    model, texts, both = Towers().eval(), {"x": x}, {"x": x, "image": image}
    with pytest.raises(UsageError, match="same streams"):
        ds.scan(model, [texts, texts, both, both])
    assert ds.scan(model, [texts, texts]).batches == 2
