"""Models that chance writes: random blocks in random spellings, beside a plain formula that says what they compute.

A model's forward and its truth share the weights alone. The truth is the sum that the block is, in one spelling, and
gives all states; the forward says the same in the words that people use: modules or functions for attention, lists,
lists of pairs or attributes, the sum inside a module or outside, in place or not.
"""

import contextlib
import math
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from tools.fuzz.case import kind
from torch import Tensor, nn

import depthscope as ds

D, H, N = 16, 2, 9
WIRINGS = ("post", "pre", "sandwich", "branch", "bare", "parallel")
ATTENTIONS = ("module", "fused", "written", "einsum", "baddbmm")
SUMS = ("x + y", "y + x", "torch.add", "x.add", "in place", "inside")
HOLDERS = ("list", "attributes", "sequential", "pairs", "dict")


class Attention(nn.Module):
    """Self-attention of H heads in one of the spellings; truth() is the formula."""

    def __init__(self, spelling: str, causal: bool) -> None:
        super().__init__()
        self.spelling, self.causal = spelling, causal
        self.inner = nn.MultiheadAttention(D, H, batch_first=True) if spelling == "module" else None
        if self.inner is None:
            self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def weights(self) -> tuple[Tensor, Tensor, nn.Linear]:
        if self.inner is None:
            return self.qkv.weight, self.qkv.bias, self.out
        return self.inner.in_proj_weight, self.inner.in_proj_bias, self.inner.out_proj

    def split(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        W, b, _ = self.weights()
        q, k, v = F.linear(X, W, b).view(*X.shape[:2], 3, H, D // H).permute(2, 0, 3, 1, 4)
        return q, k, v

    def truth(self, X: Tensor) -> Tensor:
        q, k, v = self.split(X)
        scores = q @ k.mT / math.sqrt(D // H)
        if self.causal:
            scores = scores.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -math.inf)
        return self.weights()[2]((scores.softmax(-1) @ v).transpose(1, 2).reshape(X.shape))

    def forward(self, X: Tensor) -> Tensor:
        later = torch.ones(X.shape[1], X.shape[1], dtype=torch.bool).triu(1) if self.causal else None
        if self.inner is not None:
            return self.inner(X, X, X, attn_mask=later, need_weights=False)[0]
        q, k, v = self.split(X)
        if self.spelling == "fused":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        elif self.spelling == "einsum":
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * (D // H) ** -0.5
            mixed = torch.einsum("bhij,bhjd->bhid", F.softmax(self.hidden(scores, later), dim=-1), v)
        elif self.spelling == "baddbmm":
            flat = [one.reshape(-1, X.shape[1], D // H) for one in (q, k, v)]
            bias = torch.zeros(1, 1, 1) if later is None else torch.zeros(later.shape).masked_fill(later, -1e9)[None]
            P = torch.baddbmm(bias, flat[0], flat[1].mT, alpha=(D // H) ** -0.5).softmax(-1)
            mixed = torch.bmm(P, flat[2]).view(q.shape)
        else:
            scores = torch.matmul(q / math.sqrt(D // H), k.transpose(-1, -2))
            mixed = torch.matmul(torch.softmax(self.hidden(scores, later), -1), v)
        return self.out(mixed.transpose(1, 2).contiguous().flatten(2))

    @staticmethod
    def hidden(scores: Tensor, later: Tensor | None) -> Tensor:
        return scores if later is None else scores.masked_fill(later, torch.finfo(scores.dtype).min)


class Inside(nn.Module):
    """A branch that adds itself to what it is given."""

    def __init__(self, before: nn.Module, branch: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before, self.branch, self.after = before, branch, after

    def forward(self, X: Tensor) -> Tensor:
        return X + self.after(self.branch(self.before(X)))


class Block(nn.Module):
    def __init__(
        self, wiring: str, attention: str, how: str, norm: type[nn.Module], act: nn.Module, causal: bool
    ) -> None:
        super().__init__()
        self.wiring, self.how = wiring, how
        self.attn = Attention(attention, causal)
        self.ffn = nn.Sequential(nn.Linear(D, 2 * D), act, nn.Linear(2 * D, D))
        for name in ("a", "b", "c", "e"):
            used = {"post": "ab", "pre": "ab", "sandwich": "abce", "branch": "ab", "bare": "", "parallel": "a"}[wiring]
            setattr(self, name, norm(D) if name in used else nn.Identity())
        sides = {"post": "-", "bare": "-", "parallel": "-", "pre": "a-b-", "sandwich": "acbe", "branch": "-a-b"}[wiring]
        if how == "inside" and wiring != "parallel":
            names = [getattr(self, one, None) or nn.Identity() for one in (sides if len(sides) == 4 else "----")]
            self.first, self.second = Inside(names[0], self.attn, names[1]), Inside(names[2], self.ffn, names[3])

    def plus(self, X: Tensor, Y: Tensor) -> Tensor:
        if self.how == "y + x":
            return Y + X
        if self.how == "torch.add":
            return torch.add(X, Y)
        if self.how == "x.add":
            return X.add(Y, alpha=1)
        if self.how == "in place":
            Y += X
            return Y
        return X + Y

    def forward(self, X: Tensor) -> Tensor:
        w = self.wiring
        if w == "parallel":
            Z = self.a(X)
            return self.plus(X, self.attn(Z) + self.ffn(Z))
        if self.how == "inside":
            if w == "post":
                return self.b(self.second(self.a(self.first(X))))
            return self.second(self.first(X))
        if w == "post":
            X = self.a(self.plus(X, self.attn(X)))
            return self.b(self.plus(X, self.ffn(X)))
        if w == "pre":
            X = self.plus(X, self.attn(self.a(X)))
            return self.plus(X, self.ffn(self.b(X)))
        if w == "sandwich":
            X = self.plus(X, self.c(self.attn(self.a(X))))
            return self.plus(X, self.e(self.ffn(self.b(X))))
        if w == "branch":
            X = self.plus(X, self.a(self.attn(X)))
            return self.plus(X, self.b(self.ffn(X)))
        X = self.plus(X, self.attn(X))
        return self.plus(X, self.ffn(X))

    def truth(self, X: Tensor) -> Tensor:
        attn, ffn = self.attn.truth, self.ffn
        if self.wiring == "parallel":
            return X + attn(self.a(X)) + ffn(self.a(X))
        if self.wiring == "post":
            X = self.a(X + attn(X))
            return self.b(X + ffn(X))
        before, after = {"pre": ("a", ""), "sandwich": ("a", "c"), "branch": ("", "a"), "bare": ("", "")}[self.wiring]
        last, end = {"pre": ("b", ""), "sandwich": ("b", "e"), "branch": ("", "b"), "bare": ("", "")}[self.wiring]
        norm = {name: getattr(self, name) for name in "abce"} | {"": nn.Identity()}
        X = X + norm[after](attn(norm[before](X)))
        return X + norm[end](ffn(norm[last](X)))


class Model(nn.Module):
    """Blocks in a holder, perhaps between an embedding and a head."""

    def __init__(self, blocks: list[Block], holder: str, embeds: bool, head: bool) -> None:
        super().__init__()
        self.holder, self.count = holder, len(blocks)
        self.embed = nn.Embedding(11, D) if embeds else nn.Identity()
        self.head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 5)) if head else nn.Identity()
        if holder == "attributes":
            for k, block in enumerate(blocks):
                setattr(self, f"block{k}", block)
        elif holder == "dict":
            self.blocks: Any = nn.ModuleDict({f"b{k}": block for k, block in enumerate(blocks)})
        elif holder == "sequential":
            self.blocks = nn.Sequential(*blocks)
        elif holder == "pairs":
            self.blocks = nn.ModuleList(nn.ModuleList([one.attn, one]) for one in blocks)
        else:
            self.blocks = nn.ModuleList(blocks)

    @property
    def all(self) -> list[Any]:
        if self.holder == "attributes":
            return [getattr(self, f"block{k}") for k in range(self.count)]
        if self.holder == "dict":
            return [*self.blocks.values()]
        return [pair[1] for pair in self.blocks] if self.holder == "pairs" else [*self.blocks]

    def forward(self, X: Tensor) -> Tensor:
        X = self.embed(X)
        if self.holder == "sequential":
            return self.head(self.blocks(X))
        for block in self.all:
            X = block(X)
        return self.head(X)

    def states(self, X: Tensor, centred: bool = False) -> list[Tensor]:
        """The truth: the tokens before block 1 and after every block, centred where de-escalation acts on them."""
        found = [self.embed(X)]
        for block in self.all:
            Y = block.truth(found[-1])
            found.append(Y - Y.mean(1, keepdim=True) if centred else Y)
        return found


def written(rng: Random, *, causal: float = 0.3) -> tuple[Model, Tensor]:
    """A model and tokens for it. causal: in how many cases of one tokens look at earlier tokens alone."""
    later, embeds = rng.random() < causal, rng.random() < 0.5
    norm = rng.choice((nn.LayerNorm, nn.RMSNorm))
    act = rng.choice((nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Tanh()))
    choice = rng.choice(WIRINGS), rng.choice(ATTENTIONS), rng.choice(SUMS)
    blocks = [Block(*choice, norm, act, later) for _ in range(rng.choice((1, 2, 3, 4)))]
    model = Model(blocks, rng.choice(HOLDERS), embeds, rng.random() < 0.5).eval()
    tokens = torch.randint(0, 11, (2, N)) if embeds else torch.randn(2, N, D)
    with torch.no_grad():
        off = (model(tokens) - model.head(model.states(tokens)[-1])).abs().max()
        assert float(off) < 1e-4, "the generator: forward and truth differ"
    return model, tokens


@torch.no_grad()
def t_sim(X: Tensor) -> float:
    """|Pi_1 X|^2 / |X|^2 of every sequence, and their mean."""
    X = X.double()
    common = X.mean(1, keepdim=True).expand_as(X)
    return float((common.square().sum((1, 2)) / X.square().sum((1, 2))).mean())


@kind(1000)
def scanned(rng: Random) -> str:
    """A scan has the states of the truth, block by block, and leaves the model as it was."""
    model, tokens = written(rng)
    with torch.no_grad():
        before, truth = model(tokens), [t_sim(X) for X in model.states(tokens)]
    scan = ds.scan(model, tokens)
    assert scan.depth == model.count, f"{scan.depth} blocks, of {model.count}"
    off = max(abs(a - b) for a, b in zip(scan["t_sim"].tolist(), truth, strict=True))
    assert off < 1e-5, f"t_sim is off by {off:.2g}"
    with torch.no_grad():
        assert torch.equal(model(tokens), before)
    return "right"


@kind(300)
def fixed(rng: Random) -> str:
    """De-escalation with tau = 1 centres the tokens after every block, and its end gives the outputs of before."""
    model, tokens = written(rng, causal=0.0)  # in causal models it takes another mean away
    with torch.no_grad():
        before, truth = model(tokens), model.head(model.states(tokens, centred=True)[-1])
        handle = ds.fix_(model, ds.remedies.DeEscalate(1.0))
        with contextlib.ExitStack() as stack:
            stack.callback(handle.undo)
            off = float((model(tokens) - truth).abs().max())
            assert off < 1e-4, f"outputs are off by {off:.2g}"
        assert torch.equal(model(tokens), before), "undo left something behind"
    return "right"


@kind(700)
def forecasted(rng: Random) -> str:
    """A forecast by weights has a finite similarity in [0, 1] for every state, or says why there is none."""
    model, _ = written(rng)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        found = ds.forecast(model, n=N)
    finally:
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert len(found.t_sim) == model.count + 1, f"{len(found.t_sim) - 1} blocks, of {model.count}"
    assert bool(((found.t_sim >= -1e-9) & (found.t_sim <= 1 + 1e-9)).all()), found.t_sim.tolist()
    return "given"
