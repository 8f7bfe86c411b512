"""The loss by which blocks are priced: the next token of a causal language model, the model's own, or the user's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope.circuits.subject import Subject
from depthscope.errors import UsageError
from depthscope.traces.causality import known_causality
from depthscope.traces.entry import run_model
from depthscope.traces.inputs import arguments_inside
from depthscope.traces.signature import signature_of

Score = Callable[[Any, Any], Any]  # what the model gives, and what it was given -> a number, or one for each item
ROWS = 1 << 24  # logits at a time


@dataclass(frozen=True)
class Loss:
    """name: what it is. of: the losses of single items (items,) in float64; one item where there is but a mean."""

    name: str
    of: Callable[[Any, Subject], Tensor]
    by_token: bool = False  # next tokens: a lens can take it token by token


MISSING = (
    "no loss: {}. Prices, drop curves and the loss of the lens are missing. Give labels among the inputs "
    "(input_ids=..., labels=...), a model with its head (AutoModelForCausalLM), or loss=f with f(output, inputs) -> "
    "a mean, or one number for each item"
)


def logits_in(output: Any) -> Tensor | None:
    """The logits among what a model gives: by that name, or the only tensor; None where there are none."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return next((v for k, v in output.items() if k.endswith("logits") and isinstance(v, Tensor)), None)
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    found = getattr(output, "logits", None)
    return found if isinstance(found, Tensor) else None


def loss_for(subject: Subject, output: Any, asked: Score | None) -> tuple[Loss | None, str]:
    """The loss of a model that gave this output, and why there is none."""
    if asked is not None:
        return Loss(getattr(asked, "__name__", "loss"), lambda out, s: items_of(asked(out, given_to(s)))), ""
    own = own_loss(output)
    if own is not None:
        return Loss("the model's own loss", lambda out, _: items_of(own_loss(out))), ""
    logits, ids = logits_in(output), ids_in(subject)
    if logits is None:
        return None, f"{subject.name} gives no logits"
    if ids is None or logits.ndim != 3 or logits.shape[:2] != ids.shape or int(ids.max()) >= logits.shape[-1]:
        return None, f"{subject.name} gives logits {tuple(logits.shape)}, which are not of a next token of the inputs"
    if not bool(targets_of(subject)[1].any()):
        return None, "no token of the inputs has a next one"
    if not _is_causal(subject):
        return None, f"{subject.name} sees later tokens, so that the next one is no task for it"
    return Loss("next-token cross entropy, nats", _next_token, by_token=True), ""


def own_loss(output: Any) -> Tensor | None:
    """The loss that a Hugging Face model gives when labels are among its inputs."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return found if isinstance(found, Tensor) else None


def given_to(subject: Subject) -> Any:
    """The inputs of a batch as the user knows them."""
    batch = subject.batch
    if batch.kwargs:
        return batch.kwargs if not batch.args else (batch.args, batch.kwargs)
    return batch.args[0] if len(batch.args) == 1 else batch.args


def items_of(value: Any) -> Tensor:
    """(items,) in float64."""
    try:
        found = torch.as_tensor(value)
        if found.is_complex():
            raise TypeError
        found = found.detach().double().cpu().flatten()
    except (TypeError, RuntimeError, ValueError):
        raise UsageError(
            f"loss and score must give a number, or one for each item; got {type(value).__name__}. Return a mean."
        ) from None
    if not found.numel():
        raise UsageError("loss must give a number, or one for each item; got none. Return a mean.")
    return found


def ids_in(subject: Subject) -> Tensor | None:
    """The token ids (B, n) among the inputs."""
    named = arguments_inside(subject.model, subject.batch.args, subject.batch.kwargs)
    chosen = named.get("input_ids")
    if chosen is None:
        whole = [v for v in named.values() if isinstance(v, Tensor) and v.dtype in (torch.int64, torch.int32)]
        chosen = whole[0] if len(whole) == 1 else None
    return chosen if isinstance(chosen, Tensor) and chosen.ndim == 2 else None


def targets_of(subject: Subject) -> tuple[Tensor, Tensor]:
    """The next tokens (B, n), and at which places (B, n) there is one: not at the last, not at padding."""
    ids = ids_in(subject)
    assert ids is not None
    there = torch.ones_like(ids, dtype=torch.bool) if subject.mask is None else subject.mask.to(ids.device).clone()
    there[:, :-1] &= there[:, 1:].clone()
    there[:, -1] = False
    return ids.roll(-1, dims=1).long(), there


def _next_token(output: Any, subject: Subject) -> Tensor:
    """-log p(next token) at every place that has one, (items,), in order."""
    logits = logits_in(output)
    assert logits is not None
    targets, there = targets_of(subject)
    rows, wanted = logits[there.to(logits.device)], targets[there].to(logits.device)
    step = max(1, ROWS // rows.shape[-1])
    found = [
        F.cross_entropy(rows[i : i + step].float(), wanted[i : i + step], reduction="none")
        for i in range(0, len(rows), step)
    ]
    return torch.cat(found).double().cpu()


def _is_causal(subject: Subject) -> bool:
    batch, model = subject.batch, subject.model
    key = signature_of(model, batch.args, batch.kwargs)
    paths = list(dict.fromkeys(subject.stream.paths))
    call = (key, paths, subject.axis, batch.args, batch.kwargs, batch.mask)
    return run_model(model, lambda: known_causality(model, *call).causal) is True
