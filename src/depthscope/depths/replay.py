"""Replay: passes over one batch in which some blocks are left out, moved, or answered from what is known.

A plan says which block runs at each place: its own number, another's, or None for none at all. As long as a plan begins
as the pass that was stored, its blocks are not computed: they give what they gave then. So a pass without block l costs
the blocks after l alone, and to price all L blocks costs (L - 1) / 2 passes and the one that is stored.

Of a block that is a module the forward function is set aside for the pass, so that the model around it does what it
does with the layer left out of the list. A block that is no module runs, and its branches do not join the stream.
Memory: the L + 1 states of the batch, O(L n d).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthscope.circuits.subject import Subject
from depthscope.errors import HookError, UsageError
from depthscope.traces.entry import run_model
from depthscope.traces.events import Join, Passage, StreamListener
from depthscope.traces.follower import following
from depthscope.traces.places import tokens_gave, tokens_given
from depthscope.traces.survey import evaluated
from depthscope.traces.tokens import replaced
from depthscope.traces.untouched import untouched

Plan = tuple[int | None, ...]
OnBlock = Callable[[int, Tensor, Tensor], None]  # the place, tokens given and tokens gave


@dataclass
class Known:
    """What a block was given and gave in the stored pass; other: what it gives beside its tokens."""

    args: tuple
    kwargs: dict[str, Any]
    gave: Any
    tokens: Tensor


@dataclass
class Running:
    """A pass that is under way."""

    plan: Plan
    stored: int  # so many leading blocks answer from what is known
    on_block: OnBlock | None = None
    calls: Counter[str] = field(default_factory=Counter)
    store: bool = False


class Replay:
    """The passes of one batch. states: the L + 1 states of the stored pass, (B, n, d) in the model's own axes."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.model, self.depth = subject.model, len(subject.spans)
        self.are_modules = all(span.entry == span.exit for span in subject.spans)
        self.places: dict[str, list[int]] = {}  # of a module that is called several times, as ALBERT's
        for place, span in enumerate(subject.spans):
            self.places.setdefault(span.entry, []).append(place)
        self.known: list[Known] = []
        self.states: list[Tensor] = []
        self.stored_plan: Plan = ()
        self.blocks_run = 0

    @property
    def whole(self) -> Plan:
        return tuple(range(self.depth))

    def without(self, *places: int, of: Plan | None = None) -> Plan:
        """A plan with nothing at some places."""
        return tuple(None if i in places else block for i, block in enumerate(of or self.whole))

    def swapped(self, place: int) -> Plan:
        """A plan with a block and the next one in each other's place."""
        plan = list(self.whole)
        plan[place], plan[place + 1] = plan[place + 1], plan[place]
        return tuple(plan)

    def store(self, plan: Plan | None = None) -> Any:
        """Run by a plan, keep the states, and give back what the model gives; the first time the plan is the whole."""
        chosen = self.whole if plan is None or not self.known else plan
        if not self.known:
            self.known = [Known((), {}, None, torch.empty(0))] * self.depth
        self.states = [torch.empty(0)] * (self.depth + 1)
        self.stored_plan = ()
        output = self._run(Running(chosen, 0, store=True))
        missing = [i for i, state in enumerate(self.states) if not state.numel()]
        if missing:
            raise HookError(
                f"every block must be given tokens and give them back; {self.subject.name} did not at place "
                f"{missing[0]}. Name the blocks by blocks=."
            )
        self.stored_plan = chosen
        return output

    def run(self, plan: Plan, *, on_block: OnBlock | None = None, from_start: bool = False) -> Any:
        """What the model gives by a plan. on_block is told of the blocks that are computed. from_start: all of them."""
        pairs = zip(plan, self.stored_plan, strict=True)
        same = next((i for i, (now, then) in enumerate(pairs) if now != then), self.depth)
        return self._run(Running(plan, same if self.are_modules and not from_start else 0, on_block))

    def run_from(self, place: int, listener: StreamListener) -> Any:
        """The stored plan, with the blocks from a place on computed under the ear of a listener."""
        stored = place if self.are_modules else 0
        with following(self.model, self.subject.spans, listener):
            return self._run(Running(self.stored_plan, stored))

    def _run(self, running: Running) -> Any:
        with ExitStack() as quiet:
            for one in (untouched(self.model), evaluated(self.model), torch.no_grad(), self._acting(running)):
                quiet.enter_context(one)
            return run_model(self.model, lambda: self.subject.batch.run(self.model))

    def _acting(self, running: Running) -> Any:
        if self.are_modules:
            return self._set_aside(running)
        if any(block not in (None, i) for i, block in enumerate(running.plan)):
            raise UsageError(
                f"blocks must be modules to change places; those of {self.subject.name} are not. Put each into one."
            )
        return following(self.model, self.subject.spans, _Unjoined(self, running))

    @contextmanager
    def _set_aside(self, running: Running) -> Iterator[None]:
        """The forward functions of the blocks are others for a while."""
        modules = {path: self.model.get_submodule(path) for path in self.places}
        own = {path: vars(module).get("forward") for path, module in modules.items()}
        bodies = {path: module.forward for path, module in modules.items()}
        try:
            for path, module in modules.items():
                vars(module)["forward"] = self._forward(path, bodies, running)
            yield
        finally:
            for path, module in modules.items():
                if own[path] is None:
                    vars(module).pop("forward", None)
                else:
                    vars(module)["forward"] = own[path]

    def _forward(self, path: str, bodies: dict[str, Callable[..., Any]], running: Running) -> Callable[..., Any]:
        module = self.model.get_submodule(path)

        def forward(*args: Any, **kwargs: Any) -> Any:
            place = self.places[path][running.calls[path] % len(self.places[path])]
            running.calls[path] += 1
            given = tokens_given(module, args, kwargs)
            if given is None:
                return bodies[path](*args, **kwargs)
            before = given.clone() if running.store else given
            if place < running.stored:
                return self._answer(place, self.states[place + 1].clone())
            block = running.plan[place]
            if block is None:
                gave = self._answer(place, given)
                tokens = given
            else:
                if block != place:
                    args, kwargs = self._at_home(place, block, given, args, kwargs)
                self.blocks_run += 1
                gave = bodies[self.subject.spans[block].entry](*args, **kwargs)
                found = tokens_gave(module, gave, tuple(given.shape))
                if found is None:
                    return gave
                tokens = found
            if running.store:
                self._keep(place, Known(args, kwargs, gave, tokens), before)
            elif running.on_block is not None and block is not None:
                running.on_block(place, before, tokens)
            return gave

        return forward

    def _keep(self, place: int, known: Known, before: Tensor) -> None:
        if self.known[place].gave is None:
            self.known[place] = known
        self.states[place], self.states[place + 1] = before, known.tokens.clone()

    def _answer(self, place: int, tokens: Tensor) -> Any:
        """Tokens in the form in which the block of this place gives them."""
        known = self.known[place]
        return tokens if known.gave is None else replaced(known.gave, known.tokens, tokens)

    def _at_home(self, place: int, block: int, given: Tensor, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """What a block gets in another's place: its own kind of mask, the pass's tokens and caches."""
        here, home = self.known[place], self.known[block]
        mine = tokens_given(self.model.get_submodule(self.subject.spans[block].entry), home.args, home.kwargs)

        def chosen(now: Any, here: Any, home: Any) -> Any:
            return now if now is given or home is mine or here is home else home

        if len(args) != len(home.args) or kwargs.keys() != home.kwargs.keys():
            return args, kwargs
        moved = tuple(chosen(*three) for three in zip(args, here.args, home.args, strict=True))
        return moved, {name: chosen(kwargs[name], here.kwargs[name], home.kwargs[name]) for name in kwargs}


class _Unjoined(StreamListener):
    """Blocks that are no modules: at some places no branch joins the stream."""

    def __init__(self, replay: Replay, running: Running) -> None:
        self.replay, self.running = replay, running
        self.place = -1
        self.given = torch.empty(0)

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        self.place += 1
        self.given = tokens.clone()
        return tokens

    def join(self, now: Passage, join: Join) -> Any:
        if self.running.plan[self.place] is None and join.is_of_branch:
            return join.stream_alone()
        return join.run()

    def ends(self, now: Passage, tokens: Tensor | None) -> None:
        if tokens is None:
            return
        left_out = self.running.plan[self.place] is None
        if left_out and not torch.equal(tokens, self.given):
            raise HookError(
                f"a block must be a module to be left out when something follows its last sum; {now.block} of "
                f"{self.replay.subject.name} has a norm there. Put the block into a module."
            )
        self.replay.blocks_run += not left_out
        if self.running.store:
            self.replay.states[self.place], self.replay.states[self.place + 1] = self.given, tokens.clone()
        elif self.running.on_block is not None and not left_out:
            self.running.on_block(self.place, self.given, tokens)
