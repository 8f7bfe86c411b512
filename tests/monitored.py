"""A small deep BERT whose tokens collapse while it trains, its task, and hand-written loops: for tests of monitors."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

WORDS, TOKENS, WIDTH = 40, 16, 32
STD = 0.02 * (768 / WIDTH) ** 0.5  # Hugging Face's 0.02 is meant for a width of 768


def bert(depth: int, seed: int = 0, **choices: Any) -> BertForMaskedLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": depth, "num_attention_heads": 2, "intermediate_size": 2 * WIDTH}
    words = {"vocab_size": WORDS, "max_position_embeddings": TOKENS, "initializer_range": STD}
    return BertForMaskedLM(BertConfig(**sizes, **words, **choices))


def batch(seed: int, count: int = 16) -> dict[str, Tensor]:
    """Every word comes twice, one after the other; some are hidden, and the model is to find them."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, WORDS, (count, TOKENS // 2), generator=draw).repeat_interleave(2, 1)
    hidden = torch.rand(ids.shape, generator=draw) < 0.3
    hidden[:, 0] = True
    return {"input_ids": ids.masked_fill(hidden, 1), "labels": ids.masked_fill(~hidden, -100)}


def rows(count: int, seed: int = 1) -> list[dict[str, Tensor]]:
    """The same as single examples, for data loaders."""
    many = batch(seed, count)
    return [{name: values[i] for name, values in many.items()} for i in range(count)]


class Net(nn.Module):
    """Post-norm blocks with dropout, running means of batches, and a checkpoint around every block: all that a look
    could disturb."""

    def __init__(self, depth: int = 3, d: int = 16) -> None:
        super().__init__()
        self.embed, self.bn = nn.Embedding(WORDS, d), nn.BatchNorm1d(d)
        layers = (nn.TransformerEncoderLayer(d, 2, 2 * d, dropout=0.1, batch_first=True) for _ in range(depth))
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(d, WORDS)
        self.checkpoints = False

    def forward(self, ids: Tensor) -> Tensor:
        X = self.bn(self.embed(ids).transpose(1, 2)).transpose(1, 2)
        for layer in self.layers:
            X = torch.utils.checkpoint.checkpoint(layer, X, use_reentrant=False) if self.checkpoints else layer(X)
        return self.head(X)


def net(**choices: Any) -> Net:
    torch.manual_seed(0)
    return Net(**choices)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def words(count: int = 8, seed: int = 0) -> Tensor:
    return torch.randint(0, WORDS, (count, TOKENS), generator=torch.Generator().manual_seed(seed))


def same(a: nn.Module, b: nn.Module) -> bool:
    """Bit-equal weights and buffers."""
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
