"""The sites that remedies alone have: in attention, and in the weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from depthscope.errors import UsageError
from depthscope.interventions.checkpoints import CheckpointGuard, refuse_checkpointing, refuse_inner_checkpoint
from depthscope.interventions.sites import AtEnds, Inside, Site, whole_block
from depthscope.remedies.value_remedy import ValueWeights, exactly, value_weights_in
from depthscope.remedies.weight_remedy import matrices
from depthscope.traces.attention import SdpaCall, attention_in, within_reach
from depthscope.traces.operations import Operation
from depthscope.traces.spans import Span
from depthscope.traces.watcher import Watched, Watcher


class InAttention(Site):
    """attn: the first attention of a block is computed by the block's remedy. A listener of what the model computes."""

    everything = False

    def __init__(self, meets: Any, spans: list[Span]) -> None:
        super().__init__(meets, spans)
        self.block: str | None = None  # that runs and has not attended yet
        self.watcher: Watcher | None = None

    def within(self, span: Span) -> str | None:
        return whole_block(span)

    def modules(self) -> list[Watched]:
        found = []
        for span in dict.fromkeys(self.spans):
            found.append(Watched(self.meets.model.get_submodule(span.entry), before=self._running(span.block)))
            if span.exit is not None:  # else the block lasts until the next one begins
                last = self.meets.model.get_submodule(span.exit)
                found.append(Watched(last, after=self._running(None), always=True))
        return found

    def _running(self, block: str | None) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self.block = block

        return hook

    def begin(self) -> None:
        if not all(map(self.within, self.spans)) or any(remedy.carries for remedy in self.meets.copies):
            refuse_checkpointing(self.meets)
        self.block = None
        self.watcher = Watcher(self).__enter__()

    def begin_again(self, span: Span, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.watcher = Watcher(self, running=module).__enter__()
        self.block = span.block

    def end(self) -> None:
        for remedy in self.meets.copies:
            remedy.begin()
        if self.watcher is not None:
            watcher, self.watcher = self.watcher, None
            watcher.__exit__(None, None, None)

    def closed(self, failed: bool) -> None:
        self.block = None

    def operation(self, op: Operation) -> Any:
        """Every self-attention (as many queries as keys) that is the first of its block goes to the remedy."""
        if self.block is None or op.role not in ("attention", "softmax"):
            return op.run()
        if op.role == "attention":
            call = op.named()
            q, k, v = call["query"], call["key"], call["value"]
            if q.shape[-2] != k.shape[-2]:
                return op.run()
            if call.get("enable_gqa") and q.shape[-3] != k.shape[-3]:
                k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
            return self._own().from_qkv(q, k, v, SdpaCall(call, self.meets.hidden))
        result = op.run()
        if attention_in(op, result) is None:
            return result
        visible = self.meets.hidden.leaves(within_reach(op.named()["input"]), result)
        return self._own().from_pattern(result, visible)

    def _own(self) -> Any:
        block, self.block = str(self.block), None
        remedy = self.meets.copies[block]
        refuse_inner_checkpoint(self.meets, [] if remedy.carries else [block])
        self.meets.fires(block)
        return remedy


class ForThePass(Site):
    """A site where the model computes with other matrices for the time of a pass."""

    def __init__(self, meets: Any, spans: list[Span]) -> None:
        super().__init__(meets, spans)
        self.guard: Watcher | None = None

    def paths(self) -> set[str]:
        """All modules of the blocks: any may hold a matrix."""
        model, blocks = self.meets.model, {span.block for span in self.spans}
        return {path for block in blocks for path, _ in model.get_submodule(block).named_modules(prefix=block)}

    def begin(self) -> None:
        refuse_checkpointing(self.meets)
        refuse_sharding(self.meets)
        if torch.is_grad_enabled():
            blocks = [span.block for span in dict.fromkeys(self.spans)]
            self.guard = Watcher(CheckpointGuard(self.meets, blocks)).__enter__()

    def end(self) -> None:
        if self.guard is not None:
            guard, self.guard = self.guard, None
            guard.__exit__(None, None, None)


class InWeights(ForThePass):
    """weights: all matrices of the blocks."""

    def __init__(self, meets: Any, spans: list[Span]) -> None:
        super().__init__(meets, spans)
        self.matrices = matrices(meets.model, [span.block for span in dict.fromkeys(spans)])
        if not self.matrices or not meets.copies.are_at(matrix.path for matrix in self.matrices):
            self.remove()
            raise UsageError(
                f"{meets.remedy} must find the matrices that it was made for; in {type(meets.model).__name__} some "
                "were replaced since (by quantised ones, adapters, parametrizations). Undo the fix, and call fix_ "
                "again on the model as it is now."
            )

    def begin(self) -> None:
        super().begin()
        for matrix in self.matrices:
            matrix.put(self.meets.copies[matrix.path].weight(matrix.parameter))
        for span in self.spans:
            self.meets.fires(span.block)

    def end(self) -> None:
        super().end()
        for matrix in self.matrices:
            matrix.put_back()


class InValues(ForThePass):
    """values: W_V and W_O of the blocks."""

    def __init__(self, meets: Any, spans: list[Span]) -> None:
        super().__init__(meets, spans)
        self.held: dict[str, ValueWeights] = {}

    def see(self, args: tuple, kwargs: dict) -> None:
        if self.meets.remedy.is_off:
            return
        refuse_sharding(self.meets)
        blocks = [span.block for span in dict.fromkeys(self.spans) if self.meets.copies[span.block].acts]
        try:
            with torch.inference_mode(False), exactly(self.meets.model):  # what is found is used with gradients later
                self.held = value_weights_in(self.meets.model, blocks, args, kwargs)
                for block, held in self.held.items():
                    self.meets.copies[block].start_(*held.own(), held.heads)
        except BaseException:
            self.remove()  # the next pass looks again
            raise

    def begin(self) -> None:
        super().begin()
        with exactly(self.meets.model):
            for block, held in self.held.items():
                held.put(*self.meets.copies[block].values(*held.own(), held.heads))
        for span in self.spans:
            self.meets.fires(span.block)

    def end(self) -> None:
        super().end()
        for held in self.held.values():
            held.put_back()


def site_of(at: str) -> type[Site]:
    """The way that belongs to the name of a site."""
    ways = {"attn": InAttention, "weights": InWeights, "values": InValues}
    return {"block_in": AtEnds, "block_out": AtEnds, **ways}.get(at, Inside)


def refuse_sharding(meets: Any) -> None:
    """Weights that are cut over processes are gathered after a pass has begun, in the place of the remedy's."""
    if any(hasattr(parameter, "device_mesh") for parameter in meets.model.parameters()):  # a DTensor
        raise UsageError(
            f"weights must be whole for {meets}; those of "
            f"{type(meets.model).__name__} are cut over processes (FSDP). Use DDP, which copies the model."
        )
