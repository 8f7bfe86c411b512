"""The public names: adding one is a visible change."""

import ast
from pathlib import Path

import pytest

import depthscope as ds

METRICS = (
    "t_sim t_div t_cos escalation_rate xi mu omega delta lambda_2 eta relative_residual composite_norm hfc_lfc "
    "stable_rank effective_rank attention_entropy token_norm attention_sink first_token_similarity "
    "relative_residual_l1 relative_residual_l2 relative_residual_linf rank_one_residual "
    "massive_share t_sim_rest t_div_rest t_div_core same_share difference_rank difference_size few_points block_influence angular_distance"
)


def test_public_names() -> None:
    assert sorted(ds.__all__) == sorted(
        (
            "scan forecast advise fix_ fixes without_ ablate paths bounds spectrum depth drop_ compare gate reproduce report load Monitor Scan Forecast Ablations Spectrum "
            "PathLengths Bounds EffectiveDepth Comparison Gate Advice "
            "metrics theory models remedies experiments integrations errors"
        ).split()
    )
    assert all(hasattr(ds, name) for name in ds.__all__) and {*ds.__all__} <= {*dir(ds)}


def test_type_checkers_are_told_the_same_places() -> None:
    """Names are imported when they are used; what is written for type checkers must be where they really are."""
    tree = ast.parse(Path(ds.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    told = {a.name: n.module for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert {name: told[name] for name in ds.PLACES} == ds.PLACES
    assert {name for name, module in told.items() if module == "depthscope"} == {*ds.PACKAGES}
    assert sorted([*ds.PLACES, *ds.PACKAGES, "compare", "report"]) == sorted(ds.__all__)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'scna'"):
        ds.scna  # noqa: B018


def test_the_shelf_of_metrics_is_whole() -> None:
    assert dir(ds.metrics) == sorted(METRICS.split())
    assert all(callable(getattr(ds.metrics, name)) for name in METRICS.split())


def test_every_error_is_one_of_ours() -> None:
    children = [e for e in vars(ds.errors).values() if isinstance(e, type) and e is not ds.errors.DepthscopeError]
    assert children and all(issubclass(e, ds.errors.DepthscopeError) for e in children)
