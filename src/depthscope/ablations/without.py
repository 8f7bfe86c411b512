"""without_: a model whose blocks run without some of their parts, in place and undoable (Dong et al. 2021)."""

from collections.abc import Iterable

from torch import nn

from depthscope.errors import HookError, UnknownNameError, UsageError, said_by
from depthscope.interventions.checkpoints import refuse_inner_checkpoint
from depthscope.interventions.handle import Handle
from depthscope.interventions.sites import AroundPass, Site
from depthscope.registry import unknown
from depthscope.traces.entry import Entry, enter
from depthscope.traces.events import StreamListener
from depthscope.traces.installed import fixes_in, prepare_fixes
from depthscope.traces.remove_parts import PARTS, PartsRemover
from depthscope.traces.spans import Span

MEANS = {"skips": ("attention_skip", "ffn_skip"), **{part: (part,) for part in PARTS}}  # what users may name


class Joints(AroundPass):
    """The sums and norms of the blocks, where parts are left out."""

    def __init__(self, meets: "Without", spans: list[Span]) -> None:
        lost = next((span.block for span in spans if not span.entry), None)
        if lost is not None:
            raise HookError(
                f"a module of each block must be given its tokens; {lost} of {type(meets.model).__name__} "
                "begins with a function of torch. Put its first step into a module (a norm, for example)."
            )
        super().__init__(meets, spans)
        self.reasons: dict[str, str] = {}  # why a block could not be cut

    def listener(self) -> StreamListener:
        self.reasons.clear()
        return PartsRemover(self.meets.parts, self._ended, lambda block: refuse_inner_checkpoint(self.meets, [block]))

    def _ended(self, block: str, reason: str) -> None:
        """A block may run more than once, as ALBERT's does: every time counts."""
        if reason:
            self.reasons.setdefault(block, reason)
            self.meets.fails(block)
        elif block not in self.reasons:
            self.meets.fires(block)


class Without(Handle):
    """Blocks without some parts. A context manager; undo() gives them back and the model computes as before."""

    called = "without_"
    at = "its joints"
    keeps = ("names", "parts")

    def __init__(self, entry: Entry, names: tuple[str, ...]) -> None:
        self.names = names
        self.parts = frozenset(part for name in names for part in MEANS[name])
        super().__init__(entry)

    def __repr__(self) -> str:
        return f"without {', '.join(self.names)}"

    def like(self, entry: Entry) -> "Without":
        return Without(entry, self.names)

    def site(self, spans: list[Span]) -> Site:
        return Joints(self, spans)

    def prepare(self, args: tuple, kwargs: dict) -> None:
        if not self.prepared:  # hooks of others must come before those that follow the stream
            prepare_fixes(self.model, args, kwargs, but=self)
        super().prepare(args, kwargs)

    def unmet(self, idle: list[str]) -> str:
        reasons = self._site.reasons if isinstance(self._site, Joints) else {}
        why = next((reasons[block] for block in idle if block in reasons), "its tokens were not seen")
        return (
            f"every block must have {' and '.join(sorted(self.parts))}, at a sum of its own, to be taken out; in "
            f"{', '.join(idle[:3]) or 'no block'} of {type(self.model).__name__}: {why}. Name other parts "
            f"({', '.join(MEANS)}), or other modules with blocks=."
        )


@said_by("without_")
def without_(
    model: nn.Module, *parts: str, blocks: str | Iterable[str] | None = None, stream: str | None = None
) -> Without:
    """Let every block of a model run without some of its parts, in place: which of them keeps the tokens apart?

    Returns a handle: handle.undo(), or use it as a context. A block that does not have a part, or joins its branches in
    another way, is an error when the model runs.

    Args:
        model: Any torch module. No names of modules are needed.
        *parts: What to remove. attention_skip: X -> SA(X), with the factor that attention has in the sum. ffn_skip: Y
            -> FFN(Y). skips: both. attention: X -> X. ffn: Y -> Y. norms: norms inside the blocks return their input;
            norms of queries and keys, of the embeddings and after the last block stay.
        blocks: A pattern such as "encoder.layers.*", instead of finding the blocks automatically.
        stream: One of several streams ("encoder", "decoder"); by default all.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.without_(model, "ffn"):
        ...     print(model(torch.randn(2, 4, 8)).shape)
        torch.Size([2, 4, 8])
    """
    names = tuple(dict.fromkeys(parts))
    for name in names:
        if name not in MEANS:
            raise UnknownNameError(unknown("part", name, MEANS))
    if not names:
        raise UsageError(f"at least one part must be named; got none. Name some of {', '.join(MEANS)}.")
    entry = enter(model, blocks=blocks, stream=stream)
    entry.chosen()  # a name that no module has is an error now
    if any(isinstance(fix, Without) for fix in fixes_in(entry.model)):
        raise UsageError("the model runs without some parts already. Name all parts in one call.")
    return Without(entry, names)
