"""without_: a model whose blocks run without some of their parts, in place and undoable (Dong et al. 2021)."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from depthscope.errors import UnknownNameError, UsageError
from depthscope.registry import unknown
from depthscope.remedies._fix import Fix
from depthscope.remedies._sites import Site, refuse_checkpointing
from depthscope.traces.blocks import blocks_by_name
from depthscope.traces.cut import PARTS, Cut, Cutting
from depthscope.traces.known import fixes_in
from depthscope.traces.look import Span

MEANS = {"skips": ("attention_skip", "ffn_skip"), **{part: (part,) for part in PARTS}}  # what users may name


class Parts(nn.Module):
    """What is taken out of every block, by the names that were given."""

    causal_safe = True  # no token sees more than before

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        self.parts = frozenset(part for name in names for part in MEANS[name])

    def __repr__(self) -> str:
        return ", ".join(self.names)


class Joints(Site):
    """The sums and norms of the blocks, where parts are left out."""

    def __init__(self, meets: "Without", spans: list[Span]) -> None:
        super().__init__(meets, spans)
        self.without = meets
        self.cut: Cut | None = None
        self.reasons: dict[str, str] = {}  # why a block could not be cut

    def begin(self) -> None:
        refuse_checkpointing(self.meets)
        self.reasons.clear()
        self.cut = Cut(self.meets.model, self.spans, self.meets.remedy.parts, self._ended)
        self.cut.__enter__()

    def _ended(self, passage: Cutting) -> None:
        """A block may run more than once, as ALBERT's does: every time counts."""
        reason = passage.why_not(self.meets.remedy.parts)
        if reason:
            self.reasons.setdefault(passage.block, reason)
            self.without.fails(passage.block)
        elif passage.block not in self.reasons:
            self.without.fires(passage.block)

    def end(self) -> None:
        if self.cut is not None:
            cut, self.cut = self.cut, None
            cut.__exit__(None, None, None)


class Without(Fix):
    """Blocks without some parts. A context manager; undo() gives them back and the model computes as before."""

    called = "without_"
    remembers = False  # type: ignore[assignment]  # a part that is left out needs no earlier tokens

    def __repr__(self) -> str:
        return f"without {self.remedy}"

    def site(self, spans: list[Span]) -> Site:
        return Joints(self, spans)

    def prepare(self, args: tuple, kwargs: dict) -> None:
        if self._looked is None:
            for fix in fixes_in(self.model):  # their hooks must come before those that follow the stream
                if fix is not self:
                    fix.prepare(args, kwargs)
        super().prepare(args, kwargs)

    def fails(self, block: str) -> None:
        """A block could not be cut."""
        if self._pass is not None:
            self._pass.fired.discard(block)

    def unmet(self, idle: list[str]) -> str:
        reasons = self._site.reasons if isinstance(self._site, Joints) else {}
        why = next((reasons[block] for block in idle if block in reasons), "its tokens were not seen")
        return (
            f"without_: every block must have {' and '.join(sorted(self.remedy.parts))}, at a sum of its own, to be "
            f"taken out; in {', '.join(idle[:3]) or 'no block'} of {type(self.model).__name__}: {why}. Name other "
            f"parts ({', '.join(MEANS)}), or other modules with blocks=."
        )


def without_(model: nn.Module, *parts: str, blocks: str | Iterable[str] | None = None) -> Without:
    """Let every block of a model run without some of its parts, in place: which of them keeps the tokens apart?

    parts: attention_skip: what attention gives goes on alone, X -> SA(X), with the factor that it has in the sum;
    ffn_skip: Y -> FFN(Y); skips: both; ffn: the network's sum is left out, Y -> Y, skip or not; norms: norms inside the
    blocks give back their input, scale and offset too; those of queries and keys, of the embeddings and after the last
    block stay. blocks: a pattern such as "encoder.layers.*" where the finder should not choose.

    Returns a handle: handle.undo(), or use it as a context. No names of modules are needed; a block that does not have
    a part, or joins its branches otherwise, is an error when the model runs.
    """
    names = tuple(dict.fromkeys(parts))
    for name in names:
        if name not in MEANS:
            raise UnknownNameError("without_: " + unknown("part", name, MEANS))
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"without_: model must be a torch.nn.Module; got {type(model).__name__}. Pass the model itself."
        )
    if not names:
        raise UsageError(f"without_: at least one part must be named; got none. Name some of {', '.join(MEANS)}.")
    if any(isinstance(fix, Without) for fix in fixes_in(model)):
        raise UsageError("without_: the model runs without some parts already. Name all parts in one call.")
    remedy: Any = Parts(names)
    return Without(model, remedy, "its joints", blocks_by_name(model, blocks), "no", None)
