"""Presets of Hugging Face at several depths, with random weights that keep the gain of their width."""

from functools import partial
from typing import Any

import torch

from depthscope.models.gallery.entry import COLLAPSED, HEALTHY, Built, Shelf
from depthscope.models.resolve import presets
from depthscope.models.sizes import Sizes

POST = "A post-norm family with matrices of gain about 1: t_div shrinks by a factor a block, and {depth} are {word}."
PRE = "A pre-norm family with a free skip: tokens grow alike slowly if at all, and such models train."
FAMILIES: dict[str, tuple[tuple[int, ...], frozenset[str], str]] = {
    "bert": ((36, 48), COLLAPSED, POST),
    "albert": ((36, 48), COLLAPSED, POST),
    "xlnet": ((36, 48), COLLAPSED, POST),
    "roberta": ((36, 48), COLLAPSED, POST),
    "bert, shallow": ((2, 3), HEALTHY, POST),
    "xlnet, shallow": ((2, 3), HEALTHY, POST),
    "gpt2": ((6, 12), HEALTHY, PRE),
    "llama": ((6, 12, 24), HEALTHY, PRE),
    "qwen3": ((6, 12), HEALTHY, PRE),
    "vit": ((6, 12), HEALTHY, PRE),
    "t5": ((6, 12), HEALTHY, PRE),
    "torch_encoder": ((60, 72), COLLAPSED, POST),
}


def add_presets(shelf: Shelf) -> None:
    for title, (depths, allowed, reason) in FAMILIES.items():
        r = shelf.draw(f"preset {title}")
        depth = r.choice(depths)
        sizes = Sizes(depth, r.choice([48, 64, 96]), r.choice([2, 4]), r.choice([16, 25, 36]), r.choice([2, 3]))
        why = reason.format(depth=depth, word="too many" if allowed is COLLAPSED else "few")
        family = title.partition(",")[0]
        times = 1.8 if reason is POST and family != "torch_encoder" else 1.0
        shelf.add(f"preset {title}", "preset", allowed, why, partial(_preset, family, sizes, times))
    r = shelf.draw("GPT-2 with a massive position")
    place = r.choice([0, 0, 5])
    sizes = Sizes(r.choice([6, 12]), 64, 4, r.choice([16, 32]), 3)
    why = f"All embeddings are one vector up to a thousandth, but position {place}, which is a hundred times as large."
    shelf.add("GPT-2 with a massive position", "preset", COLLAPSED, why, partial(_massive_gpt2, sizes, place))
    r = shelf.draw("preset bert, padded")
    sizes = Sizes(r.choice([36, 48]), 64, 4, 40, 4)
    why = "Three quarters of all places are padding; " + POST.format(depth=sizes.depth, word="too many")
    shelf.add("preset bert, padded", "padding", COLLAPSED, why, partial(_padded_bert, sizes))


def _preset(family: str, sizes: Sizes, times: float = 1.0) -> Built:
    """A preset; `times` multiplies all its matrices but embeddings. The gain of std 0.02 at width 768 is only 0.55."""
    model, inputs = presets()[family](sizes)
    with torch.no_grad():
        for path, matrix in model.named_parameters():
            if matrix.ndim > 1 and "embed" not in path:
                matrix.mul_(times)
    return model, inputs


def _massive_gpt2(sizes: Sizes, place: int) -> Built:
    model, ids = _preset("gpt2", sizes)
    words, places = model.wte.weight, model.wpe.weight  # type: ignore[union-attr]
    with torch.no_grad():
        common: Any = torch.randn(sizes.width)
        words.copy_(common + 1e-3 * torch.randn_like(words))  # type: ignore[arg-type, operator]
        places.copy_(1e-3 * torch.randn_like(places))  # type: ignore[arg-type, operator]
        places[place] = 100 * torch.randn(sizes.width)  # type: ignore[operator]
    return model, ids


def _padded_bert(sizes: Sizes) -> Built:
    model, ids = _preset("bert", sizes, 1.8)
    real = torch.arange(ids.shape[1]) < torch.tensor([8, 12, 10, 9])[:, None]
    return model, {"input_ids": ids, "attention_mask": real.long()}
