"""The fixes of a model are written beside its weights."""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from depthscope.errors import BlocksNotFoundError, DepthscopeError, FixLostWarning, UsageError
from depthscope.files import whole_file
from depthscope.remedies.fix_record import FILE, LEARNED, FixRecord
from depthscope.traces.entry import enter
from depthscope.traces.installed import fixes_in
from depthscope.traces.modules import modules_in

RELOADED = (
    f"the fix of this model is written beside its weights, in {FILE}; from_pretrained alone returns the model "
    "without it. "
    "Put it back with ds.fix_(model, folder)."
)
NOT_ON_HUB = f"push_to_hub: the copy on the hub was sent before the fix was written; upload {FILE} beside the weights."


def save_fixes(model: nn.Module, folder: str | Path) -> Path:
    """Write all fixes of a model into a folder, FILE and LEARNED; the path of the first."""
    path = {module: path for path, module in modules_in(model).items()}
    fixes = [fix for fix in fixes_in(model) if not fix.led]
    kept = [_described(fix, path[fix.model]) for fix in fixes]
    learned = {}
    for fix, told in zip(fixes, kept, strict=True):
        if fix.copies.child is not None:
            learned[told["within"], told["learns"]] = fix.copies.child.state_dict()
    Path(folder).mkdir(parents=True, exist_ok=True)
    if learned:
        with whole_file(Path(folder) / LEARNED) as part:
            torch.save({".".join(filter(None, names)): numbers for names, numbers in learned.items()}, part)
    return FixRecord(type(model).__name__, block_names(model), kept).save(Path(folder) / FILE)


def _described(fix: Any, within: str) -> dict[str, Any]:
    if fix.called != "fix_":
        raise UsageError(f"only fixes can be saved; the model is {fix}. Undo that first.")
    needs = [name for name in ("mask", "group") if getattr(fix, name) is not None]
    return fix.describe() | {"within": within, "needs": needs, "learns": fix.copies.name_of_child}


def block_names(model: nn.Module) -> list[str] | None:
    """The paths of a model's blocks by their names alone."""
    try:
        return enter(model).names()
    except BlocksNotFoundError:
        return None


class SavePretrained:
    """In the place of a model's save_pretrained, while there is a fix in it: the fix is written too."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.inner = vars(model).get("save_pretrained")  # where somebody else has set one

    def __call__(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        save: Any = self.inner or type(self.model).save_pretrained.__get__(self.model)  # type: ignore[attr-defined]
        done = save(save_directory, *args, **kwargs)
        if not kwargs.get("is_main_process", args[0] if args else True):
            return done
        try:
            save_fixes(self.model, save_directory)
        except DepthscopeError as error:
            warnings.warn(f"save_pretrained: the weights are saved without the fix. {error}", FixLostWarning, 2)
        else:
            warnings.warn(RELOADED, FixLostWarning, 2)
            if kwargs.get("push_to_hub"):
                warnings.warn(NOT_ON_HUB, FixLostWarning, 2)
        return done


class BeforeState:
    """A hook before the state dict: a pass that was interrupted is ended, so that the weights are the model's own."""

    def __call__(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        for fix in fixes_in(module):
            if fix.is_interrupted():
                fix.close()


class InState:
    """A hook on the state dict of a fixed module: says so when a larger model is saved, which knows nothing of it."""

    def __call__(self, module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        frame: Any = sys._getframe(1) if prefix else None
        while frame is not None and not _saves_a_model(frame):
            frame = frame.f_back
        owner = None if frame is None else frame.f_locals["self"]
        if owner is not None and not isinstance(vars(owner).get("save_pretrained"), SavePretrained):
            warnings.warn(
                f"save_pretrained: {prefix[:-1]} has a fix, which is not saved with the {type(owner).__name__} around "
                f"it. Call fix.save(folder) too, and after from_pretrained ds.fix_(model.{prefix[:-1]}, folder).",
                FixLostWarning,
                2,
            )


def _saves_a_model(frame: Any) -> bool:
    return frame.f_code.co_name == "save_pretrained" and isinstance(frame.f_locals.get("self"), nn.Module)


def tell_when_saved(model: nn.Module) -> None:
    """Put all this into a model, once, however many fixes it has."""
    if hasattr(model, "save_pretrained") and not isinstance(model.save_pretrained, SavePretrained):
        model.save_pretrained = SavePretrained(model)  # type: ignore[assignment]
    if not _numbers(model._state_dict_hooks, InState):  # a copy has them already
        model._register_state_dict_hook(InState())
        model.register_state_dict_pre_hook(BeforeState())


def no_longer_tell(model: nn.Module) -> None:
    """Take it away again, unless there is another fix."""
    if any(fix.model is model for fix in fixes_in(model)):
        return
    own = vars(model).get("save_pretrained")
    if isinstance(own, SavePretrained):
        del model.save_pretrained
        if own.inner is not None:
            model.save_pretrained = own.inner
    for hooks, kind in ((model._state_dict_hooks, InState), (model._state_dict_pre_hooks, BeforeState)):
        for number in _numbers(hooks, kind):
            del hooks[number]


def _numbers(hooks: dict[int, Any], kind: type) -> list[int]:
    return [number for number, hook in hooks.items() if isinstance(hook, kind)]
