"""A remedy in place: what fix_ returns."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.interventions.graphs import settings_of
from depthscope.interventions.group import check_whole
from depthscope.interventions.handle import Handle
from depthscope.interventions.memory import Memory, continues, most_remembered, name_in, tokens_in, without_segments
from depthscope.interventions.pass_padding import Glanced, Watching
from depthscope.interventions.passes import Pass
from depthscope.interventions.sites import Site
from depthscope.remedies.compiling import Compiling
from depthscope.remedies.forms import Form, Forms
from depthscope.remedies.paddings import Paddings
from depthscope.remedies.placement import placed
from depthscope.remedies.remedy import Remedy
from depthscope.remedies.saving import no_longer_tell, save_fixes, tell_when_saved
from depthscope.remedies.sites import site_of
from depthscope.remedies.value_remedy import ValueRemedy
from depthscope.remedies.weight_remedy import WeightRemedy
from depthscope.traces.attention import Hidden
from depthscope.traces.cut_weights import WHOLE, computes_in_parts, is_cut, shared_with
from depthscope.traces.entry import Entry
from depthscope.traces.inputs import named_arguments
from depthscope.traces.spans import Span
from depthscope.traces.watcher import Watcher, unwatched


class Fix(Handle):
    """A remedy in place. A context manager; undo() takes it out again and the model computes as before."""

    called = "fix_"
    keeps = ("at", "asked", "causal", "mask", "copies")
    shares = ("group",)

    def __init__(self, entry: Entry, remedy: nn.Module, at: str, causal: str, group: Any, mask: Any) -> None:
        self.at, self.causal, self.group, self.mask = at, causal, group, mask
        self.asked = replace(entry, wrappers=[])
        if next(remedy.parameters(), None) is not None or at in ("weights", "values"):  # places that last: known now
            entry = replace(entry, blocks=entry.names(), stream=None)
        self.copies = placed(entry.model, remedy, at, list(entry.blocks or ()))
        super().__init__(entry)

    def set_up(self) -> None:
        entry = self.entry
        self._looked_at: set[str] = set()
        self.memory = Memory(name_in(entry.model, type(self.copies.plain).__name__, self.at), self.group is not None)
        self.forms = Forms(self)
        self.padding = Paddings(self, self.mask)
        self.compiling = Compiling(self, settings_of(entry.model, entry.wrappers))
        self._latest: Form | None = None  # in use, while a block runs again in the form of its own pass
        self.along: list[Fix] = []  # fixes that were put back with it, from the same file
        super().set_up()
        tell_when_saved(self.model)

    def __repr__(self) -> str:
        return f"{self.remedy} at {self.at}{' (LEAKS the future)' * self.leaks}"

    @property
    def remedy(self) -> Any:
        """The remedy, in the form that is used; where it learns, what it started as."""
        return self.copies.one

    @property
    def is_off(self) -> bool:
        return getattr(self.remedy, "is_off", False)

    @property
    def remembers(self) -> bool:
        """Whether it must know of the tokens in a cache."""
        return not self.is_off and not isinstance(self.remedy, WeightRemedy | ValueRemedy)

    @property
    def leaks(self) -> bool:
        """Whether tokens are shown their future, because the user insisted: as measured, where a pass has told."""
        now = None if self.asleep else self.forms.now
        if now is not None and self.group is None and now.stream.kind != "unknown":
            return now.leaks
        return self.causal == "leak" and not getattr(self.remedy, "causal_safe", False)

    @property
    def hidden(self) -> Hidden:
        """What no query sees in the pass that runs: the future, where the stream was seen to be causal; padding."""
        stream = self.forms.stream
        return Hidden(stream is not None and stream.kind == "causal", self._pass.padding.named if self._pass else None)

    def undo(self) -> None:
        """Take the remedy out, and what it has learned with it."""
        super().undo()
        self.copies.remove()
        no_longer_tell(self.model)
        for one in reversed(self.along):
            one.undo()

    def describe(self) -> dict[str, Any]:
        """The fix as plain data, which fix_ accepts in place of a remedy; what was learned is in the state dict."""
        given = self.copies.plain  # not the form that the last pass needed: the next may need another
        settings = getattr(given, "settings", None)
        if settings is None:
            raise UsageError(f"{self.called}: {type(given).__name__} has no settings() and cannot be described.")
        return {
            "remedy": type(given).__name__,
            "settings": settings(),
            "at": self.at,
            # streams are found again, each in its own form
            "blocks": None if self.others or self.entry.stream else list(self.blocks) or None,
            "stream": self.entry.stream,
            "causal": self.causal,
        }

    def save(self, folder: str | Path) -> Path:
        """Write all fixes of the model beside its weights, depthscope.json; ds.fix_(model, folder) puts them back."""
        return save_fixes(self.model, folder)

    # before the first pass

    def prepare(self, args: tuple, kwargs: dict) -> None:
        """Survey the model once, and settle the form of the remedy for each way in which the model is called."""
        if self.forms.trying:
            return
        args, kwargs = without_segments(args, kwargs)
        super().prepare(args, kwargs)
        self.forms.settle(args, kwargs, self.axis)

    def forget(self) -> None:
        super().forget()
        self.forms = Forms(self)
        if self.copies.child is None or self.at == "weights":  # matrices are looked for by their site
            return
        now = self.asked.names()
        if not self.copies.are_at(now):
            raise UsageError(
                f"{self.remedy} has a copy for each of the blocks that it was made for; "
                f"{type(self.model).__name__} has {len(now)} now, and not the same. Undo the fix and call fix_ again."
            )

    def site(self, spans: list[Span]) -> Site:
        self.memory.blocks = len(spans)
        return site_of(self.at)(self, spans)

    def like(self, entry: Entry) -> "Fix":
        if self.mask is not None:
            raise UsageError(
                "mask= counts the tokens of one stream; the model has several. Name the stream, stream=, or pass a fix "
                "for each with its own mask."
            )
        return Fix(entry, self.copies.plain, self.at, self.causal, self.group, None)

    # one forward pass

    def opened(self, args: tuple, kwargs: dict) -> Pass:
        given, arguments = (*args, *kwargs.values()), named_arguments(self.model, args, kwargs)[0]
        if not self.forms.trying:
            super().prepare(*without_segments(args, kwargs))  # the memory must know how many blocks there are
        past = self.memory.recall(given, arguments, self.remedy) if self.remembers else None
        self.prepare(args, kwargs)
        cached = tokens_in(arguments)
        padding, window = self.padding.of_pass(args, kwargs, continues(arguments)), most_remembered(self.model)
        known = self.compiling.knows(self.forms.way) and not self.forms.trying
        whole = padding.named is None or bool(padding.named.all())  # the graph knows no padding
        outside = past is not None or bool(window)  # sums over tokens are kept outside of the graph
        may_compile = known and whole and not outside and not self.is_off
        if may_compile and isinstance(padding, Watching):  # asked where no graph can be made
            padding = Glanced(padding.named, padding.look)
        found = Pass(padding, past, cached, window, arguments, form=self.forms.now, way=self.forms.way)
        found.may_compile = may_compile
        if isinstance(padding, Watching) and not self.is_off:
            found.paths.enter_context(Watcher(padding))
        if not self.is_off:
            found.paths.enter_context(self.memory.taken(given))
        return found

    def exported(self, args: tuple, kwargs: dict) -> Pass:
        found = super().exported(args, kwargs)
        if not self.is_off:
            found.form, found.padding = self.forms.only(), self.padding.in_graph(args, kwargs)
        return found

    def enters(self, block: str) -> None:
        super().enters(block)
        if self._pass is not None:
            self._pass.padding.begins()

    def resumes(self, again: Pass) -> None:
        super().resumes(again)
        self._latest = self.forms.now
        if again.form is not None:  # of a remedy that is off there is none
            self.forms.take(again.form)

    def leaves(self) -> None:
        super().leaves()
        if self._latest is not None:
            self.forms.take(self._latest)

    def ended(self, done: Pass, output: Any) -> None:
        self.compiling.saw(done)
        self.padding.saw(done.padding)
        cache = self.memory.keep(done.arguments, output, done.sums)
        if cache is not None:
            self.forms.keep(cache)

    def unmet(self, idle: list[str]) -> str:
        met = self._site.sites_met() if self._site else []
        return (
            f"{self.remedy} must act in every block; in {', '.join(idle[:3]) or 'no block'} of "
            f"{type(self.model).__name__} {self.at!r} was not met. They have {', '.join(met)}."
        )

    def fixed(self, block: str, tokens: Tensor) -> Tensor:
        self.fires(block)
        self._check_parts(block, tokens)
        now = self._pass or Pass()
        layout = self.layout(block, tokens.ndim)
        if self.at == "block_out":
            self.check_width(block, tokens.shape[layout.channels])
        X = layout.split(tokens)
        X = X if X.ndim > 2 else X.unsqueeze(0)  # one sequence without a batch
        mask, remedy = self._mask_of(X, now), self.copies[block]
        with unwatched():
            if isinstance(remedy, Remedy):
                stretch = now.stretch(mask, self.group)
                Y = remedy(X, stretch=stretch)
                now.sums.append(stretch.now)
            else:
                Y = remedy(X) if mask is None else remedy(X, mask=mask)
        new = layout.joined(Y if tokens.ndim > 2 else Y.squeeze(0), tuple(tokens.shape))
        if self.on_change is not None and not now.is_rerun:
            self.on_change(tokens, new)
        return new

    def _check_parts(self, block: str, tokens: Tensor) -> None:
        """Once for each block: where processes compute parts of a pass, its tokens must be all of them, or group= said.

        All processes are here together, with the same question.
        """
        if block in self._looked_at or self.model in WHOLE:
            return
        self._looked_at.add(block)
        if (self.group is None or is_cut(tokens)) and computes_in_parts(self.model):
            check_whole(tokens, shared_with(self.model))

    def _mask_of(self, X: Tensor, now: Pass) -> Tensor | None:
        """The mask (B, n) of the tokens at hand, None where all count."""
        found = now.padding_of(X)
        if found.note and found.note not in self.notes:
            self.notes.append(found.note)
        mask = found.mask
        if self.group is None and mask is not None and not now.in_graph and bool(mask.all()):
            mask = None
        return mask
