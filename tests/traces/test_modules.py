"""The walk over modules against torch's own."""

import torch
from torch import nn

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
