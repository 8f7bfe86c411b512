"""Replay: passes over one batch in which some blocks are left out, moved, or answered from what is known.

A plan says which block runs at each place: its own number, another's, or None for none at all. As long as a plan begins
as the pass that was stored, its blocks are not computed: they give what they gave then. So a pass without block l costs
the blocks after l alone, and to price all L blocks costs (L - 1) / 2 passes and the one that is stored.

Of a block that is a module the forward function is set aside for the pass, so that the model around it does what it
does with the layer left out of the list. A block that is no module runs, and its branches do not join the stream.
Blocks that take more from earlier ones than their tokens (values of the first block, in a cache of the pass) would
miss it where those answer. That is tried once (`answers_suffice`); where it is so, every pass computes all its blocks.
Memory: what every block was given and gave, O(L n d).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthscope.circuits.subject import Subject
from depthscope.errors import ForwardError, HookError, UsageError
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
    """The arguments of a block in the stored pass, all that it gave, and which part of that are the tokens."""

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
    """The passes of one batch. given, gave: the tokens (B, n, d) of every block in the stored pass, in the model's own
    axes; what a block gave need not be what the next is given (scalars, norms and long skips between blocks).
    reuse: whether leading blocks may answer from what they gave."""

    def __init__(self, subject: Subject, *, reuse: bool = True) -> None:
        self.subject = subject
        self.reuse = reuse
        self.model, self.depth = subject.model, len(subject.spans)
        self.are_modules = all(span.entry == span.exit for span in subject.spans)
        self.places: dict[str, list[int]] = {}  # of a module that is called several times, as ALBERT's
        for place, span in enumerate(subject.spans):
            self.places.setdefault(span.entry, []).append(place)
        self.known: list[Known] = []
        self.given: list[Tensor] = []
        self.gave: list[Tensor] = []
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
        self.given, self.gave = ([torch.empty(0)] * self.depth for _ in range(2))
        self.stored_plan = ()
        output = self._run(Running(chosen, 0, store=True))
        missing = [i for i, state in enumerate(self.gave) if not state.numel()]
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
        return self._run(Running(plan, 0 if from_start else self._stored(same), on_block))

    def run_from(self, place: int, listener: StreamListener) -> Any:
        """The stored plan, with the blocks from a place on computed under the ear of a listener."""
        with following(self.model, self.subject.spans, listener):
            return self._run(Running(self.stored_plan, self._stored(place)))

    def answers_suffice(self) -> bool:
        """Whether blocks take nothing but tokens from earlier ones: with these answering, they give the same again.

        Tried from the middle on and with the last block alone, for half a pass and a block.
        """
        same: list[bool] = []

        def compare(place: int, given: Tensor, gave: Tensor) -> None:
            same.append(torch.equal(gave, self.gave[place]))

        try:
            for first in {self.depth // 2, self.depth - 1} if self.are_modules else ():
                self._run(Running(self.stored_plan, first, compare))
        except ForwardError:  # it looked for what is not there
            return False
        return all(same)

    def _stored(self, leading: int) -> int:
        """How many blocks answer, of those that do as in the stored pass."""
        return leading if self.are_modules and self.reuse else 0

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
            if place < running.stored:
                return self._answer(place, self.gave[place].clone())
            # blocks may write into what they are given
            before = given.clone() if running.store or running.on_block is not None else given
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
        self.given[place], self.gave[place] = before, known.tokens.clone()

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
            self.replay.given[self.place], self.replay.gave[self.place] = self.given, tokens.clone()
        elif self.running.on_block is not None and not left_out:
            self.running.on_block(self.place, self.given, tokens)
