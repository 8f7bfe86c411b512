"""Who holds the weights, and what runs the blocks: parameters, functions, wrappers, compilers, checkpoints."""

from collections import namedtuple
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tools.coverage.case import DEPTH, HEADS, TOKENS, WIDTH, words
from tools.coverage.cases.written_states import Listed
from tools.coverage.written import Attention, Block, Written, network, plainly, tokens, written
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

held: Any = partial(written, group="holders")


def heads_of(x: Tensor, W: Tensor) -> Tensor:
    return (x @ W).unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Functional(Written):
    """No module at all: weights in a ParameterList, blocks are functions."""

    def __init__(self, stacked: bool = False) -> None:
        super().__init__()
        std, d = WIDTH**-0.5, WIDTH
        shapes = {"q": (d, d), "k": (d, d), "v": (d, d), "o": (d, d), "w1": (d, 2 * d), "w2": (2 * d, d)}
        self.stacked = stacked
        for name, shape in shapes.items():
            many = [torch.randn(shape) * std for _ in range(DEPTH)]
            setattr(self, name, nn.Parameter(torch.stack(many)) if stacked else nn.ParameterList(many))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i in range(DEPTH):
            y = F.layer_norm(x, (WIDTH,))
            y = plainly(heads_of(y, self.q[i]), heads_of(y, self.k[i]), heads_of(y, self.v[i]), None)
            x = x + y.transpose(1, 2).flatten(2) @ self.o[i]
            x = x + F.gelu(F.layer_norm(x, (WIDTH,)) @ self.w1[i]) @ self.w2[i]
            x = self.tap(i + 1, x)
        return x


class OverLayers(Written):
    """One block, called with the weights of layer l out of stacked ones: functional_call, as scans over layers do."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [Block() for _ in range(DEPTH)]
        self.block = Block()
        self.names = [name for name, _ in self.block.named_parameters()]
        self.weights = nn.ParameterList(torch.stack([b.get_parameter(n) for b in blocks]) for n in self.names)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i in range(DEPTH):
            here = {name: W[i] for name, W in zip(self.names, self.weights, strict=True)}
            x = self.tap(i + 1, functional_call(self.block, here, (x,)))
        return x


class Residual(nn.Module):
    """x + fn(norm(x)), as one module."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(WIDTH), fn

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fn(self.norm(x))


class Pass(nn.Module):
    """Hands the stream out, without a function of torch."""

    def __init__(self, model: Written, number: int) -> None:
        super().__init__()
        self.outer, self.number = [model], number

    def forward(self, x: Tensor) -> Tensor:
        return self.outer[0].tap(self.number, x)


class NestedSequential(Written):
    """Sequential of Sequential of Residual; `flat` puts all in one Sequential."""

    def __init__(self, flat: bool = False) -> None:
        super().__init__()
        parts = [[Residual(Attention()), Residual(network()), Pass(self, i + 1)] for i in range(DEPTH)]
        self.body = (
            nn.Sequential(*(part for block in parts for part in block))
            if flat
            else nn.Sequential(*(nn.Sequential(*block) for block in parts))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.tap(0, x))


class Checkpointed(Listed):
    """torch.utils.checkpoint around every block."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, checkpoint(block, x, use_reentrant=self.reentrant))
        return x


class CheckpointedSequence(Written):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(Block(), Pass(self, i + 1)) for i in range(DEPTH)))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint_sequential(self.blocks, 2, self.tap(0, x), use_reentrant=False)


class Wrapped(Listed):
    """Blocks inside wrappers that only pass on, as data-parallel or adapter libraries make them."""

    def __init__(self) -> None:
        super().__init__(lambda: Outer(Block()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        return x


class Outer(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **more: Any) -> Any:
        return self.module(*args, **more)


Named = namedtuple("Named", "weights tokens")


class InNamed(Block):
    """Attention's weights first, tokens second, in a named tuple."""

    def forward(self, state: Named) -> Named:  # type: ignore[override]
        x = super().forward(state.tokens)
        return Named((x @ x.mT).softmax(-1), x)


class NamedTuples(Listed):
    def __init__(self) -> None:
        super().__init__(InNamed)

    def forward(self, x: Tensor) -> Tensor:
        state = Named(torch.zeros(len(x), x.shape[1], x.shape[1]), self.tap(0, x))
        for i, block in enumerate(self.blocks):
            state = block(state)
            state = state._replace(tokens=self.tap(i + 1, state.tokens))
        return state.tokens


class Box:
    """A plain object that carries the stream."""

    x: Tensor


class InBox(Block):
    """Changes the object, and returns nothing."""

    def forward(self, box: Box) -> None:  # type: ignore[override]
        box.x = super().forward(box.x)


