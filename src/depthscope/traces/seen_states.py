"""The token tensors of a pass: each measured the moment it is seen, known again by identity, and let go."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from depthscope.traces.attention import AttentionSeen
from depthscope.traces.flow import Flow
from depthscope.traces.identity import Known
from depthscope.traces.log import State
from depthscope.traces.token_axis import Frames
from depthscope.traces.tokens import tokens_last

Measure = Callable[[Tensor, Any, bool], Any]  # tokens (..., n, d), numbers so far, at a block's end? -> numbers


class SeenStates:
    """Which tensor is which State. A tensor is measured now, or as soon as it is known which axis holds the tokens."""

    def __init__(self, measure: Measure, frames: Frames, flow: Flow, tick: Callable[[], int]) -> None:
        self.measure, self.frames, self.flow, self.tick = measure, frames, flow, tick
        self.by_node: dict[int, State] = {}
        self.latest: Tensor | None = None  # of the states that attention may read
        self.stranger: Tensor | None = None  # tokens that a matrix has read since, and that are none of the states
        self._known: Known[tuple[State, float]] = Known()  # the state that a tensor is, and by what factor it is scaled
        self._waiting: list[tuple[Tensor, Tensor, State, bool]] = []
        self._followed: list[Any] = []  # hooks on tensors, for their gradients; they outlive the forward pass

    def find(self, tensor: Any) -> tuple[State, float] | None:
        """The state that a tensor is, and the factor on it."""
        return self._known.find(tensor)

    def see(self, tensor: Tensor, path: str, *, whole: bool, leads: bool = True) -> State:
        """The State of a tensor. leads: attention that comes next reads these tokens."""
        known = self.find(tensor)
        return self._seen(tensor, path, known[0] if known and known[1] == 1.0 else None, whole, leads)

    def new(self, tensor: Tensor, path: str, *, whole: bool, leads: bool) -> State:
        """A State of its own, though the tensor may have been one before: a sum that is written in place."""
        return self._seen(tensor, path, None, whole, leads)

    def _seen(self, tensor: Tensor, path: str, state: State | None, whole: bool, leads: bool) -> State:
        if state is None:
            state = State(path, self.tick(), tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            self._known.add(tensor, (state, 1.0))
        node = self.flow.find(tensor)
        if node is not None:
            self.by_node[node] = state
        if leads:
            self.latest, self.stranger = tensor, None
        self._measured(tensor, tensor, state, whole)
        return state

    def scale(self, tensor: Tensor, state: State, factor: float) -> None:
        """A tensor is a state times a number."""
        self._known.add(tensor, (state, factor))

    def _measured(self, tensor: Tensor, values: Tensor, state: State, whole: bool) -> None:
        """Measure the values a tensor had when it was seen."""
        followed = torch.is_grad_enabled()
        if state.numbers is not None and state.whole >= whole and not followed:
            return
        layout = self.frames.layout_of(state.shape)
        state.layout = layout
        with torch.no_grad() if followed else nullcontext(), torch._C.DisableTorchFunction():
            if layout is not None and state.tokens < 2:
                return  # a token by itself, beside the tokens
            if layout is None:
                copy = values.clone() if values is tensor else values  # it may be written into before that is known
                self._waiting.append((tensor, copy, state, whole))
                return
            state.numbers = self.measure(layout.split(values), state.numbers, whole)
            state.whole |= whole
        if followed and tensor.requires_grad and not state.numbers.followed:
            state.numbers.followed = True
            self._followed.append(tensor.register_hook(state.numbers.take_gradient))

    def measure_waiting(self, *, assume: bool) -> None:
        """Measure what waited for the token axis; with nothing to go by, tokens are the last axis but one."""
        waiting, self._waiting = self._waiting, []
        if assume and waiting:
            self.frames.assume(waiting[0][0].shape)
        for tensor, values, state, whole in waiting:
            if self.frames.layout_of(state.shape) is not None:
                self._measured(tensor, values, state, whole)

    def read_by_matrix(self, tokens: Any) -> None:
        """A matrix reads tokens: of a norm that is written out they may be none of the states."""
        latest, self.stranger = self.latest, None
        if latest is None or not isinstance(tokens, Tensor) or self._known.find(tokens) is not None:
            return
        alike = tokens.numel() == latest.numel() and tokens.shape[-1] == latest.shape[-1]
        if alike and tokens.data_ptr() != latest.data_ptr():  # else a view, as Conv1D makes
            self.stranger = tokens.detach().reshape(latest.shape)

    def is_older(self, tensor: Any, state: State) -> bool:
        """Whether a tensor, or what it is a view of, is a state from before another: what an encoder gave a decoder."""
        known = self._known.find(tensor)
        if known is None and isinstance(tensor, Tensor):
            known = self._known.find(tensor._base)  # time-first, as in nn.MultiheadAttention
        return known is not None and known[0].order < state.order

    def read_by(self, seen: AttentionSeen) -> Tensor | None:
        """The tokens (B, n, d) that attention over whole sequences reads, whose axes it tells; None for others."""
        tokens = self.latest
        if tokens is None:
            return None
        if seen.queries not in tokens.shape[:-1]:  # an image (B, H, W, d), whose tokens are all its places
            return tokens.flatten(1, -2)
        self.frames.add(seen.front[0], seen.queries)
        self.measure_waiting(assume=False)
        read = tokens if self.stranger is None else self.stranger
        X = tokens_last(read, self.frames.axis_of(tuple(read.shape)) or 0)
        return X if tuple(X.shape[:-1]) == (seen.front[0], seen.queries) else None

    def forget(self) -> None:
        """The pass has ended: no tensor is kept."""
        self._known.clear()
        self._waiting.clear()
        self.latest = self.stranger = None

    def remove_hooks(self) -> None:
        """Take the hooks off tensors."""
        for handle in self._followed:
            handle.remove()
        self._followed.clear()
