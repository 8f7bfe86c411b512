"""The walk over modules against torch's own."""

import torch
from torch import nn

from depthscope.traces.log import Call, OpenCalls, State
from depthscope.traces.modules import modules_in
from loops import over


class Shared(nn.Module):
    """One module under two names, one that is not there, lists in lists."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = nn.ModuleList(nn.ModuleList(nn.Linear(2, 2) for _ in range(2)) for _ in range(3))
        self.again = self.lists[1]
        self.missing: nn.Module | None = None
        self.register_module("nothing", None)
        self.words = nn.ModuleDict({"a": nn.ReLU(), "b": self.lists[0][1]})
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


@over("model", [Shared(), nn.Linear(2, 2), nn.TransformerEncoderLayer(8, 2, 16), Shared().scripted])
def test_the_walk_is_that_of_torch(model: nn.Module) -> None:
    assert [path for path in modules_in(model)] == [path for path, _ in model.named_modules()]
    if not isinstance(model, torch.jit.ScriptModule):  # whose parts are wrapped anew at every look
        assert all(found is true for found, true in zip(modules_in(model).values(), model.modules(), strict=True))


def test_open_calls_know_the_block_around_them_after_an_inner_module_raised() -> None:
    calls = OpenCalls()
    tokens = State("layers.0", 1, (1, 2, 3), "float32")
    assert (calls.path, calls.source, calls.between) == ("", None, True)
    calls.push(Call("", 0), candidate=False)
    assert calls.between
    block = Call("layers.0", 1, source=tokens)
    calls.push(block, candidate=True)
    calls.push(Call("layers.0.attn", 2), candidate=False)  # raises, so that nobody tells of its end
    assert (calls.path, calls.source, calls.between) == ("layers.0.attn", tokens, False)
    assert calls.pop("layers.0") is block
    assert (calls.path, calls.source, calls.between) == ("", None, True)
