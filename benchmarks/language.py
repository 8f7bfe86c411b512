"""Transformer-XL against the published algorithm read plainly: OMP_NUM_THREADS=1 python benchmarks/language.py"""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _ratio import line, ratio
from torch import Tensor, nn

import depthscope as ds

ROUNDS = 20
DEPTH, D, H, Q, SEGMENT, MEMORY, BATCH, VOCABULARY = 12, 256, 8, 1024, 150, 150, 4, 1000
SIXTY = {"depth": 60, "d": 128, "h": 4, "q": 256, "vocabulary": VOCABULARY, "memory": MEMORY}


class PlainBlock(nn.Module):
    """Dai et al. 2019, section 3.3, line by line, post-norm; no two steps are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.r, self.o = (nn.Linear(D, D, bias=False) for _ in range(5))
        self.content_bias, self.position_bias = (nn.Parameter(torch.zeros(H, D // H)) for _ in range(2))
        self.first, self.second = nn.Linear(D, Q, bias=False), nn.Linear(Q, D, bias=False)
        self.norm_1, self.norm_2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, X: Tensor, memory: Tensor | None, R: Tensor, later: Tensor) -> Tensor:
        whole = X if memory is None else torch.cat([memory, X], 1)
        (B, n), T = X.shape[:2], whole.shape[1]
        q = self.q(X).view(B, n, H, -1).transpose(1, 2)
        k, v = (W(whole).view(B, T, H, -1).transpose(1, 2) for W in (self.k, self.v))
        r = self.r(R).view(T, H, -1).transpose(0, 1)
        content = (q + self.content_bias.unsqueeze(1)) @ k.transpose(-1, -2)
        position = self.shifted((q + self.position_bias.unsqueeze(1)) @ r.transpose(-1, -2))
        scores = (content + position) * (D // H) ** -0.5
        P = scores.masked_fill(later, -torch.inf).softmax(-1)
        X = self.norm_1(X + self.o((P @ v).transpose(1, 2).reshape(B, n, D)))
        return self.norm_2(X + self.second(F.relu(self.first(X))))

    @staticmethod
    def shifted(S: Tensor) -> Tensor:
        """Row i moved left by n-1-i: a zero column in front, and the numbers read off in rows of another length."""
        B, h, n, T = S.shape
        return F.pad(S, (1, 0)).view(B, h, T + 1, n)[:, :, 1:].reshape(B, h, n, T)


class Plain(nn.Module):
    """The blocks between a tied embedding and softmax, remembering the input of every block."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(VOCABULARY, D) * D**-0.5)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))
        self.blocks = nn.ModuleList(PlainBlock() for _ in range(DEPTH))

    def forward(
        self, tokens: Tensor, memory: list[Tensor] | None = None, targets: Any = None
    ) -> tuple[Tensor, list[Tensor]]:
        X = F.embedding(tokens, self.table) * D**0.5
        n, T = tokens.shape[1], tokens.shape[1] + (0 if memory is None else memory[0].shape[1])
        later = torch.ones(n, T, dtype=torch.bool).triu(T - n + 1)
        angle = torch.arange(T - 1, -1, -1.0).unsqueeze(1) * 10000 ** (-torch.arange(0, D, 2) / D)
        R, left = torch.cat([angle.sin(), angle.cos()], 1), []
        for index, block in enumerate(self.blocks):
            before = None if memory is None else memory[index]
            left.append((X if before is None else torch.cat([before, X], 1))[:, -MEMORY:].detach())
            X = block(X, before, R, later)
        logits = F.linear(X, self.table, self.bias).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), reduction="none"), left

    @torch.no_grad()
    def like_(self, model: nn.Module) -> "Plain":
        """With the weights of ours."""
        self.table.copy_(model.vocabulary.tables[0])
        for own, other in zip(self.blocks, model.transformer, strict=True):
            a, f, w = other.attention, other.ffn, other.wiring
            theirs = (a.u, a.v, *(x.weight for x in (a.W_q, a.W_k, a.W, a.W_kR, a.W_O, f.W_1, f.W_2)))
            layers = (own.q, own.k, own.v, own.r, own.o, own.first, own.second)
            mine = (own.content_bias, own.position_bias, *(x.weight for x in layers))
            for x, y in zip(mine, theirs, strict=True):
                x.copy_(y)
            own.norm_1.load_state_dict(w.norm_1.state_dict())
            own.norm_2.load_state_dict(w.norm_2.state_dict())
        return self


def training(model: nn.Module) -> Callable[[Tensor], float]:
    """One step a call, segment after segment, memory carried on. Gradients stay, to be filled anew."""
    optimizer, memory = torch.optim.AdamW(model.parameters(), 1e-4), None

    def step(words: Tensor) -> float:
        nonlocal memory
        optimizer.zero_grad(set_to_none=False)
        loss, memory = model(words[:, :-1], memory, targets=words[:, 1:])
        loss.mean().backward()
        optimizer.step()
        return float(loss.detach().mean())

    return step


def against_the_plain_reading() -> None:
    """Tokens per second in training, ours over the plain reading's; from equal weights the losses must be equal."""
    torch.manual_seed(0)
    model = ds.models.transformer_xl(vocabulary=VOCABULARY, memory=MEMORY, depth=DEPTH, d=D, h=H, q=Q)
    for block in model.transformer:
        nn.init.normal_(block.attention.u, 0, 0.1), nn.init.normal_(block.attention.v, 0, 0.1)
    plain, words = Plain().like_(model), torch.randint(0, VOCABULARY, (BATCH, SEGMENT + 1))
    theirs, ours = (partial(training(x), words) for x in (plain, model))
    for _ in range(3):
        a, b = theirs(), ours()
        assert abs(a - b) < 1e-3, f"both must train alike from the same weights; got losses {a} and {b}"
    times, seconds = ratio(theirs, ours, ROUNDS)
    speed = f"ours {BATCH * SEGMENT / seconds:.0f} tokens/s"
    line(f"Transformer-XL, {DEPTH} blocks: training over the plain reading", times, "least 1.2", speed)


def highest() -> float:
    """The most memory that this process has held, in MB; Linux says it."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in status if row.startswith("VmHWM")) / 1024


def peak(checkpointing: bool) -> float:
    """What forward and backward passes with memory need in MB, above the model, its gradients and its optimizer.

    The first step, of one word, makes what stays: gradients and the optimizer's moments. The others are measured.
    """
    torch.manual_seed(0)
    model = ds.models.transformer_xl(**SIXTY, checkpointing=checkpointing)
    step = training(model)
    step(torch.randint(0, VOCABULARY, (BATCH, 2)))
    base, words = highest(), torch.randint(0, VOCABULARY, (BATCH, SEGMENT + 1))
    for _ in range(2):  # the second has a full memory
        step(words)
    return highest() - base


def of_checkpointing() -> None:
    """Peak memory of training 60 blocks, with activation checkpointing over without, each in a process of its own."""
    both = [subprocess.check_output([sys.executable, __file__, name], text=True) for name in ("none", "checkpointing")]
    none, some = map(float, both)
    more = f"{some:.0f} MB instead of {none:.0f}"
    line("Transformer-XL, 60 blocks: peak memory, checkpointing / none", some / none, "most 0.4", more)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(peak(sys.argv[1] == "checkpointing"))
    else:
        against_the_plain_reading()
        of_checkpointing()
