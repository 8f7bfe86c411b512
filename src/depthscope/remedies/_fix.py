"""fix_: a remedy put into a model at a named site, in place and undoable."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from depthscope._registry import lookup, unknown
from depthscope.errors import CausalLeakError, HookError, MaskError, UnknownNameError, UsageError
from depthscope.remedies._attention import AttentionRemedy
from depthscope.traces.attend import Attend
from depthscope.traces.blocks import blocks_by_name
from depthscope.traces.inputs import padding_in
from depthscope.traces.look import Looked, look
from depthscope.traces.stream import INNER, Follow
from depthscope.traces.tokens import first_tokens, tokens_out

SITES = ("block_in", "attn_in", "attn", "sa_sum", "ffn_in", "ffn_sum", "block_out")
CAUSAL = ("auto", "yes", "no", "leak")


class Fix:
    """A remedy in place. A context manager; undo() takes it out again and the model computes as before."""

    def __init__(self, model: nn.Module, remedy: nn.Module, at: str, blocks: list[str], causal: str) -> None:
        self.model, self.at, self.blocks, self.causal = model, at, blocks, causal
        self.remedy: Any = remedy
        self.runs = self.fired = 0
        self._looked: Looked | None = None
        self._looking = False
        self._mask: Tensor | None = None
        self._met: set[str] = set()
        self._follow: Follow | None = None
        self._attend: Attend | None = None
        self._handles: list[Any] = [
            model.register_forward_pre_hook(_named(self, self._start), with_kwargs=True),
            model.register_forward_hook(self._end, always_call=True),
        ]

    def __repr__(self) -> str:
        return f"{self.remedy} at {self.at}{' (LEAKS the future)' * self.leaks}"

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
        """Take the remedy out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._leave()

    def describe(self) -> dict[str, Any]:
        """The fix as plain data, which fix_ accepts in place of a remedy."""
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

    # one forward pass

    def _start(self, _: nn.Module, args: tuple, kwargs: dict) -> None:
        if self._looking:
            return
        self.prepare(args, kwargs)
        mask = padding_in(self.model, args, kwargs)
        self._mask = None if mask is None or bool(mask.all()) else mask
        _refuse_cache(self.remedy, kwargs)
        self.runs += 1
        if self.at in INNER:
            self._follow = Follow(self.model, self._looked.spans, self._at_site)  # type: ignore[union-attr]
            self._follow.__enter__()
        if isinstance(self.remedy, AttentionRemedy) and not self.remedy.is_off:
            self.remedy.begin()
            self._attend = Attend(self)
            self._attend.__enter__()

    def _end(self, *_: Any) -> None:
        if self._looking:
            return
        self._leave()
        if self.at in INNER and self._met and self.at not in self._met:
            self.runs = 0  # said here, not again on the way out
            met = [s for s in SITES if s in self._met or s in ("block_in", "block_out")]
            raise HookError(
                f"fix_: at must be a site that {type(self.model).__name__}'s blocks have; {self.at!r} was not met. "
                f"They have {', '.join(met)}."
            )

    def _leave(self) -> None:
        if self._follow is not None:
            follow, self._follow = self._follow, None
            follow.__exit__(None, None, None)
        if self._attend is not None:
            attend, self._attend = self._attend, None
            attend.__exit__(None, None, None)

    def prepare(self, args: tuple, kwargs: dict) -> None:
        """Before the first pass: which axis holds the tokens, and would this remedy show them their future?"""
        if self._looked is not None:
            return
        self._looking = True
        try:
            self._looked = look(self.model, self.blocks, args, kwargs)
        finally:
            self._looking = False
        self._hook_blocks(self._looked)
        causal = {"yes": True, "no": False}.get(self.causal, self._looked.causal)
        if getattr(self.remedy, "causal_safe", True) or self.causal == "leak" or not self._looked.spans:
            return
        if causal is None:
            raise CausalLeakError(
                f"fix_: {self.remedy} uses all tokens, and no self-attention of {type(self.model).__name__} was seen "
                'that would tell whether it is causal. Pass causal="no" or causal="yes".'
            )
        if causal:
            self.remedy = self.remedy.causal_form()

    def _hook_blocks(self, looked: Looked) -> None:
        for path in dict.fromkeys(span.entry for span in looked.spans) if self.at == "block_in" else ():
            entry = self.model.get_submodule(path)
            self._handles.append(entry.register_forward_pre_hook(_named(self, self._before), with_kwargs=True))
        for path in dict.fromkeys(span.exit for span in looked.spans) if self.at == "block_out" else ():
            exit = self.model.get_submodule(path)
            self._handles.append(exit.register_forward_hook(_named(self, self._after), with_kwargs=True))

    # attention

    def from_qkv(self, q: Tensor, k: Tensor, v: Tensor, attention: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        self.fired += 1
        return self.remedy.from_qkv(q, k, v, attention)

    def from_pattern(self, P: Tensor) -> Tensor:
        self.fired += 1
        return self.remedy.from_pattern(P)

    # tokens

    def _at_site(self, block: str, site: str, tokens: Tensor) -> Tensor:
        self._met.add(site)
        return self._fixed(tokens) if site == self.at else tokens

    def _fixed(self, tokens: Tensor) -> Tensor:
        self.fired += 1
        time_first = self._looked is not None and self._looked.axis == 0
        X = tokens.transpose(0, 1) if time_first else tokens
        if self._mask is not None and tuple(self._mask.shape) != tuple(X.shape[:-1]):
            raise MaskError(
                f"fix_: the padding mask must have one entry for each token, {tuple(X.shape[:-1])}; "
                f"got {tuple(self._mask.shape)}. Give sequences of equal length."
            )
        Y = self.remedy(X) if self._mask is None else self.remedy(X, mask=self._mask)
        return Y.transpose(0, 1) if time_first else Y

    def _before(self, _: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self._looking:
            return None
        swap = self._swap(first_tokens(args, kwargs))
        return tuple(map(swap, args)), {k: swap(v) for k, v in kwargs.items()}

    def _after(self, _: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        if self._looking:
            return None
        source = first_tokens(args, kwargs)
        swap = self._swap(tokens_out(output, tuple(source.shape)) if source is not None else None)
        if isinstance(output, Tensor):
            return swap(output)
        if type(output) in (tuple, list):
            return type(output)(map(swap, output))
        raise HookError(
            f"fix_: a block must return a tensor or a tuple for block_out; got {type(output).__name__}. "
            "Use at='block_in'."
        )

    def _swap(self, tokens: Tensor | None) -> Any:
        """A function that puts the remedied tokens in the place of the tokens, wherever they are."""
        if tokens is None:
            raise HookError(
                f"fix_: a block must take and return tokens (B, n, d) for {self.remedy}; it has none. Pass blocks=."
            )
        fixed = self._fixed(tokens)
        return lambda value: fixed if value is tokens else value


def _refuse_cache(remedy: nn.Module, kwargs: dict) -> None:
    cache: Any = kwargs.get("past_key_values")
    length = cache.get_seq_length() if hasattr(cache, "get_seq_length") else 0
    if length:
        raise UsageError(
            f"fix_: {remedy} must see the whole sequence; {length} tokens of it are in a key-value cache. "
            "Pass use_cache=False."
        )


def _named(fix: Fix, hook: Any) -> Any:
    """A hook that a scan can recognise as a remedy."""

    def call(*args: Any) -> Any:
        return hook(*args)

    call.depthscope_fix = fix  # type: ignore[attr-defined]
    return call


def fix_(
    model: nn.Module,
    remedy: nn.Module | Mapping[str, Any],
    *,
    at: str | None = None,
    blocks: str | Iterable[str] | None = None,
    causal: str = "auto",
) -> Fix:
    """Put a remedy into every block of a model, in place.

    at: block_in, attn_in, sa_sum, ffn_in, ffn_sum or block_out (attn for remedies of attention); its own when None.
    blocks: a pattern such as "encoder.layers.*" where the finder should not choose. causal: "auto" looks at the model's
    attention before the first forward pass and takes the remedy's causal-safe form for a causal model; "yes" and "no"
    say it; "leak" insists on the remedy as it is, and every result is labelled. Returns a handle: handle.undo(), or use
    it as a context; handle.describe() is data that fix_ takes in place of a remedy.
    """
    if isinstance(remedy, Mapping):
        at, blocks, causal = remedy["at"], remedy["blocks"], remedy["causal"]
        remedy = lookup("remedy", remedy["remedy"])(**remedy["settings"])
    if not isinstance(remedy, nn.Module):
        raise UsageError(f"fix_: remedy must be an nn.Module such as ds.remedies.DeEscalate(); got {remedy!r}.")
    site: str = at or getattr(remedy, "at", None) or "block_out"
    if site not in SITES:
        raise UnknownNameError("fix_: " + unknown("site", site, SITES))
    if (site == "attn") != isinstance(remedy, AttentionRemedy):
        raise UsageError(
            f"fix_: {type(remedy).__name__} must act at {getattr(remedy, 'at', 'block_out')}; got {site}. "
            "Remedies of attention act at attn, all others at the tokens."
        )
    if causal not in CAUSAL:
        raise UnknownNameError("fix_: " + unknown("choice of causal", causal, CAUSAL))
    return Fix(model, remedy, site, blocks_by_name(model, blocks), causal)
