"""What a run does below Python: time in operators, bytes that they read and write, operations of matrix products."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# operator -> place of the factor whose last axis is summed over
PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "vdot": 0, "addmm": 1, "addmv": 1, "baddbmm": 1, "addbmm": 1}
DECOMPOSED = ("svd", "eig", "qr", "cholesky", "solve", "lu_factor", "geqrf", "householder", "lstsq")
SMALL = 1 << 16  # bytes that are moved in about the time of a call: what an operator takes below it is the call
CLASSES = ("products", "memory", "decompositions", "calls")


class Counting(TorchDispatchMode):
    """Counts every operator while it is active. seconds: by class of operators; views take none of anything."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self.now = now
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls = self.bytes = self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        start = self.now()
        result = func(*args, **kwargs)
        took = self.now() - start
        if not any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
            self._count(func.overloadpacket.__name__, args, result, took)
        return result

    def _count(self, name: str, args: Any, result: Any, took: float) -> None:
        flops = flops_of(name, args, result)
        moved = sum(one.nbytes for one in tree_leaves((args, result)) if isinstance(one, Tensor))
        self.seconds[class_of(name, flops, moved)] += took
        self.calls += 1
        self.flops += flops
        self.bytes += moved


def class_of(name: str, flops: int, moved: int) -> str:
    """What the time of an operator is spent on."""
    if any(word in name for word in DECOMPOSED):
        return "decompositions"
    if moved < SMALL:
        return "calls"
    return "products" if flops else "memory"


def flops_of(name: str, args: Any, result: Any) -> int:
    """Operations of a product, a multiplication and an addition for each term; 0 for everything else."""
    name = name.rstrip("_")
    if name in PRODUCTS:
        return 2 * result.numel() * args[PRODUCTS[name]].shape[-1]
    if name.startswith("_scaled_dot_product") and "backward" not in name:
        q, k = args[:2]
        return 4 * q.numel() * k.shape[-2]
    return 0
