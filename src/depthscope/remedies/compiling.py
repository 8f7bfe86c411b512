"""When a remedy may be compiled in one graph with its model: which ways of calling were seen to allow it."""

from typing import Any

from depthscope.interventions.graphs import InGraph, OneGraph
from depthscope.interventions.pass_padding import Watching
from depthscope.interventions.passes import Pass
from depthscope.interventions.sites import AtEnds
from depthscope.remedies.remedy import Remedy
from depthscope.traces.installed import fixes_in


class Compiling:
    """Of one fix. settings: of torch.compile, None where the model is not compiled as a whole.

    A remedy must be a plain function of the tokens in the graph: at block_out, in a way of calling that was seen
    eagerly, whose attention takes no mask, so that no token can be padding.
    """

    def __init__(self, fix: Any, settings: dict[str, Any] | None) -> None:
        self.fix, self.settings = fix, settings
        self._without_masks: set[Any] = set()  # ways of calling whose attention takes no mask

    def knows(self, way: Any) -> bool:
        """Whether a pass in this way may be compiled."""
        return self.fix.graph is not None and way in self._without_masks

    def saw(self, done: Pass) -> None:
        """An eager pass has ended: did its attentions take masks? If not, prepare to compile the next."""
        fix, seen = self.fix, done.padding
        if self.settings is None or not isinstance(seen, Watching) or seen.masked or not seen.heard:
            return
        site = fix._site
        plain = fix.at == "block_out" and isinstance(site, AtEnds) and site.bare and not site.open
        layouts = all(fix.layout(block, 3) == ((1,), 2) for block in fix.blocks)
        if not plain or not layouts or fix.group is not None or not all(isinstance(r, Remedy) for r in fix.copies):
            return
        self._without_masks.add(done.way)
        if fix.graph is None:
            fix.graph = OneGraph(fix.model, self.settings, self._allowed, self._failed)
            fix._undo.callback(fix.graph.remove)
            for span in dict.fromkeys(site.spans):
                module = fix.model.get_submodule(str(span.exit))
                fix._undo.callback(module.register_forward_hook(InGraph(fix, fix.copies, span.block)).remove)

    def _allowed(self) -> bool:
        """Whether the pass that runs is to be compiled; then the remedy has acted in all blocks."""
        fix, now = self.fix, self.fix.running
        if now is None or not now.may_compile or fix.on_change is not None or fixes_in(fix.model) != [fix]:
            return False
        now.entered.update(fix.blocks)
        now.fired.update(fix.blocks)
        fix.fired += len(fix._site.spans)
        return True

    def _failed(self, why: str) -> None:
        fix = self.fix
        fix.fired -= len(fix._site.spans)  # counted as the graph began; the eager pass counts again
        fix.notes.append(f"{type(fix.model).__name__} runs eagerly with {fix.remedy}: not one graph ({why})")
