"""What watching alone costs, without a metric: 48 blocks of width 256, batch 8, 64 tokens, against the plain forward.

python benchmarks/watching.py
"""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import depthscope as ds
from depthscope.traces.blocks import candidates
from depthscope.traces.recorder import Recorder
from depthscope.traces.watcher import Watcher

DEPTH, D, HEADS, B, N = 48, 256, 8, 8, 64
LIMIT = 1.15
ROUNDS = 11


def models() -> dict[str, tuple[nn.Module, Any]]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, HEADS, 4 * D, dropout=0.0, batch_first=True)
    X, ids = torch.randn(B, N, D), torch.randint(0, 99, (B, N))
    found: dict[str, tuple[nn.Module, Any]] = {
        "nn.TransformerEncoder": (nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False).eval(), X),
        "ds.models.classic": (ds.models.classic(DEPTH, D, HEADS).eval(), X),
    }
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        return found
    sizes = {"hidden_size": D, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "intermediate_size": 4 * D}
    return found | {"BERT": (BertModel(BertConfig(**sizes, vocab_size=99)).eval(), ids)}


def watched(model: nn.Module, inputs: Any) -> None:
    nothing = SimpleNamespace(followed=True)
    recorder = Recorder(model, candidates(model, None), lambda *_: nothing, lambda *_: None)
    with torch.no_grad(), Watcher(recorder):
        model(inputs)


def plain(model: nn.Module, inputs: Any) -> None:
    with torch.no_grad():
        model(inputs)


def seconds(call: Callable[..., None], *args: Any) -> float:
    start = time.perf_counter()
    call(*args)
    return time.perf_counter() - start


def main() -> None:
    torch.backends.mha.set_fastpath_enabled(False)  # the watcher sees what the fast path hides
    for name, (model, inputs) in models().items():
        for call in (plain, watched):
            call(model, inputs)
        rounds = [(seconds(plain, model, inputs), seconds(watched, model, inputs)) for _ in range(ROUNDS)]
        base, cost = (min(column) for column in zip(*rounds, strict=True))
        print(f"{name:24} plain {1e3 * base:6.0f} ms, watched {cost / base:.3f} (limit {LIMIT})")


if __name__ == "__main__":
    main()
