"""Language models simple enough to be checked by hand."""

import torch
from torch import nn


class _Memory:
    def __init__(self, tokens):
        self.tokens = tokens


class Counting(nn.Module):
    """p(v) is (1 + how often v came before, the token itself included) / sum: adaptive, causal, with a memory."""

    def __init__(self, vocabulary, memory=0):
        super().__init__()
        self.vocabulary, self.memory = vocabulary, memory

    def counts(self, tokens, before):
        ones = nn.functional.one_hot(torch.cat([before, tokens], 1), self.vocabulary).double()
        return ones.cumsum(1)[:, before.shape[1] :]

    def forward(self, tokens, memory=None, targets=None):
        before = tokens[:, :0] if memory is None else memory.tokens
        counts = 1 + self.counts(tokens, before)
        log_p = (counts / counts.sum(-1, keepdim=True)).log()
        seen = torch.cat([before, tokens], 1)
        later = _Memory(seen[:, max(0, seen.shape[1] - self.memory) :]) if self.memory else None
        return (log_p if targets is None else -log_p.gather(-1, targets[..., None])[..., 0]), later


class Leaking(Counting):
    """The same, but every token counts all of its segment."""

    def counts(self, tokens, before):
        counts = super().counts(tokens, before)
        return counts[:, -1:].expand_as(counts)
