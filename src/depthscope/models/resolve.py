"""MODEL on the command line: a preset, package.module:function, a local Hugging Face folder, or a hub id."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import torch
from torch import nn

from depthscope.errors import DepthscopeError, ForwardError, MissingExtraError, UnknownNameError, UsageError, first_line
from depthscope.extras import install
from depthscope.models.offloaded import is_too_large, load_offloaded, number_of_bytes
from depthscope.models.random_inputs import random_inputs
from depthscope.models.sizes import Sizes
from depthscope.registry import TABLES, unknown

NO_CODE = {"trust_remote_code": False}  # unless told so, transformers asks on stdin whether to run a folder's code


def presets() -> Mapping[str, Any]:
    """All presets by name."""
    return TABLES["preset"]


def resolve(
    name: str,
    sizes: Sizes,
    *,
    inputs: str | None = None,
    text: str | None = None,
    offload: str | None = None,
    memory: str | None = None,
    head: str = "none",
) -> tuple[nn.Module, Any]:
    """A model and inputs for it. offload, memory: where weights wait that do not fit, and how many bytes need not.

    head: of a Hugging Face model, "none" or "as saved". A function that has an attribute ids(text) reads --text.
    """
    torch.manual_seed(sizes.seed)
    reads = getattr(imported(name), "ids", None) if text and names_code(name) else None
    if text and (inputs or (names_code(name) and reads is None)):
        raise UsageError(
            "--text: works with presets and Hugging Face models only; got --inputs or a model of your own. Leave "
            "it out."
        )
    if (offload or memory) and (names_code(name) or name in presets()):
        raise UsageError(
            f"--offload, --memory: work with Hugging Face models only; got {name!r}. Dispatch a model of your own "
            "with accelerate (device_map)."
        )
    if names_code(name):
        model = call(name)
        given = None
        if isinstance(model, tuple) and len(model) == 2:
            model, given = model
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"{name}: must return an nn.Module (or a model and its inputs); got {type(model).__name__}."
            )
        given = call(inputs) if inputs else given
        given = _rows(reads(read_text(str(text))), sizes) if reads is not None else given
        if given is None:
            raise UsageError(f"{name}: a model of your own needs inputs. Pass --inputs package.module:function.")
        return model, given
    if name in presets():
        model, given = presets()[name](sizes)
        given = text_ids(text, model, sizes) if text else given
    elif Path(name).is_dir() or "/" in name or "-" in name:
        model, given = hugging_face(name, sizes, text, offload, memory, head)
    else:
        raise UnknownNameError(
            unknown("preset", name, presets()) + " A folder, a hub id, or package.module:function will do too."
        )
    return model, call(inputs) if inputs else given


def names_code(name: str) -> bool:
    """Whether a MODEL is package.module:function, and not the path of a folder of Windows, C:\\models."""
    return ":" in name and not PureWindowsPath(name).is_absolute()


def imported(target: str) -> Callable[..., Any]:
    """The function of package.module:function; the current folder is on the path, as with python -m."""
    module_name, _, function_name = target.partition(":")
    if not module_name or not function_name:
        raise UsageError(f"{target!r}: must be package.module:function. Write a colon between the two.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"{target}: the module must be importable from here; {error}. Run in its folder or install it."
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [n for n in vars(module) if callable(getattr(module, n)) and not n.startswith("_")]
        raise UnknownNameError(f"{target}: " + unknown("function", function_name, names))
    return function


def call(target: str) -> Any:
    """What package.module:function returns."""
    function = imported(target)
    try:
        return function()
    except DepthscopeError:  # says already what to do
        raise
    except Exception as error:
        raise ForwardError(
            f"{target}: must return without arguments; it raised {type(error).__name__}: {error}."
        ) from error


def hugging_face(
    name: str,
    sizes: Sizes,
    text: str | None,
    offload: str | None = None,
    memory: str | None = None,
    head: str = "none",
) -> tuple[nn.Module, Any]:
    """A model from a folder or the hub, with its tokenizer's view of the text, or random ids.

    A folder whose weights are larger than the free memory is offloaded unasked.
    """
    try:
        import transformers
    except ImportError:
        raise MissingExtraError(f"{name}: needs transformers. {install('hf')}") from None
    local = Path(name).is_dir()
    asked: dict[str, Any] = {"local_files_only": local, **NO_CODE}
    if local and not (Path(name) / "config.json").is_file():
        raise UsageError(
            f"{name}: a model folder must hold config.json; it does not. Save with model.save_pretrained(folder)."
        )
    most = number_of_bytes(memory) if memory else None
    try:
        if offload or memory or (local and is_too_large(name)):
            model = load_offloaded(name, offload, most, **asked).eval()
        else:
            built = transformers.AutoModel if head == "none" else _class_saved(transformers, name, asked)
            model = built.from_pretrained(name, **asked).eval()
    except DepthscopeError:
        raise
    except Exception as error:
        reason = first_line(error)
        if "custom code" in reason:
            reason = "it has code of its own, which is not run. Load the model in a function, package.module:function"
        raise UsageError(
            f"{name}: the model must load with transformers.AutoModel; {type(error).__name__}: {reason.rstrip('.')}. "
            "Look at the files of the folder, or copy it again."
        ) from error
    if text is None:
        return model, random_inputs(model, sizes.tokens, sizes.batch, sizes.seed)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **asked)
    except Exception as error:
        raise UsageError(
            f"{name}: --text needs the model's tokenizer in the same place; {type(error).__name__}."
        ) from error
    return model, _rows(known_ids(tokenizer, text, name), sizes)


def _class_saved(transformers: Any, name: str, asked: dict[str, Any]) -> Any:
    """The class that a model was saved as, with its head; AutoModel where the configuration does not say."""
    config = transformers.AutoConfig.from_pretrained(name, **asked)
    said = next(iter(config.architectures or ()), "AutoModel")
    return getattr(transformers, said, transformers.AutoModel)


def known_ids(tokenizer: Any, path: str, name: str) -> torch.Tensor:
    """The ids of a text; an error where none of them stands for a part of it.

    A folder without the tokenizer's files gives a tokenizer without words, which says "unknown" to all of them.
    """
    ids = tokenizer(read_text(path)).input_ids
    known = set(ids) - set(tokenizer.all_special_ids)  # the unknown token is one of them
    if not any(tokenizer.decode([one]).strip() for one in known):  # a space between words is no word
        raise UsageError(
            f"{name}: --text must become tokens that the model knows; all {len(ids)} of {path!r} are unknown to its "
            "tokenizer. Put the tokenizer into the same place, with tokenizer.save_pretrained(folder); leave --text "
            "out for random tokens; or give ids by --inputs package.module:function."
        )
    return torch.tensor(ids, dtype=torch.long)


def text_ids(path: str, model: Any, sizes: Sizes) -> torch.Tensor:
    """A preset has no tokenizer: each byte of the text is a token."""
    if not hasattr(getattr(model, "config", None), "vocab_size"):
        raise UsageError("--text: this preset does not read text. Use bert, gpt2, llama or another that does.")
    ids = torch.tensor(list(read_text(path).encode())) % model.config.vocab_size
    return _rows(ids, sizes)


def read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"--text: the file must exist; {path!r} does not. Check the path.") from None
    except (UnicodeDecodeError, OSError) as error:
        raise UsageError(f"--text: {path!r} must be a UTF-8 text file; {error}.") from None


def _rows(ids: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    rows = min(sizes.batch, len(ids) // sizes.tokens)
    if rows == 0:
        raise UsageError(
            f"--text: must give at least {sizes.tokens} tokens; got {len(ids)}. Use a longer text or fewer --tokens."
        )
    return ids[: rows * sizes.tokens].reshape(rows, sizes.tokens)
