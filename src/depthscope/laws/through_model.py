"""Laws through the blocks of a model: token similarity by depth, without computing a block."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import DepthscopeError, ForecastError
from depthscope.laws.law import Law
from depthscope.laws.rules import normed
from depthscope.laws.tensor import LawTensor, OtherTokensError, law_of
from depthscope.traces.inputs import fresh
from depthscope.traces.installed import prepare_fixes
from depthscope.traces.operations import is_norm
from depthscope.traces.survey import evaluated
from depthscope.traces.token_axis import axis_of_shorter
from depthscope.traces.tokens import first_tokens
from depthscope.traces.untouched import untouched


def laws_by_block(model: nn.Module, blocks: list[str], args: tuple, kwargs: dict[str, Any]) -> list[Law]:
    """The law of the tokens before block 1 and after every block.

    What comes before the first block (embeddings) is computed as it is; from there on laws flow through the model's
    own code, and what comes after the last block is of no interest.
    """
    prepare_fixes(model, args, kwargs)  # their hooks come before ours, so that remedied tokens are seen
    modules = list({id(m): m for m in map(model.get_submodule, blocks)}.values())
    copies = _has_copies(modules)
    axis, found = _along_tokens(model, modules, args, kwargs, remember=copies)
    again = len(found) > len(modules) + 1 or len(modules) == 1
    if again and not copies:  # a module runs again, or may: its matrices meet what they made
        return _followed_through(model, modules, args, kwargs, axis, remember=True)
    return found


def _along_tokens(
    model: nn.Module, modules: list[nn.Module], args: tuple, kwargs: dict[str, Any], *, remember: bool
) -> tuple[int, list[Law]]:
    """The token axis, 1 for (B, n, d) and 0 for (n, B, d), and the laws along it: what attention works on tells it."""

    def axis_in(args: tuple, kwargs: dict[str, Any]) -> int:
        try:
            _followed_through(model, modules, args, kwargs, 1, remember=False)
        except OtherTokensError:
            return 0
        return 1

    try:
        found = _followed_through(model, modules, args, kwargs, 1, remember=remember)
    except OtherTokensError:
        return 0, _followed_through(model, modules, args, kwargs, 0, remember=remember)
    if len(found[0].gaussian()) != found[0].tokens or axis_of_shorter(args, kwargs, axis_in) != 0:
        return 1, found  # not as many sequences as tokens, or attention works on the second axis of fewer rows
    return 0, _followed_through(model, modules, args, kwargs, 0, remember=remember)


def _followed_through(
    model: nn.Module, modules: list[nn.Module], args: tuple, kwargs: dict[str, Any], axis: int, *, remember: bool
) -> list[Law]:
    """remember: what matrices make of channels, for blocks that share their weights; a product of matrices a step."""
    found: list[Law] = []
    running = [0]
    stopped: Exception | None = None

    def enter(block: nn.Module, given: tuple, named: dict) -> tuple[tuple, dict]:
        x = first_tokens(given, named)
        if x is None:
            raise ForecastError("a block must take tokens (B, n, d); it has none. Pass blocks=.")
        running[0] += 1
        streams = [v for v in (*given, *named.values()) if isinstance(v, LawTensor)]
        law = _tokens_law(x, axis, remember) if not isinstance(x, LawTensor) else law_of(x)
        law = law.settled() if len(streams) < 2 else law.brief()  # streams share their sources: strangers if settled
        law = law.doubted()
        if not found:
            found.append(law)
        new = LawTensor(x.shape, x.dtype, law)

        def swap(value: Any) -> Any:
            if isinstance(value, LawTensor) and value is not x:
                return LawTensor(value.shape, value.dtype, law_of(value).brief().doubted())
            return new if value is x or _is_copy(value, x) else value

        return tuple(map(swap, given)), {name: swap(value) for name, value in named.items()}

    def leave(_: nn.Module, given: tuple, output: Any) -> None:
        running[0] -= 1
        items = output if isinstance(output, tuple | list) else (output,)
        laws = [item for item in items if isinstance(item, LawTensor)]
        if not laws:
            raise ForecastError(f"a block must return its tokens, alone or in a tuple; got {type(output).__name__}.")
        found.append(law_of(laws[0]))

    with ExitStack() as stack:
        for quiet in (untouched(model), evaluated(model), torch.no_grad(), _norms_followed(model)):
            stack.enter_context(quiet)
        for module in modules:
            stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        try:
            given, named = fresh(args, kwargs)
            model(*given, **named)
        except Exception as error:
            if running[0] or len(found) <= len(modules):  # inside a block, or before the last
                raise _unread(error, model) from error
            stopped = error
    if not found:
        raise ForecastError(
            f"blocks must be modules that are called; those of {type(model).__name__} are not. Pass blocks=."
        )
    if stopped is not None and remember and len(found) <= _runs(model, modules, args, kwargs):
        raise _unread(stopped, model) from stopped  # between two runs of one module
    return found


def _runs(model: nn.Module, modules: list[nn.Module], args: tuple, kwargs: dict[str, Any]) -> int:
    """How often blocks run: where they run again, nothing but a forward pass tells."""
    count = [0]

    def one_more(*_: Any) -> None:
        count[0] += 1

    with ExitStack() as stack:
        stack.enter_context(untouched(model))
        stack.enter_context(torch.no_grad())
        for module in modules:
            stack.callback(module.register_forward_hook(one_more).remove)
        args, kwargs = fresh(args, kwargs)
        model(*args, **kwargs)
    return count[0]


def _tokens_law(x: Tensor, axis: int, remember: bool) -> Law:
    """Of tokens (B, n, d), or (n, B, d) where tokens lie along axis 0."""
    return Law.of_tokens(x.transpose(0, 1) if axis == 0 else x, followed=remember)


def _unread(error: Exception, model: nn.Module) -> DepthscopeError:
    """What could not be read, the module it is in, and how to say it by hand."""
    if isinstance(error, DepthscopeError) and (
        isinstance(error, OtherTokensError) or not isinstance(error, ForecastError)
    ):
        return error
    where = _innermost(error, model)
    reason = str(error) if isinstance(error, ForecastError) else f"{type(error).__name__}: {error}"
    return ForecastError(
        f"{type(model).__name__} cannot be followed{f' in {where}' if where else ''}: "
        f"{reason.removeprefix('forecast: ').rstrip('.')}. Give what counts by hand, ds.forecast(depth=, n=, d=, h=, "
        "wiring= (norm placement), activation=, weights=, causal=), or calibrate on a scan, ds.forecast(scan, depth=)."
    )


def _innermost(error: Exception, model: nn.Module) -> str:
    """The path and class of the last module of the model that was running."""
    names = {id(module): name for name, module in model.named_modules() if name}
    found = ""
    step = error.__traceback__
    while step is not None:
        running = step.tb_frame.f_locals.get("self")
        if id(running) in names:
            found = f"{names[id(running)]} ({type(running).__name__})"
        step = step.tb_next
    return found


def _is_copy(value: Any, x: Tensor) -> bool:
    """Whether a second stream starts as the tokens themselves."""
    plain = isinstance(value, Tensor) and not isinstance(value, LawTensor) and not isinstance(x, LawTensor)
    return plain and value.shape == x.shape and torch.equal(value, x)


def _has_copies(modules: list[nn.Module]) -> bool:
    """Whether two neighbours have equal weights, as the copies of one layer in nn.TransformerEncoder do at first."""
    return any(_equal(a, b) for a, b in itertools.pairwise(modules))


def _equal(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip([p for p in a.parameters() if p.ndim > 1], [p for p in b.parameters() if p.ndim > 1], strict=False)
    return any(p.shape == q.shape and torch.equal(p, q) for p, q in pairs)


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


def _gain_and_offset(norm: Callable[..., Any], channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What a norm multiplies and adds, (c,) each, as it does it to z and -z: some multiply by 1 + weight.

    z has entries of 1, -1, ... with mean zero; the last three are 1, 1, -2 where their number is odd.
    """
    z = torch.ones(channels, dtype=dtype)
    z[1::2] = -1
    if channels % 2 and channels > 1:
        z[-2:] = torch.tensor([1.0, -2.0], dtype=dtype)
    z = z / z.square().mean().sqrt()
    up, down = (norm(sign * 1e3 * z).double() for sign in (1, -1))  # large: beside it epsilon is nothing
    return (up - down) / 2 / z.double(), (up + down) / 2


def _norm_of(module: nn.Module, plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, LawTensor):
            return plain(x, *args, **kwargs)
        weight, bias = _gain_and_offset(plain, x.shape[-1], x.dtype)
        eps = next((getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name)), None)
        eps = torch.finfo(x.dtype).eps if eps is None else float(eps)
        law = normed(law_of(x), weight, bias, centred=hasattr(module, "bias"), eps=eps)
        return LawTensor(x.shape, x.dtype, law)

    return forward
