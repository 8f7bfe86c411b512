"""A forward pass written down: which modules ran, which token tensors they handed on, what was added to what.

Each tensor worth measuring is given to a callback the moment it is seen and then let go, so a recorder keeps numbers
and no activations. What is a block is decided afterwards, from the log (blocks.py, steps.py).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.traces.after_blocks import AfterBlocks
from depthscope.traces.attention import AttentionSeen, drops, without_dropout
from depthscope.traces.flow import Flow
from depthscope.traces.followed import followed_modules
from depthscope.traces.lineage import Lineage
from depthscope.traces.log import Add, Attention, Call, Log, OpenCalls, length_of
from depthscope.traces.modules import held, modules_in
from depthscope.traces.nests import tensors_in
from depthscope.traces.nodes import REMEDY, Given, Sizes
from depthscope.traces.operations import PAIRS, Operation, is_norm, is_scalar
from depthscope.traces.patterns import SHOWN, Patterns
from depthscope.traces.placing import is_over_memory, placed
from depthscope.traces.seen_states import Measure, SeenStates
from depthscope.traces.token_axis import Frames
from depthscope.traces.tokens import first_tokens, tokens_out
from depthscope.traces.watcher import OuterNorms, Watched, unasked

LISTS = nn.ModuleList | nn.ModuleDict
MeasureAttention = Callable[[AttentionSeen, Tensor | None], Any]  # the attention, the tokens (B, n, d) it reads


class Recorder:
    """A listener that writes a Log of one forward pass."""

    def __init__(
        self,
        model: nn.Module,
        candidates: set[str],
        on_state: Measure,
        on_attention: MeasureAttention,
        *,
        frames: Frames | None = None,
        silence_dropout: bool = False,
        wanted: Iterable[int] = (),
        on_call: Callable[[int], None] | None = None,
    ) -> None:
        self.model, self.candidates = model, candidates
        self.on_attention = on_attention
        self.silence_dropout, self.on_call = silence_dropout, on_call
        self._tick: Callable[[], int] = count(1).__next__  # a clock
        self.wanted = frozenset(wanted)  # nodes that are the ends of blocks, where an earlier pass has told
        self.log = Log(Flow(self._tick), frames=Frames() if frames is None else frames)
        self.states = SeenStates(on_state, self.log.frames, self.log.flow, self._tick)
        self._stack = OpenCalls()
        self._norms = OuterNorms(unasked(self._norm_ends))
        self._lineage = Lineage()
        self._patterns = Patterns()
        self._bias: Tensor | None = None
        self._head = AfterBlocks(self.log, self._tick)
        self._norm_paths: dict[nn.Module, str] = {}

    everything = True  # what is computed from what tells the stream

    def modules(self) -> Iterable[Watched]:
        """Candidates and norms; parts of lists that nobody calls, for their paths; what may read a pooled vector."""
        with held(self.model):
            return list(self._chosen_modules())

    def _chosen_modules(self) -> Iterator[Watched]:
        followed = dict(followed_modules(self.model))
        blocks = tuple(path + "." for path in self.candidates)
        for path, module in modules_in(self.model).items():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks of this kind
            if is_norm(module) and path not in self.candidates:
                self._norm_paths[module] = path
                yield self._norms.watched(module)
            elif path in followed or (path in self.candidates and not isinstance(module, LISTS)):
                yield Watched(module, unasked(self.before(path)), unasked(self.after(path)))
            yield from self._head.watched(path, module, inside=path.startswith(blocks))

    def closed(self, failed: bool) -> None:
        if not failed:
            self.log.fetch_biases()
            self.states.measure_waiting(assume=not self.log.frames)
        self.states.forget()
        self.log.flow.forget()
        self._lineage.end()
        self._patterns.close()

    def before(self, path: str) -> Callable[..., None]:
        candidate = path in self.candidates

        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            if not path:
                self.log.flow.starts(args, kwargs)
            known = [t for t in tensors_in((*args, *kwargs.values())) if self._meet(t)] if self.wanted else []
            self.log.flow.enters(path, args, kwargs)
            call = Call(path, self._tick())
            if candidate:
                tokens = known[0] if known else first_tokens(args, kwargs)
                if tokens is not None:
                    call.source = self.states.see(tokens, path, whole=True)
            self._stack.push(call, candidate=candidate)

        return hook

    def after(self, path: str) -> Callable[..., None]:
        candidate = path in self.candidates

        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            call = self._stack.pop(path)
            self.log.flow.leaves(path, output)
            for tensor in tensors_in((output,)) if self.wanted else ():
                self._meet(tensor)
            call.left = self._tick()
            if candidate:
                tokens = tokens_out(output, call.source.shape) if call.source is not None else None
                if tokens is not None:
                    call.result = self.states.see(tokens, path, whole=True)
                    self.log.calls.append(call)
                    if self.on_call is not None:
                        self.on_call(len(self.log.calls))
                if self._stack.between:
                    self.states.measure_waiting(assume=not self.log.frames)
                    self._patterns.end()

        return hook

    def _norm_ends(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        source = first_tokens(args, kwargs)
        value = source if source is not None else next(iter(args), None)
        made = next(tensors_in((output,)), None)
        name = f"norm {self._norm_paths[module]}"
        self.log.flow.form(value, made, name)
        if isinstance(weight := getattr(module, "weight", None), Tensor):
            self.log.flow.widths[name] = weight.numel()
        self._meet(made)
        self._head.given_to_weights(getattr(module, "weight", None), value)
        self._norm(source, output, self._stack.path)

    def remedied(self, before: Tensor, after: Tensor) -> None:
        """A remedy has put one tensor in the place of another."""
        if after is not before:
            self.log.flow.form(before, after, REMEDY)
            self._meet(after)
            leads = self.states.find(before) is not None
            self.log.remedies.append(self._move(before, after, self._stack.path, first=False, leads=leads))

    def _move(self, source: Tensor, result: Tensor, path: str, *, first: bool, leads: bool) -> Call:
        """One tensor became another, by a norm or a remedy. first: attention may read the source too."""
        call = Call(path, self._tick())
        call.source = self.states.see(source, path, whole=self._stack.between, leads=leads and first)
        call.result = self.states.see(result, path, whole=self._stack.between, leads=leads)
        call.left = self._tick()
        return call

    def operation(self, op: Operation) -> Any:
        """A torch function: what it is computed from, and what it does to a stream. In a norm it is a part of it."""
        if self._norms.open:
            return self._acts(op)
        given = self.log.flow.asked(op)
        weights = self._patterns.asked(op) if self._patterns.active else None
        if op.role is None and not self._lineage.active:  # as most functions: a view, an activation
            result = op.run()
            self.log.flow.ran(op, given, result)
        else:
            result = self._acts(op, given)
        seen = self._patterns.follow(op, result, weights) if weights else None
        if seen is not None:
            self._attention(seen, result)
        if self.wanted:
            for tensor in tensors_in((op.args[0] if result is None and op.name == "__setitem__" else result,)):
                self._meet(tensor)
        return result

    def _meet(self, tensor: Any) -> bool:
        """Whether a tensor is the end of a block, which is measured."""
        wanted = bool(self.wanted) and self.log.flow.find(tensor) in self.wanted
        if wanted:
            self.states.see(tensor, self._stack.path, whole=True)
        return wanted

    def _acts(self, op: Operation, given: Given | None = None) -> Any:
        """given: its arguments in the flow; None inside a norm."""
        role = op.role
        if role in PAIRS:
            return self._pair(op, given)
        if role == "norm" and self._norms.open:
            return op.run()
        made = self._lineage.asked(op) if self._lineage.active else ()
        dropped = role in ("dropout", "attention") and drops(op)
        self.log.dropout |= dropped
        result = without_dropout(op) if dropped and self.silence_dropout else op.run()
        self.log.flow.ran(op, given, result)
        if role in ("matrix", "weights"):
            self._matrix(op)
            self._patterns.matrix_gave(result)
        elif role == "norm":
            self._norm(op.named().get("input"), result, self._stack.path)
        elif role in SHOWN:
            seen = self._patterns.seen(op, result, self.states.latest)
            if seen is not None:
                self._attention(seen, result)
        if made:
            self._lineage.follow(op, result, made)
        return result

    def _pair(self, op: Operation, given: Given | None) -> Any:
        """A sum or a product: of states that are known, or on the way from attention to one."""
        pair = op.args[:2]
        known = [self.states.find(a) for a in pair]
        made = self._lineage.asked(op)
        result = op.run()
        self.log.flow.ran(op, given, result)
        if op.role == "product":
            self._product(pair, known, result)
        elif any(known) and all(isinstance(a, Tensor) and a.shape == result.shape for a in pair):
            self._sum(known, result, float(op.kwargs.get("alpha", 1.0)))
            return result
        if made:
            self._lineage.follow(op, result, made)
        return result

    def _sum(self, known: list, result: Tensor, alpha: float) -> None:
        block = self._stack.source
        # a memory of before the block, with its positions on it, is not what attention reads next
        of_block = block is None or any(k is not None and k[0].order >= block.order for k in known)
        state = self.states.new(result, self._stack.path, whole=self._stack.between, leads=of_block)
        self._patterns.end()
        first, second = (k or (None, 1.0) for k in known)
        operands = [first, (second[0], alpha * second[1])]
        bias = 0.0 if self._bias is None else length_of(self._bias)
        self.log.adds.append(Add(self._stack.path, state.order, operands, state, bias, self._lineage.mixed))
        self._lineage.end()

    def _norm(self, source: Any, result: Any, path: str) -> None:
        """A norm, module or function, of the tokens of the block around it, not of queries and keys."""
        if not isinstance(source, Tensor) or not self._is_stream(source):
            return
        tokens = tokens_out(result, tuple(source.shape))
        if tokens is not None:
            leads = self._stack.between or self.states.find(source) is not None  # a norm of something else is no stream
            self.log.norms.append(self._move(source, tokens, path, first=True, leads=leads))
            self._bias = None

    def _is_stream(self, tokens: Tensor) -> bool:
        block = self._stack.source
        return tokens.ndim == 3 if block is None else tuple(tokens.shape) == block.shape

    def _product(self, pair: tuple, known: list, result: Any) -> None:
        """A state times a number is that state, scaled (DeepNorm's alpha); a branch that is scaled forgets its bias."""
        if not any(known) and isinstance(result, Tensor) and result.ndim >= 3:
            self._bias = None
        for entry, other in zip(known, pair[::-1], strict=False):
            if entry is not None and is_scalar(other) and tuple(result.shape) == entry[0].shape:
                self.states.scale(result, entry[0], entry[1] * float(other))

    def _matrix(self, op: Operation) -> None:
        self.log.matrices.append(self._tick())
        call = op.named()
        bias, latest = call.get("bias"), self.states.latest
        self.states.read_by_matrix(call.get("input"))
        block = self._stack.source
        self._patterns.reads_memory |= block is not None and self.states.is_older(call.get("input"), block)
        self._head.given_to_weights(call.get("weight"), call.get("input"))
        fits = isinstance(bias, Tensor) and latest is not None and bias.shape == latest.shape[-1:]
        self._bias = bias if fits else None

    def _attention(self, seen: AttentionSeen, result: Any) -> None:
        """Attention was seen in the function that gave this result."""
        self.log.flow.attends(result, Sizes(seen.front, seen.queries, seen.keys))
        self.log.keys.add(self._tick(), seen)
        self._lineage.begin(result)
        tokens, older = self.states.latest, self._patterns.reads_memory
        self._patterns.reads_memory = False
        if seen.queries < 2:
            return  # a token by itself, beside the tokens
        found = placed(seen, tokens, reads_memory=older, batch_first=self.log.frames.batch_first)
        if found is None or tokens is None:
            self.log.other_attention += tokens is None or is_over_memory(seen, tokens)
            return
        X = None if found.kind in ("window", "cross") else self.states.read_by(found)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            numbers = self.on_attention(found, X)
        node = self.log.flow.find(result)
        self.log.attentions.append(
            Attention(self._stack.path, self._tick(), seen.queries, numbers, found.kind, found.sink, node)
        )
