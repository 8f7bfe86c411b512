"""The form that a remedy takes for each way in which its model is called, and whether it was seen to leak the future.

Causality is behaviour (traces/causality.py). What is tried is the plain model, to choose the form, and then the model
with the remedy in place: what neither mask nor declaration tells is seen there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from depthscope.errors import CausalLeakError, UsageError
from depthscope.interventions.memory import anchor_of, continues
from depthscope.traces.beginning import tried_at_the_beginning
from depthscope.traces.caches import cache_in
from depthscope.traces.causality import Causality, causality, known_causality, places_of, rows_to_try, trial_of
from depthscope.traces.entry import run_model
from depthscope.traces.inputs import named_arguments
from depthscope.traces.signature import length_of, signature_of
from depthscope.traces.trial import Trial

MORE = 30.0  # times what moves without the remedy: less is the model's own, amplified


@dataclass(frozen=True)
class Form:
    """name: "own" or "causal". stream: what the plain model showed. leaks: whether earlier tokens see later ones."""

    name: str
    stream: Causality
    leaks: bool


class Forms:
    """Of one fix. settle(...) is called before each pass and puts the form in place that goes with it."""

    def __init__(self, fix: Any) -> None:
        self.fix = fix
        self.now: Form | None = None
        self.stream: Causality | None = None  # of the pass that runs
        self.trying = False  # a pass of ours is running
        self.way: tuple | None = None  # in which the model is called; None after tokens in a cache
        self.used: set[str] = set()
        self._found: dict[tuple, Form] = {}
        self._begun: WeakIdKeyDictionary = WeakIdKeyDictionary()  # what stands for a cache -> Form

    def settle(self, args: tuple, kwargs: dict[str, Any], axis: int) -> None:
        """Take the form for a pass with these arguments; try the model when it is called like this the first time."""
        if self.fix.is_off:
            return
        named = named_arguments(self.fix.model, args, kwargs)[0]
        self.way = None
        if continues(named):
            if self.now is None:
                self._need(Causality("unknown", "a part of the tokens is in a cache"))
                return
            self.take(
                self._begun.get(anchor_of(cache_in(named)), self.now)
            )  # the rest of a sequence: what its beginning was settled as
            return
        self.way = key = signature_of(self.fix.model, args, kwargs)
        if key not in self._found or not self._holds(key, length_of(args, kwargs, axis)):
            self._found[key] = self._settled(args, kwargs, axis, key)
        self.take(self._found[key])

    def _holds(self, key: tuple, length: int) -> bool:
        """Whether what was settled holds for this length. Processes that share a model try it together, or not at all.

        Where weights are cut over processes, each pass waits for the others, whose sequences may be shorter.
        """
        shared = any(hasattr(weight, "device_mesh") for weight in self.fix.model.parameters())
        return shared or self._found[key].stream.holds(length)

    def only(self) -> Form:
        """The form of all passes so far, for a graph that has no other."""
        if self.now is None or len(self.used) != 1:
            raise UsageError(
                f"{self.fix.remedy} must have one form in an exported graph; {type(self.fix.model).__name__} was "
                "called in ways that need different ones. Take copy.deepcopy(model), and call it as it is exported."
            )
        return self.now

    def take(self, form: Form) -> None:
        self.now, self.stream = form, form.stream
        self.fix.copies.take(form.name)
        self.used.add(form.name)

    def keep(self, cache: Any) -> None:
        """A pass has filled a cache: what comes after its tokens goes on in the same form."""
        if self.now is not None:
            self._begun[cache] = self.now

    def _settled(self, args: tuple, kwargs: dict[str, Any], axis: int, key: tuple) -> Form:
        fix, model = self.fix, self.fix.model
        mask = fix.padding.before(args, kwargs, axis)
        begun = tried_at_the_beginning(model, key, fix.blocks, axis, args, kwargs, mask)
        if begun is not None:
            stream, args, kwargs, mask = begun.stream, begun.args, begun.kwargs, begun.mask
        else:
            stream = run_model(model, lambda: known_causality(model, key, fix.blocks, axis, args, kwargs, mask))
        self.stream = stream
        fix.copies.take("own")
        name = self._need(stream)
        fix.copies.take(name)
        leak = None
        if stream.hides_future and fix.group is None:
            leak = run_model(model, lambda: self._leak(stream, axis, args, kwargs, mask))
        if leak is not None and fix.causal != "leak":
            raise CausalLeakError(self._told(*leak))
        if stream.why:
            fix.notes.append(f"taken for {stream.kind}: {stream.why}")
        return Form(name, stream, leak is not None)

    def _need(self, stream: Causality) -> str:
        """The form that a stream asks for; an error where nobody knows."""
        fix, remedy = self.fix, self.fix.remedy
        hidden = {"yes": True, "no": False, "leak": False}.get(fix.causal, stream.hides_future)
        if getattr(remedy, "causal_safe", False) or (fix.causal == "auto" and stream.kind == "open"):
            return "own"
        if fix.causal == "auto" and stream.kind == "unknown":
            raise CausalLeakError(
                f"{remedy} uses all tokens, and it is not known whether {type(fix.model).__name__} is causal: "
                f'{stream.why}. Pass causal="no" or causal="yes".'
            )
        if hidden and not hasattr(remedy, "causal_form"):
            raise CausalLeakError(
                f"{type(fix.model).__name__} is causal, and {type(remedy).__name__} does not say whether it "
                'shows tokens their future. Give it causal_safe = True if it does not, or pass causal="leak".'
            )
        return "causal" if hidden else "own"

    def _leak(
        self, stream: Causality, axis: int, args: tuple, kwargs: dict[str, Any], mask: Tensor | None
    ) -> tuple[int, int, float] | None:
        """The first token that sees later ones with the remedy in place and not without; None when there is none."""
        fix = self.fix
        if stream.kind == "causal":  # every cut is tight: the middle shows most
            cuts: list[Any] = [(tuple(fix.blocks), row, None) for row in rows_to_try(axis, args, kwargs, mask)]
        else:  # the cuts of this batch, which need not be those of the one that was tried first
            cuts = list(causality(fix.model, fix.blocks, axis, args, kwargs, mask).cuts)
        ways = [{"hold": hold} for hold in ({False, stream.held})]  # content alone, and all that flows
        for blocks, row, cut in cuts:
            for way in ways:
                with self._tried(mask, row):
                    trial = trial_of(fix.model, blocks, axis, args, kwargs, row, fix=fix, **way)
                    places = places_of(trial, mask, row)
                    at = len(places) // 2 if cut is None else cut
                    moved = _moved(trial, places, at) if trial.base and at else None
                if moved is None:
                    continue
                plain = trial_of(fix.model, blocks, axis, args, kwargs, row, **way)
                still = plain.moved(places[at:], places[:at])
                if still is None or moved[1] > MORE * float(still[0].max()):
                    return places[at], *moved
        return None

    @contextmanager
    def _tried(self, mask: Tensor | None, row: int) -> Iterator[None]:
        """While the model runs for us, nobody is told, and nothing is counted. mask: of the tokens that are tried."""
        fix = self.fix
        before, self.trying = (fix.fired, fix.on_change), True
        fix.on_change = None
        try:
            with fix.padding.on_trial(mask, row):
                yield
        finally:
            self.trying = False
            fix.fired, fix.on_change = before

    def _told(self, changed: int, token: int, size: float) -> str:
        fix, model = self.fix, type(self.fix.model).__name__
        said = ' Do not pass causal="no": the model is causal.' if fix.causal == "no" else ""
        return (
            f"{fix.remedy} at {fix.at} must show no token its future in {model}, which does not; when the tokens from "
            f"{changed} on are changed, token {token} moves by {size:.1e} of its length.{said} Use a form that sees "
            'earlier tokens only, such as DeEscalate(form="sink"), or insist with causal="leak".'
        )


def _moved(trial: Trial, places: list[int], cut: int) -> tuple[int, float] | None:
    """The first token before a cut that moves when those after it are changed, and how far."""
    moves = trial.moved(places[cut:], places[:cut])
    if moves is None or not bool((moves[0] > trial.rounding).any()):
        return None
    most = int(moves[0].argmax())
    return places[most], float(moves[0][most])
