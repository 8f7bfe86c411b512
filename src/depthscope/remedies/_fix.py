"""fix_: a remedy put into a model at a named site, in place and undoable."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from depthscope._registry import lookup, unknown
from depthscope.errors import CausalLeakError, HookError, MaskError, UnknownNameError, UsageError
from depthscope.remedies._attention import AttentionRemedy
from depthscope.remedies._copies import Copies
from depthscope.remedies._mean import Stretch
from depthscope.remedies._memory import Memory, Sums
from depthscope.remedies._remedy import Remedy
from depthscope.remedies._sites import Inside, Site, site_of
from depthscope.remedies._weight import WeightRemedy, matrices
from depthscope.traces.blocks import blocks_by_name
from depthscope.traces.inputs import named_arguments, padding_in
from depthscope.traces.look import Looked, look

TOKEN_SITES = ("block_in", "attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum", "block_out")
KINDS = {"attn": AttentionRemedy, "weights": WeightRemedy}  # sites that only one kind of remedy can act at
SITES = (*TOKEN_SITES, *KINDS)
CAUSAL = ("auto", "yes", "no", "leak")


class Fix:
    """A remedy in place. A context manager; undo() takes it out again and the model computes as before."""

    def __init__(
        self, model: nn.Module, remedy: nn.Module, at: str, blocks: list[str], causal: str, group: Any
    ) -> None:
        self.model, self.at, self.blocks, self.causal, self.group = model, at, blocks, causal, group
        held = matrices(model, blocks) if at == "weights" else []
        self.copies = Copies(model, remedy, at, [m.path for m in held] or blocks, apart=bool(held))
        for matrix in held:
            self.copies[matrix.path].start_(matrix.parameter)
        self.runs = self.fired = 0
        self.looking = False
        self.on_change: Callable[[Tensor, Tensor], None] | None = None  # told of tokens before and after, by a scan
        self._looked: Looked | None = None
        self._site: Site | None = None
        self._mask: Tensor | None = None
        self._memory = Memory()
        self._past: Sums = []
        self._sums: Sums = []
        self._handles: list[Any] = [
            model.register_forward_pre_hook(self.marked(self._start), with_kwargs=True),
            model.register_forward_hook(self._end, with_kwargs=True, always_call=True),
        ]

    def __repr__(self) -> str:
        return f"{self.remedy} at {self.at}{' (LEAKS the future)' * self.leaks}"

    @property
    def remedy(self) -> Any:
        """The remedy, in the form that is used; where it learns, what it started as."""
        return self.copies.one

    @property
    def leaks(self) -> bool:
        """Whether tokens are shown their future, because the user insisted."""
        return self.causal == "leak" and not getattr(self.remedy, "causal_safe", True)

    def __enter__(self) -> "Fix":
        return self

    def __exit__(self, *error: Any) -> None:
        self.undo()
        if error[0] is None and self.runs and not self.fired and not getattr(self.remedy, "is_off", False):
            raise HookError(
                f"fix_: {self.remedy} must act in every forward pass; in {self.runs} runs it never did. "
                f"Pass blocks= with modules that are called (tried {self.blocks[0]}, ...)."
            )

    def undo(self) -> None:
        """Take the remedy out, and what it has learned with it."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._site is not None:
            self._site.end()
            self._site.remove()
        self.copies.remove()

    def describe(self) -> dict[str, Any]:
        """The fix as plain data, which fix_ accepts in place of a remedy; what was learned is in the state dict."""
        settings = getattr(self.remedy, "settings", None)
        if settings is None:
            raise UsageError(f"fix_: {type(self.remedy).__name__} has no settings() and cannot be described.")
        return {
            "remedy": type(self.remedy).__name__,
            "settings": settings(),
            "at": self.at,
            "blocks": list(self.blocks),
            "causal": self.causal,
        }

    def marked(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """A hook that a scan can recognise as a remedy."""

        def call(*args: Any) -> Any:
            return hook(*args)

        call.depthscope_fix = self  # type: ignore[attr-defined]
        return call

    # one forward pass

    def prepare(self, args: tuple, kwargs: dict) -> None:
        """Before the first pass: which axis holds the tokens, and would this remedy show them their future?"""
        if self._looked is not None:
            return
        self.looking = True
        try:
            looked = look(self.model, self.blocks, args, kwargs)
        finally:
            self.looking = False
        if looked.spans and self.causal != "leak":
            self._hide_the_future({"yes": True, "no": False}.get(self.causal, looked.causal))
        self._site = site_of(self.at)(self, looked.spans)
        self._looked = looked  # last, so that a pass after a refusal is refused again

    def _hide_the_future(self, causal: bool | None) -> None:
        """Take the causal form of the remedy for a causal model; None: nobody knows whether it is one."""
        if getattr(self.remedy, "causal_safe", True):
            return
        if causal is None:
            raise CausalLeakError(
                f"fix_: {self.remedy} uses all tokens, and no self-attention of {type(self.model).__name__} was seen "
                'that would tell whether it is causal. Pass causal="no" or causal="yes".'
            )
        if causal:
            self.copies.become(lambda remedy: remedy.causal_form())

    def _start(self, _: nn.Module, args: tuple, kwargs: dict) -> None:
        if self.looking:
            return
        self._past, self._sums = [], []
        if not getattr(self.remedy, "is_off", False) and not isinstance(self.remedy, WeightRemedy):
            self._past = self._memory.recall(named_arguments(self.model, args, kwargs)[0], self.remedy)
        self.prepare(args, kwargs)
        mask = padding_in(self.model, args, kwargs)
        self._mask = None if mask is None or bool(mask.all()) else mask
        self._site.begin()  # type: ignore[union-attr]
        self.runs += 1

    def _end(self, _: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if self.looking or self._site is None:
            return
        self._site.end()
        self._memory.keep(named_arguments(self.model, args, kwargs)[0], output, self._sums)
        missed = self._site.missed if isinstance(self._site, Inside) else []
        if missed:
            self.runs = 0  # said here, not again on the way out
            raise HookError(
                f"fix_: at must be a site that {type(self.model).__name__}'s blocks have; {self.at!r} was not met. "
                f"They have {', '.join(missed)}."
            )

    def fixed(self, block: str, tokens: Tensor) -> Tensor:
        """What the block's remedy makes of the tokens, in the model's own order of axes."""
        self.fired += 1
        time_first = self._looked is not None and self._looked.axis == 0
        X = tokens.transpose(0, 1) if time_first else tokens
        mask = self._mask_of(X)
        remedy = self.copies[block]
        if isinstance(remedy, Remedy):
            past = self._past[len(self._sums)] if self._past else ()
            stretch = Stretch(mask, past, self.group)
            Y = remedy(X, stretch=stretch)
            self._sums.append(stretch.now)
        else:
            Y = remedy(X) if mask is None else remedy(X, mask=mask)
        new = Y.transpose(0, 1) if time_first else Y
        if self.on_change is not None:
            self.on_change(tokens, new)
        return new

    def _mask_of(self, X: Tensor) -> Tensor | None:
        """The mask (B, n) of these tokens, None when all of them count."""
        mask = self._mask
        if mask is not None and self._past:
            mask = mask[:, -X.shape[-2] :]  # the columns before belong to the tokens in the cache
        if mask is not None and tuple(mask.shape) != tuple(X.shape[:-1]):
            raise MaskError(
                f"fix_: the padding mask must have one entry for each token, {tuple(X.shape[:-1])}; "
                f"got {tuple(mask.shape)}. Give sequences of equal length."
            )
        return mask


def fix_(
    model: nn.Module,
    remedy: nn.Module | Mapping[str, Any],
    *,
    at: str | None = None,
    blocks: str | Iterable[str] | None = None,
    causal: str = "auto",
    group: Any = None,
) -> Fix:
    """Put a remedy into every block of a model, in place.

    at: block_in, attn_in, sa_out (before the residual is added), sa_sum (after), ffn_in, ffn_sum or block_out; attn for
    remedies of attention, weights for those of the weights; its own when None.
    blocks: a pattern such as "encoder.layers.*" where the finder should not choose.
    causal: "auto" looks at the model's attention before the first forward pass and takes the remedy's causal-safe form
    for a causal model; "yes" and "no" say it; "leak" insists on the remedy as it is, and every result is labelled.
    group: the torch.distributed group whose processes hold the parts of each sequence, in the order of their ranks.

    Returns a handle: handle.undo(), or use it as a context; handle.describe() is data that fix_ takes in place of a
    remedy. A remedy that learns has one copy for each block, among the model's parameters: fix first, then build the
    optimizer.
    """
    if isinstance(remedy, Mapping):
        at, blocks, causal = remedy["at"], remedy["blocks"], remedy["causal"]
        remedy = lookup("remedy", remedy["remedy"])(**remedy["settings"])
    if not isinstance(remedy, nn.Module):
        raise UsageError(f"fix_: remedy must be an nn.Module such as ds.remedies.DeEscalate(); got {remedy!r}.")
    own = getattr(remedy, "at", None) or "block_out"
    site: str = at or own
    if site not in SITES:
        raise UnknownNameError("fix_: " + unknown("site", site, SITES))
    if any((site == name) != isinstance(remedy, kind) for name, kind in KINDS.items()):
        raise UsageError(
            f"fix_: {type(remedy).__name__} must act at {own}; got {site}. Remedies of attention act at attn, those of "
            "weights at weights, all others at the tokens."
        )
    if group is not None and not (isinstance(remedy, Remedy) and site not in KINDS):
        raise UsageError(f"fix_: only a remedy of tokens can be shared by a group; got {type(remedy).__name__}.")
    if causal not in CAUSAL:
        raise UnknownNameError("fix_: " + unknown("choice of causal", causal, CAUSAL))
    return Fix(model, remedy, site, blocks_by_name(model, blocks), causal, group)
