"""The one table of operations: what torch's functions and modules do to a residual stream, by name."""

from typing import Any

import torch
from torch import Tensor, nn

ROLES: dict[str, str] = {
    **dict.fromkeys(("add", "add_", "__add__", "__radd__", "__iadd__"), "sum"),
    **dict.fromkeys(("mul", "mul_", "__mul__", "__rmul__"), "product"),
    **dict.fromkeys(("linear", "addmm", "conv1d", "conv2d"), "matrix"),
    **dict.fromkeys(("matmul", "__matmul__", "mm", "bmm", "einsum"), "weights"),  # where one operand is weights
    **dict.fromkeys(("layer_norm", "rms_norm"), "norm"),
    "scaled_dot_product_attention": "attention",
    **dict.fromkeys(("softmax", "special_softmax"), "softmax"),  # attention where its result is (n, n)
    "flex_attention": "flex",
    "_native_multi_head_attention": "packed",  # queries, keys, values and output in one function
    **dict.fromkeys(("exp", "exp_", "exp2", "exp2_", "special_exp2"), "exp"),  # of scores, before they are divided
    **dict.fromkeys(("relu", "relu_", "sigmoid", "sigmoid_"), "gate"),  # of scores: weights that are no probabilities
    **dict.fromkeys(("cat", "concat", "concatenate", "hstack"), "cat"),
    **dict.fromkeys(
        "dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout".split(), "dropout"
    ),
}
QUESTIONS = {  # they read no numbers, or give no tensor
    *"__get__ size dim is_floating_point numel stride is_contiguous is_inference data_ptr storage_offset".split(),
    *"untyped_storage element_size ndimension __len__ is_complex get_device __hash__ register_hook item".split(),
    *"tolist __bool__ __repr__ __format__ is_same_size is_signed nelement".split(),
}
VIEWS = {getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "data", "real")}  # but these give a tensor
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    "softmax": ("input", "dim"),
    "special_softmax": ("input", "dim"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "linear": ("input", "weight", "bias"),
    "addmm": ("bias", "input", "weight"),
    "matmul": ("input", "weight"),
    "__matmul__": ("input", "weight"),
    "mm": ("input", "weight"),
}
PAIRS = ("sum", "product")
PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm", "einsum")  # of matrices
REBINDING = ("__iadd__", "__imul__", "__isub__", "__itruediv__")  # written in place, and given a name anew
# what flow.py asks: functions that give the same tokens in another form, by their first argument
FORMS = {
    *"view reshape flatten unflatten view_as reshape_as squeeze unsqueeze permute transpose transpose_".split(),
    *"swapaxes swapdims movedim moveaxis t contiguous clone detach to type type_as float double half".split(),
    *"bfloat16 cpu cuda".split(),
    *"requires_grad_ squeeze_ unsqueeze_ alias roll __get__ __setitem__ masked_fill masked_fill_ nan_to_num".split(),
    *"dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout layer_norm rms_norm".split(),
    *"group_norm batch_norm instance_norm normalize clamp clip expand expand_as".split(),
}
SHAPED_ALIKE = {
    *"zeros_like ones_like empty_like full_like rand_like randn_like new_zeros new_ones new_empty new_full".split()
}
# or by the one argument that has the shape of the result: something smaller is added to it, or multiplies it
SCALED = {
    *"add add_ __add__ __radd__ __iadd__ sub sub_ __sub__ __isub__ subtract mul mul_ __mul__ __rmul__ __imul__".split(),
    *"multiply div div_ __truediv__ __itruediv__ divide true_divide __rsub__ where".split(),
}
# sums, with the places where the stream may stand
JOINS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("add", "add_", "__add__", "__radd__", "__iadd__", "lerp", "lerp_"), (0, 1)),
    **dict.fromkeys(("sub", "sub_", "__sub__", "__isub__", "subtract"), (0,)),
    **dict.fromkeys(("addcmul", "addcmul_", "addmm", "baddbmm"), (0,)),
    "gru_cell": (1,),
}
ACTIVATIONS = {
    *"relu relu_ relu6 gelu silu silu_ mish tanh tanh_ sigmoid sigmoid_ erf softmax elu selu celu glu".split(),
    *"hardswish hardsigmoid leaky_relu leaky_relu_ softplus softsign logsigmoid exp square pow special_softmax".split(),
}


class Operation:
    """One call of a torch function: its role, its arguments by place and by name. run() computes it."""

    __slots__ = ("args", "func", "kwargs", "name", "role")

    def __init__(self, func: Any, name: str, role: str | None, args: tuple, kwargs: dict[str, Any]) -> None:
        if kwargs and role in PAIRS:  # torch.add(a, other=b) has both operands in args, as a + b has
            named = [key for key in ("input", "other") if key in kwargs]
            args = (*args, *(kwargs[key] for key in named))
            kwargs = {key: value for key, value in kwargs.items() if key not in named}
        if role == "weights" and not any(map(is_weight, operands_of(args))):
            role = None
        self.func, self.name, self.role, self.args, self.kwargs = func, name, role, args, kwargs

    def run(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    def named(self) -> dict[str, Any]:
        """The arguments by name."""
        return {**dict(zip(ARGUMENTS.get(self.name, ()), self.args, strict=False)), **self.kwargs}

    @property
    def in_place(self) -> bool:
        """Whether the result is written into the first argument."""
        name = self.name
        written = name in REBINDING or (name.endswith("_") and not name.endswith("__"))
        return written or bool(self.kwargs.get("inplace"))

    def with_args(self, *args: Any) -> "Operation":
        """The same call with other arguments in the first places."""
        return Operation(self.func, self.name, self.role, (*args, *self.args[len(args) :]), self.kwargs)


def operands_of(args: tuple) -> tuple:
    """The tensors of a product: einsum has its equation first, and may have them in a list."""
    rest = args[1:] if args and isinstance(args[0], str) else args
    return tuple(rest[0]) if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest


def is_weight(value: Any) -> bool:
    """Whether an operand of a product is a matrix of weights: a parameter, or a tensor with no batch of tokens."""
    return isinstance(value, Tensor) and (value.ndim == 2 or (isinstance(value, nn.Parameter) and value.ndim > 2))


def is_scalar(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation: LayerNorm, LlamaRMSNorm, T5LayerNorm, ..., and not a block that has one.

    It may wrap one other norm; a module that owns two is a wiring, whatever its name.
    """
    if "norm" not in type(module).__name__.lower():
        return False
    if not module._modules:  # as most norms are
        return True
    parts = [type(part).__name__.lower() for part in module.modules()]
    return len(parts) <= 3 and sum("norm" in name for name in parts[1:]) <= 1


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an activation: nn.GELU, NewGELUActivation, ..., by the name of its class, as for norms."""
    name = type(module).__name__.lower()
    words = ("relu", "gelu", "silu", "mish", "tanh", "swish", "activation")
    bare = next(module.children(), None) is None and next(module.parameters(), None) is None
    return bare and any(word in name for word in words)
