"""fix_: a remedy put into a model at a named site, in place and undoable."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from depthscope._registry import unknown
from depthscope.errors import CausalLeakError, HookError, MaskError, UnknownNameError, UsageError
from depthscope.traces.blocks import blocks_by_name
from depthscope.traces.inputs import padding_in
from depthscope.traces.tokens import first_tokens, tokens_out

SITES = ("block_in", "block_out")


class Fix:
    """A remedy in place. A context manager; undo() takes it out again and the model computes as before."""

    def __init__(self, model: nn.Module, remedy: nn.Module, at: str, blocks: list[str]) -> None:
        self.model, self.remedy, self.at, self.blocks = model, remedy, at, blocks
        self.runs = self.fired = 0
        self._handles: list[Any] = [model.register_forward_pre_hook(self._start, with_kwargs=True)]
        for path in blocks:
            module = model.get_submodule(path)
            if at == "block_in":
                self._handles.append(module.register_forward_pre_hook(_named(self, self._before), with_kwargs=True))
            else:
                self._handles.append(module.register_forward_hook(_named(self, self._after), with_kwargs=True))

    def __repr__(self) -> str:
        return f"{self.remedy} at {self.at}"

    def __enter__(self) -> "Fix":
        return self

    def __exit__(self, *error: Any) -> None:
        self.undo()
        if error[0] is None and self.runs and not self.fired:
            raise HookError(
                f"fix_: {self.remedy} must act in every forward pass; in {self.runs} runs it never did. "
                f"Pass blocks= with modules that are called (tried {self.blocks[0]}, ...)."
            )

    def undo(self) -> None:
        """Take the remedy out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _start(self, _: nn.Module, args: tuple, kwargs: dict) -> None:
        mask = padding_in(self.model, args, kwargs)
        if mask is not None and not bool(mask.all()):
            raise MaskError(
                f"fix_: {self.remedy} takes its mean over all positions, and this batch has padding. "
                "Give sequences of equal length."
            )
        self.runs += 1

    def _before(self, _: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        tokens = first_tokens(args, kwargs)
        swap = self._swap(tokens)
        return tuple(map(swap, args)), {k: swap(v) for k, v in kwargs.items()}

    def _after(self, _: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        source = first_tokens(args, kwargs)
        tokens = tokens_out(output, tuple(source.shape)) if source is not None else None
        swap = self._swap(tokens)
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
        self.fired += 1
        fixed = self.remedy(tokens)
        return lambda value: fixed if value is tokens else value


def _named(fix: Fix, hook: Any) -> Any:
    """A hook that a scan can recognise as a remedy."""

    def call(*args: Any) -> Any:
        return hook(*args)

    call.depthscope_remedy = repr(fix)  # type: ignore[attr-defined]
    return call


def fix_(
    model: nn.Module, remedy: nn.Module, *, at: str | None = None, blocks: str | Iterable[str] | None = None
) -> Fix:
    """Put a remedy into every block of a model, in place.

    at: "block_out" (after each block) or "block_in"; the remedy's own site when None. blocks: a pattern such as
    "encoder.layers.*" where the finder should not choose. Returns a handle: handle.undo(), or use it as a context.
    """
    site: str = at or getattr(remedy, "at", None) or "block_out"
    if site not in SITES:
        raise UnknownNameError("fix_: " + unknown("site", site, SITES))
    if not isinstance(remedy, nn.Module):
        raise UsageError(f"fix_: remedy must be an nn.Module such as ds.remedies.DeEscalate(); got {remedy!r}.")
    if not getattr(remedy, "causal_safe", True) and any(
        getattr(m, "is_causal", False) is True for m in model.modules()
    ):
        raise CausalLeakError(
            f"fix_: {remedy} uses all tokens, and {type(model).__name__} is causal: every token would see its future. "
            "Use a remedy that is causal-safe."
        )
    torch_time_first = any(isinstance(m, nn.MultiheadAttention) and not m.batch_first for m in model.modules())
    if torch_time_first or "XLNet" in type(model).__name__:  # the one Hugging Face family that is time-first
        raise UsageError(
            "fix_: blocks must be batch-first, (B, n, d); those of this model are (n, B, d). "
            "Build it with batch_first=True."
        )
    return Fix(model, remedy, site, blocks_by_name(model, blocks))
