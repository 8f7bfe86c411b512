"""The lens: what the model would say after every block, by its own final norm and head.

The state after block l goes to whatever follows the last block: a pass whose later blocks are all left out. No names of
norms and heads are needed. Where the logits are what one matrix gives, its inputs are kept, O(L n d), and logits are
made for a few tokens at a time, so that no more than ROWS of them are there at once. Elsewhere (logits that are scaled
or capped) the model makes all of them, state by state.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.depths.losses import ROWS, Loss, logits_in, targets_of
from depthscope.depths.replay import Replay
from depthscope.traces.identity import Known

TOP = 5


class _Reached(BaseException):
    """Carries what the head is given."""

    def __init__(self, given: Tensor) -> None:
        super().__init__("the head is reached")
        self.given = given


@dataclass
class LensSums:
    """Sums over tokens by state (L+1,): KL(final || here) in nats, share of the final top five, loss."""

    kl: Tensor
    overlap: Tensor
    loss: Tensor
    count: int = 0
    items: int = 0

    @classmethod
    def empty(cls, states: int) -> "LensSums":
        kl, overlap, loss = (torch.zeros(states, dtype=torch.float64) for _ in range(3))
        return cls(kl, overlap, loss)


@contextmanager
def watched_heads(model: nn.Module, inside: list[str]) -> Iterator[Known[nn.Linear]]:
    """While entered: the matrices outside the blocks, known by what they gave if nobody has written into it since."""
    made: Known[nn.Linear] = Known()

    def hook(module: nn.Module, args: tuple, output: Any) -> None:
        if isinstance(module, nn.Linear) and isinstance(output, Tensor) and len(args) == 1:
            made.add(output, module)

    outside = [
        module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and not any(path == b or path.startswith(b + ".") for b in inside)
    ]
    handles = [module.register_forward_hook(hook) for module in outside]
    try:
        yield made
    finally:
        for handle in handles:
            handle.remove()


def add_lens(replay: Replay, sums: LensSums, head: nn.Linear | None, final: Tensor, loss: Loss | None) -> None:
    """Add what the lens says of one batch. head: the matrix that gives the logits, if one does. final: the logits."""
    plans = [replay.without(*range(at, replay.depth)) for at in range(replay.depth + 1)]
    subject = replay.subject
    keep = _kept(subject.mask, final)
    wanted = None
    if loss is not None and loss.by_token:
        targets, there = targets_of(subject)
        wanted = torch.where(there, targets, -1)[keep].to(final.device)
    if head is None:
        last = Final(final[keep])
        for at, plan in enumerate(plans):
            logits = logits_in(replay.run(plan))
            assert logits is not None
            _add(sums, at, logits[keep], last, wanted)
    else:
        given = [_given_to(replay, plan, head) for plan in plans]
        rows = [one.reshape(final.shape[:-1] + one.shape[-1:])[keep] for one in given]
        step = max(1, ROWS // final.shape[-1])
        with torch.no_grad():
            for i in range(0, len(rows[0]), step):
                last = Final(head(rows[-1][i : i + step]))
                for at, one in enumerate(rows):
                    _add(sums, at, head(one[i : i + step]), last, None if wanted is None else wanted[i : i + step])
    sums.count += int(keep.sum())
    if wanted is not None:
        sums.items += int((wanted >= 0).sum())
    elif loss is not None:
        for at, plan in enumerate(plans):
            items = loss.of(replay.run(plan), subject)
            sums.loss[at] += items.sum()
        sums.items += len(items)


def _kept(mask: Tensor | None, logits: Tensor) -> Tensor:
    """Which rows of the logits count: those of tokens that are no padding; all where they are not of tokens."""
    if mask is not None and mask.shape == logits.shape[:-1]:
        return mask.to(logits.device)
    return torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)


def _given_to(replay: Replay, plan: Any, head: nn.Linear) -> Tensor:
    """What the head is given by a plan; the pass ends there."""

    def stop(module: nn.Module, args: tuple) -> None:
        raise _Reached(args[0])

    handle = head.register_forward_pre_hook(stop)
    try:
        replay.run(plan)
    except _Reached as reached:
        return reached.given
    finally:
        handle.remove()
    raise AssertionError("the head was not reached")


class Final:
    """What the model says in the end: log p and p (rows, V), and the likeliest classes (rows, k)."""

    def __init__(self, logits: Tensor) -> None:
        self.log = logits.float().log_softmax(-1)
        self.p = self.log.exp()
        self.top = logits.topk(top_of(logits.shape[-1]), dim=-1).indices


def _add(sums: LensSums, at: int, logits: Tensor, last: Final, wanted: Tensor | None) -> None:
    """Rows of logits (rows, V) of one state beside the final ones. wanted (rows,): the next token, -1 for none."""
    here = logits.float().log_softmax(-1)
    sums.kl[at] += (last.p * (last.log - here)).sum(-1).double().sum().cpu()
    mine = logits.topk(last.top.shape[-1], dim=-1).indices
    sums.overlap[at] += (mine[:, :, None] == last.top[:, None]).any(-1).double().mean(-1).sum().cpu()
    if wanted is not None:
        there = wanted >= 0
        said = here[there].gather(-1, wanted[there][:, None])
        sums.loss[at] -= said.double().sum().cpu()


def top_of(classes: int) -> int:
    """How many of the likeliest classes are compared: five, fewer where five would be nearly all."""
    return max(1, min(TOP, classes // 2))
