"""One scan, every family: depth, states and heads against an independent capture, and no trace left behind."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from families import DEPTH, FAMILIES, Family
from torch import Tensor

import depthscope as ds


@pytest.fixture(params=FAMILIES, scope="module")
def family(request: pytest.FixtureRequest) -> Family:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return FAMILIES[request.param]()


@pytest.fixture(scope="module")
def scan(family: Family) -> ds.Scan:
    return ds.scan(family.model, family.inputs)


def first_tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else next(v for v in value if isinstance(v, Tensor))


def batch_first(family: Family, x: Tensor) -> Tensor:
    return x.detach().double().transpose(0, 1) if family.time_first else x.detach().double()


def captured(family: Family) -> tuple[list[Tensor], list[Tensor]]:
    """Block outputs and the tokens each attention reads, by plain hooks in a plain forward pass."""
    states: list[Tensor] = []
    reads: list[Tensor] = []

    def keep_output(_m: Any, _a: Any, out: Any) -> None:
        states.append(batch_first(family, first_tensor(out)))

    def keep_input(_m: Any, args: tuple, kwargs: dict) -> None:
        reads.append(batch_first(family, first_tensor([*args, *kwargs.values()])))

    handles = [m.register_forward_hook(keep_output) for m in family.ends]
    handles += [m.register_forward_pre_hook(keep_input, with_kwargs=True) for m in family.reads]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            family.model(family.inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        for handle in handles:
            handle.remove()
    return states, reads


def t_sim_by_definition(X: Tensor) -> float:
    n = X.shape[-2]
    Pi_1 = torch.ones(n, n, dtype=X.dtype) / n
    return float(((Pi_1 @ X).norm(dim=(-2, -1)) ** 2 / X.norm(dim=(-2, -1)) ** 2).mean())


def test_depth_placement_and_causality_are_right(family: Family, scan: ds.Scan) -> None:
    assert scan.depth == DEPTH
    assert scan.placement == family.placement
    assert scan.causal is family.causal
    assert scan.token_axis == (0 if family.time_first else 1)
    expected = ["attention", "ffn"]
    if family.placement == "post":
        expected = ["attention", "attention_norm", "ffn", "ffn_norm"]
    assert scan.step_names == expected


def test_states_equal_a_direct_computation(family: Family, scan: ds.Scan) -> None:
    states, _ = captured(family)
    assert len(states) == DEPTH
    for block, X in enumerate(states, start=1):
        assert float(scan["t_sim"][block]) == pytest.approx(t_sim_by_definition(X), abs=1e-6)


def dense_statistics(P: Tensor, X: Tensor) -> dict[str, np.ndarray]:
    """delta, |lambda_2|, omega and entropy of every head, by numpy, from the definitions; mean over samples."""
    P_, X_ = P.double().numpy(), X.numpy()
    n = P_.shape[-1]
    e, Pi_2 = np.ones(n) / n**0.5, np.eye(n) - 1 / n
    rows: dict[str, list] = {"delta": [], "lambda_2": [], "omega": [], "attention_entropy": []}
    for b in range(len(P_)):
        heads = P_[b]
        rows["delta"].append([np.linalg.svd(Pi_2 @ p, compute_uv=False)[0] for p in heads])
        rows["lambda_2"].append([np.sort(np.abs(np.linalg.eigvals(p)))[-2] for p in heads])
        rows["omega"].append([np.linalg.norm(e @ p @ Pi_2 @ X_[b]) / np.linalg.norm(e @ X_[b]) for p in heads])
        rows["attention_entropy"].append([-(p * np.log(np.where(p > 0, p, 1))).sum() / n for p in heads])
    return {name: np.mean(values, axis=0) for name, values in rows.items()}


def test_heads_equal_a_dense_computation_from_eager_attention(family: Family, scan: ds.Scan) -> None:
    _, reads = captured(family)
    matrices = family.attention()
    assert len(matrices) == len(reads) == DEPTH
    for block, (P, X) in enumerate(zip(matrices, reads, strict=True)):
        for name, expected in dense_statistics(P, X).items():
            np.testing.assert_allclose(scan.per_head(name)[block].numpy(), expected, atol=1e-3, err_msg=name)


def test_no_trace_is_left(family: Family) -> None:
    model, inputs = family.model, family.inputs
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    flags = [m.training for m in model.modules()]
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    with torch.no_grad():
        before = first_tensor(list(as_tuple(model(inputs))))
    state = torch.get_rng_state()
    ds.scan(model, inputs)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        after = first_tensor(list(as_tuple(model(inputs))))
    assert torch.equal(before, after)
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()] == hooks
    assert [m.training for m in model.modules()] == flags
    assert getattr(getattr(model, "config", None), "_attn_implementation", None) == implementation
    assert all(p.grad is None for p in model.parameters())


def as_tuple(output: Any) -> tuple:
    if isinstance(output, Tensor):
        return (output,)
    return tuple(output.values()) if hasattr(output, "values") else tuple(output)


def test_the_steps_multiply_to_the_whole_block(family: Family) -> None:
    """Escalation rates of the steps multiply, r(X, Z) = r(X, Y) r(Y, Z): exactly so for one sequence."""
    along = 1 if isinstance(family.model, torch.nn.TransformerEncoder) and family.time_first else 0
    scan = ds.scan(family.model, family.inputs.narrow(along, 0, 1), attention=True)
    product = torch.ones(DEPTH, dtype=torch.float64)
    for rate in scan.per_step("escalation_rate").values():
        product = product * rate
    torch.testing.assert_close(product, scan["escalation_rate"], rtol=1e-9, atol=0)
    gains = scan.per_step("gain")  # the log-odds t_sim / t_div add up, and each gain is log(xi_1 / xi_2)
    for step, gain in gains.items():
        torch.testing.assert_close(
            gain, (scan.per_step("xi_1")[step] / scan.per_step("xi_2")[step]).log(), rtol=1e-9, atol=1e-12
        )
    odds = (scan["t_sim"] / scan["t_div"]).log()
    torch.testing.assert_close(sum(gains.values()), odds[1:] - odds[:-1], rtol=1e-7, atol=1e-9)
