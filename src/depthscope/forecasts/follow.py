"""Follow the law of tokens through the blocks of a model: token similarity by depth, without computing a block."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import DepthscopeError, ForecastError
from depthscope.forecasts.law import Law, modes
from depthscope.forecasts.rules import law_of, normed
from depthscope.forecasts.tensor import LawTensor
from depthscope.traces.known import fixes_in, is_norm
from depthscope.traces.tokens import first_tokens
from depthscope.traces.untouched import untouched


def laws_by_block(model: nn.Module, blocks: list[str], args: tuple, kwargs: dict[str, Any]) -> list[Law]:
    """The law of the tokens before block 1 and after every block.

    What comes before the first block (embeddings) is computed as it is; from there on laws flow through the model's
    own code, and what comes after the last block is of no interest.
    """
    for fix in fixes_in(model):
        if fix.model is model:
            fix.prepare(args, kwargs)  # its hooks come before ours, so that remedied tokens are seen
    found: list[Law] = []
    running = [0]

    def enter(_: nn.Module, given: tuple, named: dict) -> tuple[tuple, dict]:
        x = first_tokens(given, named)
        if x is None:
            raise ForecastError("forecast: a block must take tokens (B, n, d); it has none. Pass blocks=.")
        running[0] += 1
        streams = [v for v in (*given, *named.values()) if isinstance(v, LawTensor)]
        law = law_of_tokens(x) if not isinstance(x, LawTensor) else law_of(x)
        law = law.settled() if len(streams) < 2 else law.brief()  # streams share their sources: strangers if settled
        if not found:
            found.append(law)
        new = LawTensor(x.shape, x.dtype, law)

        def swap(value: Any) -> Any:
            if isinstance(value, LawTensor) and value is not x:
                return LawTensor(value.shape, value.dtype, law_of(value).brief())
            return new if value is x or _is_copy(value, x) else value

        return tuple(map(swap, given)), {name: swap(value) for name, value in named.items()}

    def leave(_: nn.Module, given: tuple, output: Any) -> None:
        running[0] -= 1
        items = output if isinstance(output, tuple | list) else (output,)
        found.append(law_of(next(item for item in items if isinstance(item, LawTensor))))

    with ExitStack() as stack:
        stack.enter_context(untouched(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(_norms_followed(model))
        for module in {id(m): m for m in map(model.get_submodule, blocks)}.values():
            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        try:
            model(*args, **kwargs)
        except DepthscopeError:
            if running[0] or len(found) <= len(blocks):  # inside a block, or before the last
                raise
        except Exception as error:
            if running[0] or len(found) <= len(blocks):
                raise ForecastError(
                    f"forecast: {type(model).__name__} must run on these inputs, and its blocks on the law of their "
                    f"tokens; {type(error).__name__}: {error}. Forecast its sizes instead, or scan it."
                ) from error
    return found


def _is_copy(value: Any, x: Tensor) -> bool:
    """Whether a second stream starts as the tokens themselves."""
    plain = isinstance(value, Tensor) and not isinstance(value, LawTensor) and not isinstance(x, LawTensor)
    return plain and value.shape == x.shape and torch.equal(value, x)


def law_of_tokens(x: Tensor) -> Law:
    """The law of tokens that are there: a few weighted means are known, and the rest has their overlaps."""
    X = x.detach().double()
    Q = modes(X.shape[-2])
    vectors = Q.T @ X  # (B, r, d)
    known = tuple((q.expand(X.shape[:-1]), vectors[:, k]) for k, q in enumerate(Q.T))
    return Law.fresh((X @ X.mT - Q @ (vectors @ vectors.mT) @ Q.T) / X.shape[-1], known)


@contextmanager
def _norms_followed(model: nn.Module) -> Iterator[None]:
    """Let norms that are written out in Python (RMSNorm) follow laws as one step."""
    changed = [module for module in model.modules() if is_norm(module) and "forward" not in vars(module)]
    try:
        for module in changed:
            module.forward = _norm_of(module, module.forward)  # type: ignore[method-assign]
        yield
    finally:
        for module in changed:
            vars(module).pop("forward", None)


def _norm_of(module: nn.Module, plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, LawTensor):
            return plain(x, *args, **kwargs)
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        return LawTensor(x.shape, x.dtype, normed(law_of(x), weight, bias, centred=hasattr(module, "bias")))

    return forward
