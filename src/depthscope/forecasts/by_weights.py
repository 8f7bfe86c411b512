"""The forecast of a model: laws of its tokens flow through its own code, by its actual weights."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.forecasts.curves import NO_PASS, curves
from depthscope.forecasts.drawn_models import limit_of_model
from depthscope.forecasts.padded import mask_of_tokens
from depthscope.forecasts.record import Forecast
from depthscope.forecasts.sureness import TRAINED, band_by_variance, beyond_range, neglected, warned_of_training
from depthscope.forecasts.trained import sign_of_training
from depthscope.laws.boundaries import by_modules, by_spans
from depthscope.laws.following import StreamInDoubtError
from depthscope.laws.sampled_steps import DRAWS
from depthscope.laws.through_model import BlocksNotCalledError, Followed, laws_by_block
from depthscope.models.random_inputs import random_inputs
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.remedies.fix import fix_
from depthscope.traces.entry import Entry, enter
from depthscope.traces.inputs import Batch
from depthscope.traces.whole_weights import whole_weights

BY_WEIGHTS = "weights are random to the part of the tokens that differs; the common part goes through the actual ones"
ONE_SURVEY = (
    "no block was computed: the law of the tokens was followed through them; the model ran only to find the "
    "remedy's sites"
)


def of_model(
    model: nn.Module, inputs: Any, blocks: str | Iterable[str] | None, stream: str | None, n: int, tau: float
) -> Forecast:
    model = enter(model).model
    assumed = [BY_WEIGHTS, ONE_SURVEY if tau else NO_PASS]
    if inputs is None:
        here = next((p.device for p in model.parameters() if not p.is_meta), None)  # the others are on disk
        inputs = random_inputs(model, n).to(here)
        assumed.append(f"no inputs were given: random ones of shape {tuple(inputs.shape)} were used")
    if model.training and any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()):
        assumed.append("dropout is off, although the model is in training mode")
    entry = enter(model, inputs, blocks, stream=stream)
    with ExitStack() as stack:
        stack.enter_context(whole_weights(model))
        if tau:
            stack.enter_context(fix_(model, DeEscalate(tau), blocks=entry.blocks, stream=stream))
        found = []
        for b in entry.batches():
            followed, paths = _followed(entry, b)
            mask = mask_of_tokens(model, paths, b, followed.laws[0].tokens)
            found.append(_of_laws(type(model).__name__, followed, mask, assumed, sign_of_training(model, paths)))
    curves_and_band = ("t_sim", "t_div", "t_cos", "band")
    means = {name: torch.stack([getattr(f, name) for f in found]).mean(0) for name in curves_and_band}
    worst = max(found, key=lambda f: len(f.warnings))
    whole = replace(found[0], tau=tau, warnings=worst.warnings, **means)  # type: ignore[arg-type]
    return replace(whole, rate_limit=limit_of_model(model, whole))


def _followed(entry: Entry, batch: Batch) -> tuple[Followed, list[str]]:
    """The laws after every block, and the paths of the blocks: by name where names leave no doubt, else by a survey."""
    names = entry.sure_names()
    if names is not None:
        try:
            return laws_by_block(entry.model, by_modules(names), None, batch.args, batch.kwargs), names
        except (BlocksNotCalledError, StreamInDoubtError):
            pass  # parts of a block that is never called, several tensors handed on: a pass shows what is the stream
    stream = entry.survey(batch).streams[0]
    paths = list(dict.fromkeys(span.block for span in stream.spans))
    first = stream.layouts[stream.spans[0].block]
    turned = first.channels < min(first.tokens)  # (B, d, h, w)
    blocks, chosen = by_spans(stream.spans), entry.chosen()
    return laws_by_block(entry.model, blocks, chosen, batch.args, batch.kwargs, channels_first=turned), paths


def _of_laws(source: str, followed: Followed, mask: Tensor | None, assumed: list[str], trained: str) -> Forecast:
    """mask: tokens that count; trained: why the weights look trained, if they do."""
    laws = followed.laws
    if followed.sampled:
        assumed = [*(text for text in assumed if text != NO_PASS), _drawn(followed.sampled)]
    overlaps = [law.overlaps() for law in laws]
    found = curves(source, overlaps, [law.energies(mask) for law in laws], assumed, mask=mask)
    variance = neglected(laws, structure=TRAINED if trained else 0.0)
    found = replace(found, band=band_by_variance(found, variance.sum(-1)))
    return replace(found, warnings=warned_of_training(trained) + beyond_range(found, laws, variance))


def _drawn(sampled: dict[str, str]) -> str:
    """Which steps have no law, and why the first of them has none."""
    names = list(sampled)
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"blocks are followed by the law of their tokens, but {some} ran on tokens drawn from it, {DRAWS} samples "
        f"each: {next(iter(sampled.values()))}; the band holds how far samples differ"
    )
