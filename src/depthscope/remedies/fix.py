"""fix_: a remedy put into a model at a named site, in place and undoable."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from depthscope.errors import BlocksNotFoundError, MaskError, UnknownNameError, UsageError, said_by
from depthscope.registry import unknown
from depthscope.remedies.attention_remedy import AttentionRemedy
from depthscope.remedies.described import Place, rebuilt
from depthscope.remedies.fix_handle import Fix
from depthscope.remedies.loading import put_back
from depthscope.remedies.remedy import Remedy
from depthscope.remedies.value_remedy import ValueRemedy
from depthscope.remedies.weight_remedy import WeightRemedy
from depthscope.traces.blocks import none_found
from depthscope.traces.entry import enter
from depthscope.traces.installed import fixes_in

TOKEN_SITES = ("block_in", "attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum", "block_out")
# sites that only one kind of remedy can act at
KINDS = {"attn": AttentionRemedy, "weights": WeightRemedy, "values": ValueRemedy}
SITES = (*TOKEN_SITES, *KINDS)
CAUSAL = ("auto", "yes", "no", "leak")


@said_by("fix_")
def fix_(
    model: nn.Module,
    remedy: nn.Module | Mapping[str, Any] | str | Path,
    *,
    at: str | None = None,
    blocks: str | Iterable[str] | None = None,
    stream: str | None = None,
    causal: str = "auto",
    group: Any = None,
    mask: Tensor | Callable[..., Tensor] | None = None,
) -> Fix:
    """Put a remedy into every block of a model, in place.

    Returns a handle: handle.undo(), or use it as a context. handle.describe() is data that fix_ takes in place of a
    remedy. handle.save(folder) writes the fix beside the weights. A remedy that learns has one copy for each block,
    among the model's parameters: fix first, then build the optimizer.

    Args:
        model: Any torch module.
        remedy: A remedy, such as ds.remedies.DeEscalate(0.2), or the folder where fixes were saved.
        at: The site: block_in, attn_in, sa_out (before the residual is added), sa_sum (after), ffn_in, ffn_sum or
            block_out; attn for remedies of attention, weights or values for those of weights. None: the remedy's own.
        blocks: A pattern such as "encoder.layers.*", or scan.blocks, instead of finding the blocks automatically.
        stream: One of several streams ("encoder", "decoder"); by default all, each in its own form.
        causal: "auto" tests each new way of calling the model: do later tokens change earlier ones? If not, the remedy
            takes its causal form, and a remedy that leaks the future is an error. "yes" and "no" decide the form.
            "leak" uses the remedy as it is, and every result is labelled.
        group: The torch.distributed group whose processes hold the parts of each sequence, in the order of their ranks.
        mask: (B, n), 1 for tokens and 0 for padding, or a function of the model's arguments that returns it. By default
            the attention_mask among the arguments, and padding that the model's attention never looks at.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> fix = ds.fix_(model, ds.remedies.DeEscalate(0.2), at="block_out")
        >>> len(ds.fixes(model))
        1
        >>> fix.undo()
    """
    if isinstance(remedy, str | Path) and Path(remedy).is_dir():
        if (at, blocks, stream, causal) != (None, None, None, "auto"):
            raise UsageError("a saved fix has its own at, blocks, stream and causal. Leave them out, or give a remedy.")
        *others, fix = put_back(enter(model).model, remedy, fix_, {"mask": mask, "group": group})
        fix.along = others
        return fix
    if isinstance(remedy, Mapping):
        remedy, at, blocks, stream, causal = rebuilt(remedy, Place(nn.Identity(), at, blocks, stream, causal))
    if not isinstance(remedy, nn.Module):
        raise UsageError(
            "remedy must be an nn.Module such as ds.remedies.DeEscalate(), or a folder in which a fix was saved; got "
            f"{remedy!r}."
        )
    own = getattr(remedy, "at", None) or "block_out"
    site: str = at or own
    if site not in SITES:
        raise UnknownNameError(unknown("site", site, SITES))
    if any((site == name) != isinstance(remedy, kind) for name, kind in KINDS.items()):
        raise UsageError(
            f"{type(remedy).__name__} must act at {own}; got {site}. Remedies of attention act at attn, those of "
            "weights at weights or values, all others at the tokens."
        )
    if group is not None and not (isinstance(remedy, Remedy) and site not in KINDS):
        raise UsageError(f"only a remedy of tokens can be shared by a group; got {type(remedy).__name__}.")
    if causal not in CAUSAL:
        raise UnknownNameError(unknown("choice of causal", causal, CAUSAL))
    entry = enter(model, blocks=blocks, stream=stream)
    entry.chosen()  # a name that no module has is an error now
    if next(entry.model.children(), None) is None:
        raise BlocksNotFoundError(none_found(entry.model))
    if mask is not None and not (isinstance(mask, Tensor) or callable(mask)):
        raise MaskError(
            "mask must be a tensor (B, n), 1 for a token and 0 for padding, or a function of the model's arguments "
            f"that returns one; got {type(mask).__name__}."
        )
    return Fix(entry, remedy, site, causal, group, mask)


def fixes(model: nn.Module) -> list[Any]:
    """The handles of everything that fix_ and without_ have put into a model, in that order.

    A copy of a fixed model (copy.deepcopy, torch.load) has its own handles: for fix in ds.fixes(copy): fix.undo().

    Examples:
        >>> ds.fixes(ds.models.classic(depth=2, d=8, h=2))
        []
    """
    return [fix for fix in fixes_in(enter(model).model) if not fix.led]
