"""The blocks that a change acts in: found before the first pass, and again where modules were replaced."""

from dataclasses import replace
from typing import Any

from depthscope.errors import HookError
from depthscope.interventions.carried import Carried
from depthscope.interventions.graphs import OneGraph
from depthscope.interventions.sites import Site
from depthscope.interventions.standing import Standing
from depthscope.traces.entry import Entry, run_model
from depthscope.traces.operations import is_norm
from depthscope.traces.slow_path import slow_path
from depthscope.traces.spans import Span
from depthscope.traces.sure_survey import sure_survey
from depthscope.traces.survey import Surveyed
from depthscope.traces.tokens import Layout


class Blocks(Carried):
    """What a handle knows of its model: the part of it that is about blocks and where their tokens lie."""

    at: str
    notes: list[str]
    graph: OneGraph | None

    def know_nothing(self) -> None:
        self.others: list[Blocks] = []  # of the other streams, where the model has several
        self.surveying = False
        self._survey: Surveyed | None = None
        self._standing: Standing  # of what was surveyed
        self._site: Site | None = None

    # what kinds of change are asked

    def site(self, spans: list[Span]) -> Site:
        """The way in which it meets the blocks."""
        raise NotImplementedError

    def like(self, entry: Entry) -> "Blocks":
        """The same change for another stream of the model."""
        raise NotImplementedError

    def unmet(self, idle: list[str]) -> str:
        """What to say when it did not act in these blocks."""
        raise NotImplementedError

    def undo(self) -> None:
        """Take the change out."""
        raise NotImplementedError

    def close(self) -> Any:
        """End the pass that runs."""
        raise NotImplementedError

    # for the handle

    def prepare(self, args: tuple, kwargs: dict) -> None:
        """Survey the model once: its streams, their blocks, and where their tokens lie.

        The change acts in the first stream; for every other one there is a change of its own. Blocks that the user
        names are changed by one, whatever streams they are of.
        """
        if self._survey is not None:
            if self._standing.holds():
                return
            self.forget()
        self.surveying = True
        try:
            with slow_path():
                entry = self.entry
                asked = entry.chosen(), args, kwargs, entry.stream
                found = run_model(self.model, lambda: sure_survey(self.model, *asked))
        finally:
            self.surveying = False
        found = found.only(self.entry.stream)
        first, *others = found.streams if self.entry.blocks is None else [found.joined()]
        named = {path for path, _ in self.model.named_modules()}
        functional = next((span.block for span in first.spans if span.block not in named), None)
        if functional is not None:
            raise HookError(
                f"blocks must hold modules to be changed; those of {type(self.model).__name__} are made of functions "
                "alone. A scan measures them; put their weights into modules to change them."
            )
        self._site = self.site(first.spans)
        lost = sorted(path for path in self.entry.chosen() or () if self._is_lost(path, first.paths))
        if lost:
            raise HookError(self.unmet(lost))
        self._site.see(args, kwargs)
        self._standing = Standing(self.model, self._site.paths())
        self._survey = first  # last, so that a pass after a refusal is refused again
        for other in others:
            self.others.append(self.like(replace(self.entry, stream=other.name)))
            self.others[-1].led = True

    def forget(self) -> None:
        """Modules were replaced since the last pass: nothing is known of the blocks any more."""
        for other in self.others:
            other.undo()
        self.others.clear()
        if self._site is not None:
            self._site.remove()
        if self.graph is not None:
            self.graph.gave_up = True  # it was made of the modules that were there
        self._survey = None
        self.notes.append(f"modules of {type(self.model).__name__} were replaced: its blocks were looked for again")

    def _is_lost(self, path: str, found: list[str]) -> bool:
        """Whether a module that the user names is no block, nor a part of one, nor a norm between them."""
        near = any(one == path or one.startswith(path + ".") or path.startswith(one + ".") for one in found)
        return not near and not is_norm(self.model.get_submodule(path))

    @property
    def prepared(self) -> bool:
        """Whether the model was surveyed."""
        return self._survey is not None

    @property
    def blocks(self) -> list[str]:
        """The paths of the blocks, as far as they are known: before the first pass, those that the user named."""
        if self._survey is not None:
            return list(dict.fromkeys(span.block for span in self._survey.spans))
        return sorted(self.entry.chosen() or ())

    @property
    def axis(self) -> int:
        """Along which axis the tokens lie."""
        return 1 if self._survey is None else self._survey.axis

    def layout(self, block: str, axes: int) -> Layout:
        """Where the tensors of a block have their tokens, of so many axes: with a batch or without."""
        known = Layout((1,), 2) if self._survey is None else self._survey.layouts[block]
        if {axes, known.channels + 1} <= {2, 3} and known.channels + 1 != axes:
            return Layout((axes - 2,), axes - 1)
        return known

    def check_width(self, block: str, width: int) -> None:
        """Refuse to act on a tensor that is not what the survey saw at the end of a block."""
        known = width if self._survey is None else self._survey.widths.get(block, width)
        if width != known:
            raise HookError(
                f"the tokens of {block} must have {known} channels, as in the survey; got {width} along that axis. The "
                f"model turns them at {self.at!r}. Use another site, or blocks= with modules that are called."
            )