class Boxes(Listed):
    def __init__(self) -> None:
        super().__init__(InBox)

    def forward(self, x: Tensor) -> Tensor:
        box = Box()
        box.x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            block(box)
            box.x = self.tap(i + 1, box.x)
        return box.x


class InList(Block):
    """Tokens in a list that grows: every block appends what it made."""

    def forward(self, states: list[Tensor]) -> list[Tensor]:  # type: ignore[override]
        states.append(super().forward(states[-1]))
        return states


class Growing(Listed):
    def __init__(self) -> None:
        super().__init__(InList)

    def forward(self, x: Tensor) -> list[Tensor]:
        states = [self.tap(0, x)]
        for i, block in enumerate(self.blocks):
            states = block(states)
            states[-1] = self.tap(i + 1, states[-1])
        return states[::-1]


class AndCache(Block):
    """Returns (keys, tokens), keys first, and takes (tokens, keys of before)."""

    def forward(self, x: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = super().forward(x)
        return self.attn.to_qkv(x).chunk(3, -1)[1], x


class Caches(Listed):
    def __init__(self) -> None:
        super().__init__(AndCache)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        x, cached = self.tap(0, x), []
        for i, block in enumerate(self.blocks):
            keys, x = block(x, None)
            cached.append(keys)
            x = self.tap(i + 1, x)
        return x, cached


class NanoGpt(Written):
    """As everybody copies it: wte, wpe, drop, h, ln_f in a ModuleDict, lm_head tied, F.scaled_dot_product_attention."""

    def __init__(self, masked: bool = False) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(100, WIDTH), "wpe": nn.Embedding(64, WIDTH), "drop": nn.Dropout(0.1),
            "h": nn.ModuleList(CausalBlock(masked) for _ in range(DEPTH)), "ln_f": nn.LayerNorm(WIDTH),
        })  # fmt: skip
        self.lm_head = nn.Linear(WIDTH, 100, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.shape[1])))
        x = self.tap(0, x)
        for i, block in enumerate(self.transformer.h):
            x = self.tap(i + 1, block(x))
        return self.lm_head(self.transformer.ln_f(x)), None


class CausalBlock(nn.Module):
    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.masked = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), masked
        self.ln_1, self.ln_2, self.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), network()
        self.register_buffer("bias", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, HEADS, C // HEADS).transpose(1, 2) for t in (q, k, v))
        if self.masked:
            att = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = F.softmax(att, dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.mlp(self.ln_2(x))


class Classifier(Written):
    """The tutorial's: Embedding, positions, nn.TransformerEncoder, mean over tokens, Linear."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True)
        self.words, self.pos = nn.Embedding(100, WIDTH), nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.encoder = nn.TransformerEncoder(layer, DEPTH, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head, self.causal = nn.Linear(WIDTH, 10), causal
        for i, part in enumerate(self.encoder.layers):
            part.register_forward_hook(lambda module, args, out, i=i: self.tap(i + 1, out))

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.causal else None
        x = self.encoder(self.tap(0, self.words(ids) + self.pos), mask=mask, is_causal=self.causal)
        return self.head(x if self.causal else x.mean(1))


def parametrized() -> Listed:
    """Weight norm on every matrix, spectral norm on the networks."""
    model = Looped()
    for block in model.blocks:
        nn.utils.parametrizations.weight_norm(block.attn.to_qkv)
        nn.utils.parametrizations.spectral_norm(block.mlp[0])
    return model


class Looped(Listed):
    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        return x


def in_double() -> nn.Module:
    return Looped().double()


def compiled_blocks() -> nn.Module:
    model = Looped()
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, backend="eager")
    return model


def compiled_in_place() -> nn.Module:
    model = Looped()
    for block in model.blocks:
        block.compile(backend="eager")
    return model


held("weights in parameter lists", Functional, heads=False)
held("weights stacked", partial(Functional, True), heads=False)
held("one block, weights of layer l", OverLayers, heads=False)
held("nested sequential", NestedSequential)
held("sequential of halves", partial(NestedSequential, True))
held("checkpointed", Checkpointed)
held("checkpointed reentrant", partial(Checkpointed, True))
held("checkpointed sequence", CheckpointedSequence)
held("wrapped blocks", Wrapped)
held("states in named tuples", NamedTuples)
held("states in an object", Boxes)
held("states in a list that grows", Growing)
held("keys first, tokens second", Caches)
held("nanogpt", NanoGpt, inputs=words, causal=True, heads=False)
held("nanogpt masked", partial(NanoGpt, True), inputs=words, causal=True, heads=False)
held("tutorial classifier", Classifier, inputs=words, heads=False, token_axis=None)
held("tutorial language model", partial(Classifier, True), inputs=words, heads=False, causal=True)
held("parametrized weights", parametrized)
held("float64", in_double, inputs=lambda: tokens().double())
held("compiled blocks", compiled_blocks)
held("blocks compiled in place", compiled_in_place)
