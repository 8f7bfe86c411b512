"""A change that is compiled with its model: one graph for both, beside the wrapper's own code without the change.

The hooks of the model run as ever, and so do all checks before and after a pass; between them the model's forward is
one compiled function. It must be one graph: code behind a break would be looked up among what was compiled without the
change. Where it cannot be, the pass runs eagerly and a note says why.
"""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import first_line
from depthscope.interventions.compiled import compiled_in_place, is_compiled
from depthscope.interventions.hooks import Hook


def settings_of(model: nn.Module, wrappers: list[nn.Module]) -> dict[str, Any] | None:
    """How a model was compiled: backend and dynamic shapes; None unless it is compiled as a whole, and nowhere else."""
    outer = [wrapper for wrapper in wrappers if is_compiled(wrapper)]
    if len(outer) != 1 or compiled_in_place(model) or any(map(is_compiled, model.modules())):
        return None
    context = getattr(outer[0], "dynamo_ctx", None)
    backend: Any = getattr(context, "callback", None)
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return {"backend": backend, "dynamic": getattr(context, "_dynamic", None)} if callable(backend) else None


def is_exporting() -> bool:
    """Whether torch.export or torch.jit.trace writes down what runs, as a graph without Python."""
    exports = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)()  # older torch knows the second
    return exports or torch.jit.is_tracing()


class OneGraph:
    """In the place of a model's forward: compiled where allowed() says so, for the pass that runs, else as it was.

    failed is told why no graph was possible; it is not tried again.
    """

    def __init__(
        self, model: nn.Module, settings: dict[str, Any], allowed: Callable[[], bool], failed: Callable[[str], None]
    ) -> None:
        self.model, self.allowed, self.failed = model, allowed, failed
        self.plain = model.forward
        self.own = "forward" in vars(model)
        self.tracing = self.gave_up = False
        self.compiled = torch.compile(_fresh(model.forward), fullgraph=True, **settings)
        model.forward = Forward(model, self)  # type: ignore[assignment]

    def ran(self, *args: Any, **kwargs: Any) -> Any:
        if self.gave_up or torch._C._len_torch_function_stack() or not self.allowed():
            return self.plain(*args, **kwargs)
        self.tracing = True
        try:
            with torch.compiler.set_stance("default"):
                return self.compiled(*args, **kwargs)
        except Exception as error:
            exc = torch._dynamo.exc  # imported here: it takes seconds
            if not isinstance(error, exc.TorchDynamoException | exc.FailOnRecompileLimitHit):
                raise
            self.gave_up = True
            self.failed(first_line(error))
        finally:
            self.tracing = False
        return self.plain(*args, **kwargs)

    def remove(self) -> None:
        """Give the model its forward back."""
        if self.own:
            self.model.forward = self.plain
        else:
            del self.model.forward


class Forward:
    """A model's forward while there is a graph. A copy of the model has its own, without one."""

    def __init__(self, model: nn.Module, graph: OneGraph | None = None) -> None:
        self.model, self.graph = model, graph
        self.__wrapped__ = type(model).forward.__get__(model) if graph is None else graph.plain  # its signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs) if self.graph is None else self.graph.ran(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["model"])  # type: ignore[misc]

    @classmethod
    def take_out(cls, model: nn.Module) -> None:
        """Give a copy of a model its own forward back."""
        own = vars(model).get("forward")
        if isinstance(own, cls) and own.graph is None:
            del model.forward


def _fresh(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A function of code of its own: what torch.compile keeps, it keeps by code, whoever calls it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    code = call.__code__.replace(co_name=f"depthscope_{id(call)}")
    return types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


class InGraph(Hook):
    """The hook by which the remedy of a block acts on the tokens that the block gives, inside the graph alone."""

    def __init__(self, owner: Any, copies: Any, block: str) -> None:
        super().__init__(owner, "")
        self.copies, self.block = copies, block

    def __call__(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
        owner = self.depthscope_fix
        acts = owner is not None and owner.graph is not None and owner.graph.tracing
        return self.copies[self.block](output) if acts else None

    def __getstate__(self) -> dict[str, Any]:
        return {"depthscope_fix": None, "call": ""}  # a graph is not carried along
