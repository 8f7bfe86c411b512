"""Relative attention against loops over queries, keys and heads, and against numeric gradients."""

import math

import pytest
import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.models import sequence_attention
from depthscope.models.design import Design
from depthscope.models.position_scores import position_scores, scaled_dot_product_attention
from depthscope.models.relative_attention import RelativeAttention, sinusoids
from depthscope.models.segment_memory import Recall
from loops import over


def attention(d: int = 12, h: int = 3, **choices) -> RelativeAttention:
    torch.manual_seed(0)
    module = RelativeAttention(Design(d=d, h=h, causal=True, output=True, **choices))
    for bias in (module.u, module.v):
        torch.nn.init.normal_(bias)
    return module


def by_loops(module: RelativeAttention, X: Tensor, M: Tensor) -> Tensor:
    """One sequence: X (n, d), M (m, d) -> (n, d), every score by itself, in float64."""
    W_q, W_k, W, W_R, W_O, u, v = (
        p.detach().double()
        for p in (
            *(x.weight for x in (module.W_q, module.W_k, module.W, module.W_kR, module.W_O)),
            module.u,
            module.v,
        )
    )
    X, M = X.detach().double(), M.detach().double()
    (n, d), m, h = X.shape, len(M), module.h
    e = d // h
    all_tokens = [*M, *X]
    joined = torch.zeros(n, d, dtype=torch.float64)
    for head in range(h):
        part = slice(head * e, (head + 1) * e)
        for i in range(n):
            q = (W_q @ X[i])[part]
            weights = []
            for j in range(m + i + 1):
                distance = m + i - j
                R = [math.sin(distance * 10000 ** (-2 * c / d)) for c in range((d + 1) // 2)]
                R += [math.cos(distance * 10000 ** (-2 * c / d)) for c in range((d + 1) // 2)]
                r = (W_R @ torch.tensor(R[:d], dtype=torch.float64))[part]
                k = (W_k @ all_tokens[j])[part]
                weights.append(math.exp((float((q + u[head]) @ k) + float((q + v[head]) @ r)) / math.sqrt(e)))
            for j, weight in enumerate(weights):
                joined[i, part] += weight / sum(weights) * (W @ all_tokens[j])[part]
    return joined @ W_O.T


@over("m", [0, 1, 7])
@over("n", [1, 2, 6])
@over("dtype, near", [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@torch.no_grad()
def test_equals_loops(n: int, m: int, dtype: torch.dtype, near: float) -> None:
    module = attention().to(dtype)
    X, M = torch.randn(2, n, 12, dtype=dtype), torch.randn(2, m, 12, dtype=dtype)
    found = module(X, Recall(sinusoids(m + n, 12, X), M if m else None))
    for row in range(2):
        torch.testing.assert_close(found[row].double(), by_loops(module, X[row], M[row]), rtol=near, atol=near)


def test_without_recall_positions_are_made_on_the_spot() -> None:
    module, X = attention(), torch.randn(2, 5, 12)
    assert torch.equal(module(X), module(X, Recall(sinusoids(5, 12, X))))


@over("d", [8, 7])
def test_sinusoids(d: int) -> None:
    R = sinusoids(3, d, torch.zeros(1, dtype=torch.float64))
    assert R.shape == (4, d)
    for row, distance in enumerate((3, 2, 1, 0)):
        assert float(R[row, 1]) == pytest.approx(math.sin(distance * 10000 ** (-2 / d)))
        assert float(R[row, (d + 1) // 2]) == pytest.approx(math.cos(distance))


@over("n, m", [(1, 0), (1, 3), (4, 0), (5, 3), (3, 5)])
def test_gradients_are_those_of_differences(n: int, m: int) -> None:
    module = attention(4, 2).double()
    R, M = sinusoids(m + n, 4, torch.zeros(1).double()), torch.randn(2, m, 4).double()
    X = torch.randn(2, n, 4).double().requires_grad_()
    names = [name for name, _ in module.named_parameters()]
    start = [p.detach().requires_grad_() for p in module.parameters()]

    def run(X: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, given, (X, Recall(R, M if m else None)))

    assert torch.autograd.gradcheck(run, (X, *start))


def test_no_gradient_enters_the_memory() -> None:
    module, X, M = attention(), torch.randn(2, 3, 12), torch.randn(2, 4, 12)
    recall = Recall(sinusoids(7, 12, X), M, keep=5)
    X.requires_grad_(), M.requires_grad_()
    module(X, recall).sum().backward()
    assert M.grad is None and X.grad is not None
    assert not recall.after.requires_grad
    assert torch.equal(recall.after, torch.cat([M, X], 1)[:, -5:].detach())


def test_position_scores_are_shifted_and_closed() -> None:
    n, T, q = 4, 6, torch.randn(3, 2, 4, 2)
    q[..., 0, 0] = 1e37  # an overflow of a distance that no key has must not become a number
    r = torch.randn(3, T + 1, 2)
    r[:, 0] = torch.tensor([3e38, 0.0])
    B = position_scores(q, r, 0.5)
    assert B.shape == (3, 2, n, T)
    for i in range(n):
        for j in range(T):
            distance = T - n + i - j
            if distance < 0:
                assert bool((B[..., i, j] == -torch.inf).all())
            else:
                expected = torch.einsum("hbe,he->hb", 0.5 * q[..., i, :], r[:, T - distance])
                torch.testing.assert_close(B[..., i, j], expected)


@over("leading", [(), (2,), (2, 3)])
def test_batches_of_any_shape_are_single_sequences(leading: tuple[int, ...]) -> None:
    module, X = attention(), torch.randn(*leading, 5, 12, dtype=torch.float32)
    found = module(X).reshape(-1, 5, 12)
    for row, one in enumerate(X.reshape(-1, 5, 12)):
        torch.testing.assert_close(found[row], module(one[None])[0])


def test_attention_is_torchs_for_a_mask() -> None:
    q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7))
    mask = torch.randn(2, 3, 5, 7, dtype=torch.float64, requires_grad=True)
    own = scaled_dot_product_attention(q, k, v, mask)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(own, theirs)
    G = torch.randn_like(own)
    for a, b in zip(*(torch.autograd.grad(x, (q, k, v, mask), G) for x in (own, theirs)), strict=True):
        torch.testing.assert_close(a, b)


@over("leading, n, m", [((), 4, 3), ((2,), 1, 0), ((2,), 1, 3), ((3,), 5, 0), ((3,), 3, 5), ((2, 3), 6, 2)])
def test_one_sequence_after_another_is_all_at_once(leading: tuple[int, ...], n: int, m: int) -> None:
    torch.manual_seed(0)
    shapes = [(*leading, 3, length, 4) for length in (n, n, m + n, m + n)] + [(3, m + n + 1, 4)]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    G, found = torch.randn(shapes[0], dtype=torch.float64), []
    for worth in (sequence_attention.WORTH, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sequence_attention, "WORTH", worth)
            mixed = sequence_attention.relative_attention(*tensors)
            assert ("OneByOne" in repr(_steps(mixed))) == (worth == 0)
            found.append((mixed, *torch.autograd.grad(mixed, tensors, G)))
            if n < 4:
                assert torch.autograd.gradcheck(sequence_attention.relative_attention, tensors)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def _steps(Y: Tensor) -> list[str]:
    """The names of the operations that gave Y."""
    names, left = [], [Y.grad_fn]
    while left:
        node = left.pop()
        names.append(type(node).__name__)
        left += [before for before, _ in node.next_functions if before is not None]
    return names


def test_at_a_usual_size_sequences_go_one_after_another_and_attention_can_be_watched() -> None:
    module, X = attention(64, 4), torch.randn(2, 130, 64)
    alone = module(X)
    assert any("OneByOne" in name for name in _steps(alone))

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", ""))
            return func(*args, **kwargs or {})

    seen: list[str] = []
    with Watch():
        watched = module(X)
    assert seen.count("scaled_dot_product_attention") == 1
    torch.testing.assert_close(watched, alone)


def test_what_it_cannot_be() -> None:
    with pytest.raises(UsageError, match="must be causal with attention"):
        RelativeAttention(Design(d=8, h=2))
    with pytest.raises(UsageError, match=r"attention='uniform'\. Leave both out"):
        RelativeAttention(Design(d=8, h=2, causal=True, attention="uniform"))


@over("n", [9, 190])
def test_in_bfloat16_under_autocast(n: int) -> None:
    module, X = attention(32, 2), torch.randn(2, n, 32)
    exact = module(X)
    with torch.autocast("cpu", torch.bfloat16):
        rough = module(X)
    rough.float().sum().backward()
    torch.testing.assert_close(rough.float(), exact, rtol=0.1, atol=0.05)
    assert all(bool(p.grad.isfinite().all()) for p in module.parameters())
