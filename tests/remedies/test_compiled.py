"""Remedies at block_out in compiled models: one graph, the numbers and gradients of eager code, and undone."""

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import UsageError
from loops import over

R = ds.remedies
X = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def gradients(model: nn.Module, call: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    y = call(x)
    y.square().sum().backward()
    return y.detach(), [p.grad.clone() for p in model.parameters()]


@over("choices", [{}], long=[{"causal": True}])
def test_a_remedy_is_one_graph_with_its_model(choices: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model = ds.models.classic(2, 32, 4, **choices)
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(len(graph.graph.nodes))
        return graph

    compiled = torch.compile(model, backend=backend)
    plain = compiled(X)
    with ds.fix_(model, R.DeEscalate(0.5, learnable=True)):
        expected, slopes = gradients(model, model, X)
    with ds.fix_(compiled, R.DeEscalate(0.5, learnable=True)) as fix:
        before = len(graphs)
        compiled(X)  # the first pass of a way of calling is looked at
        assert len(graphs) == before
        for _ in range(2):
            found, own = gradients(model, compiled, X)
        assert len(graphs) == before + 1 and fix.fired == 6
        assert graphs[-1] > graphs[0]  # the remedy is in it
        torch.testing.assert_close(found, expected)
        for a, b in zip(own, slopes, strict=True):
            torch.testing.assert_close(a, b)
        assert ds.scan(compiled, X).remedies  # and is seen where somebody watches
    assert torch.equal(compiled(X), plain) and "forward" not in vars(model)


def test_padding_that_comes_later_is_honoured() -> None:
    """A way of calling was seen without padding; the graph must not be used once there is some."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([layer, nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)])

        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
            whole = torch.compiler.is_compiling() or bool(attention_mask.all())
            for block in self.layers:
                x = block(x, src_key_padding_mask=None if whole else attention_mask == 0)
            return x

    model = Encoder()
    compiled = torch.compile(model, backend="eager")
    mask = torch.ones(2, 9)
    padded = mask.clone()
    padded[:, 6:] = 0
    with ds.fix_(model, R.DeEscalate(0.5)):
        expected = model(X, attention_mask=padded)
    with ds.fix_(compiled, R.DeEscalate(0.5)):
        for _ in range(2):
            compiled(X, attention_mask=mask)
        found = compiled(X, attention_mask=padded)
    torch.testing.assert_close(found[:, :6], expected[:, :6])


def test_copies_of_a_model_that_is_one_graph_with_its_remedy() -> None:
    """The graph stays with the first; a copy computes by itself, with its own weights."""
    torch.manual_seed(0)
    model = ds.models.classic(2, 32, 4)
    compiled = torch.compile(model, backend="eager")
    fix = ds.fix_(compiled, R.DeEscalate(0.5, learnable=True))
    for _ in range(3):
        before = compiled(X)
    assert fix.graph is not None and "forward" in vars(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(X), before)
        assert "forward" not in vars(twin) and ds.fixes(twin)[0].fired == 2
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.mul_(0.5)
        assert not torch.allclose(twin(X), before, atol=1e-3)
        ds.fixes(twin)[0].undo()
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in twin.modules())
    torch.testing.assert_close(compiled(X), before)
    around = copy.deepcopy(compiled)  # its handle does not know what is compiled around it
    with pytest.raises(UsageError, match="was compiled after fix_, or around it"):
        around(X)
    fix.undo()
    assert "forward" not in vars(model)
