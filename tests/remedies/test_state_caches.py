"""With a remedy in place, a text that is read step by step gives the logits of the text that is read at once.

The caches are those of recurrences: states in an object, in a list, in layers beside keys and values.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import UsageError
from loops import crossed

T: Any = pytest.importorskip("transformers")
SMALL = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 32}
ATTENDS = {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
KINDS = ["conv", "full_attention", "conv"]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Mamba": ("cache_params", {"num_hidden_layers": 2, "state_size": 4}),
    "FalconMamba": ("cache_params", {"num_hidden_layers": 2, "state_size": 4}),
    "Mamba2": (
        "cache_params",
        {"num_hidden_layers": 2, "state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    ),
    "Rwkv": ("state", {"num_hidden_layers": 2, "context_length": 64}),
    "Lfm2": ("past_key_values", {"num_hidden_layers": 3, "layer_types": KINDS, **ATTENDS}),
}
REMEDY = ds.remedies.DeEscalate(0.8, form="prefix")


def built(family: str) -> Any:
    torch.manual_seed(0)
    config = getattr(T, f"{family}Config")(**SMALL, **FAMILIES[family][1])
    return getattr(T, f"{family}ForCausalLM")(config).double().eval()


def ids_for(family: str) -> Tensor:
    rows = 1 if family == "Rwkv" else 2  # the state of more than one goes wrong in the plain model
    return torch.randint(5, 60, (rows, 8), generator=torch.Generator().manual_seed(1))


def in_steps(model: Any, ids: Tensor, name: str, begun: int = 4) -> Tensor:
    """Logits of a text whose first tokens are read at once, and the others one by one."""
    out = model(ids[:, :begun], use_cache=True)
    logits = [out.logits]
    for t in range(begun, ids.shape[1]):
        out = model(ids[:, t : t + 1], use_cache=True, **{name: getattr(out, name)})
        logits.append(out.logits)
    return torch.cat(logits, 1)


@crossed("family, at", list(FAMILIES), ["block_in", "block_out"])
@torch.no_grad()
def test_steps_equal_the_whole(family: str, at: str) -> None:
    model, ids = built(family), ids_for(family)
    plain = model(ids, use_cache=False).logits
    with ds.fix_(model, REMEDY, at=at):
        whole = model(ids, use_cache=False).logits
        assert float((whole - plain).abs().max()) > 0.1
        torch.testing.assert_close(in_steps(model, ids, FAMILIES[family][0]), whole, atol=2e-6, rtol=0)
    assert torch.equal(model(ids, use_cache=False).logits, plain)


@torch.no_grad()
def test_generation_goes_on_in_a_state() -> None:
    model, ids = built("Mamba"), ids_for("Mamba")
    given = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    with ds.fix_(model, REMEDY):
        one, other = (torch.stack(model.generate(ids, **given, use_cache=use).logits) for use in (True, False))
    torch.testing.assert_close(one, other, atol=2e-6, rtol=0)


@torch.no_grad()
def test_states_inside_modules() -> None:
    """RecurrentGemma keeps its states in its modules; the cache that it is given stands for them."""
    config = T.RecurrentGemmaConfig(
        **SMALL,
        num_hidden_layers=3,
        intermediate_size=64,
        num_attention_heads=4,
        lru_width=32,
        attention_window_size=16,
    )
    torch.manual_seed(0)
    model, ids = T.RecurrentGemmaForCausalLM(config).double().eval(), ids_for("")
    with ds.fix_(model, REMEDY):
        whole = model(ids, use_cache=False).logits
        cache = {"past_key_values": T.DynamicCache(config=config), "use_cache": True}
        logits = [model(ids[:, :4], **cache).logits]
        for t in range(4, 8):
            logits.append(model(ids[:, t : t + 1], position_ids=torch.full((2, 1), t), **cache).logits)
    torch.testing.assert_close(torch.cat(logits, 1), whole)


# a recurrence of one's own, whose state is a plain object


class Held:
    def __init__(self, depth: int, batch: int, d: int) -> None:
        self.sums = {i: torch.zeros(batch, 1, d) for i in range(depth)}


class Recurrence(nn.Module):
    """Each token gets a part of the sum of those before it."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d, d)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x.cumsum(1) + before))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Recurrence(8) for _ in range(2))

    def forward(self, x: Tensor, cache_params: Any = None) -> tuple[Tensor, Any]:
        held = Held(2, len(x), 8) if cache_params is None else cache_params
        for i, block in enumerate(self.blocks):
            before, held.sums[i] = held.sums[i], held.sums[i] + x.sum(1, keepdim=True)
            x = block(x, before)
        return x, held


@torch.no_grad()
def test_a_state_of_ones_own() -> None:
    torch.manual_seed(0)
    model, X = Model(), torch.randn(2, 7, 8)
    with ds.fix_(model, REMEDY, blocks="blocks.*", causal="yes"):
        whole = model(X)[0]
        first, held = model(X[:, :3])
        rest = [model(X[:, t : t + 1], cache_params=held)[0] for t in range(3, 7)]
        torch.testing.assert_close(torch.cat([first, *rest], 1), whole)
        held.sums = {i: x[[1, 0]] for i, x in held.sums.items()}  # as beam search does
        with pytest.raises(UsageError, match=r"reordered, cropped or moved.*use_cache=False"):
            model(X[:, :1], cache_params=held)
    held = model(X)[1]
    with ds.fix_(model, REMEDY, blocks="blocks.*", causal="yes"):
        with pytest.raises(UsageError, match=r"filled without it.*use_cache=False"):
            model(X[:, :1], cache_params=held)


def test_a_remedy_that_needs_the_whole_sequence_says_so() -> None:
    model, ids = built("Mamba"), ids_for("Mamba")
    remedy = ds.remedies.DeEscalate(0.8)
    with torch.no_grad(), ds.fix_(model, remedy, causal="leak"):
        with pytest.raises(UsageError, match=r"must see the whole sequence.*use_cache=False"):
            in_steps(model, ids, "cache_params")


def test_a_window_of_earlier_tokens_is_refused() -> None:
    config = T.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=64, vocab_size=60)
    model, ids = T.XLNetModel(config).eval(), torch.randint(5, 60, (2, 8))
    with torch.no_grad(), ds.fix_(model, ds.remedies.DeEscalate(0.8), causal="no"):
        mems = model(ids, use_mems=True).mems
        with pytest.raises(UsageError, match="got only a part of it, with mems"):
            model(ids, mems=mems)
