"""The public names: adding one is a visible change."""

import depthscope as ds

METRICS = (
    "t_sim t_div t_cos escalation_rate xi mu omega delta lambda_2 eta relative_residual composite_norm hfc_lfc "
    "stable_rank effective_rank attention_entropy token_norm attention_sink first_token_similarity "
    "relative_residual_l1 relative_residual_l2 relative_residual_linf rank_one_residual "
    "massive_share t_sim_rest t_div_rest t_div_core same_share difference_rank difference_size few_points"
)


def test_public_names() -> None:
    assert sorted(ds.__all__) == sorted(
        (
            "scan forecast advise fix_ fixes without_ ablate paths bounds spectrum compare reproduce report load Scan Forecast Ablations Spectrum "
            "PathLengths Bounds Comparison "
            "metrics theory models remedies experiments errors"
        ).split()
    )
    assert all(hasattr(ds, name) for name in ds.__all__)


def test_the_shelf_of_metrics_is_whole() -> None:
    assert dir(ds.metrics) == sorted(METRICS.split())
    assert all(callable(getattr(ds.metrics, name)) for name in METRICS.split())


def test_every_error_is_one_of_ours() -> None:
    children = [e for e in vars(ds.errors).values() if isinstance(e, type) and e is not ds.errors.DepthscopeError]
    assert children and all(issubclass(e, ds.errors.DepthscopeError) for e in children)
