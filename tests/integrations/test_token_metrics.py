"""The torchmetrics of depthscope: what torchmetrics' own tester asks of a metric (it does not ship), and more.

The truth is depthscope.metrics on all sequences at once, which tests of their own hold to the papers' definitions.
"""

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import depthscope as ds
from loops import over

pytest.importorskip("torchmetrics")
from torchmetrics import Metric, MetricCollection

PAIRS = {
    "TokenSimilarity": "t_sim",
    "TokenDiversity": "t_div",
    "TokenCosine": "t_cos",
    "RelativeResidual": "relative_residual",
}
BATCHES = [torch.randn(size, 11, 8, generator=torch.Generator().manual_seed(size)) + 0.5 for size in (4, 3, 6, 1)]
MASKS = [
    torch.arange(11) < torch.randint(2, 12, (len(X), 1), generator=torch.Generator().manual_seed(len(X)))
    for X in BATCHES
]


def made(name: str, **options: bool) -> Metric:
    return getattr(ds.integrations, name)(**options)


def truth(name: str, masked: bool = True, batches: slice = slice(None)) -> torch.Tensor:
    X, mask = torch.cat(BATCHES[batches]), torch.cat(MASKS[batches])
    return getattr(ds.metrics, PAIRS[name])(X, mask=mask if masked else None).mean()


def updated(name: str, batches: slice = slice(None)) -> Metric:
    metric = made(name)
    for X, mask in zip(BATCHES[batches], MASKS[batches], strict=True):
        metric.update(X, mask)
    return metric


@over("name", PAIRS)
def test_batches_of_any_size_give_the_mean_over_all_sequences(name: str) -> None:
    assert torch.allclose(updated(name).compute(), truth(name), rtol=1e-12, atol=0)
    bare = made(name)
    for X in BATCHES:
        bare.update(X)
    assert torch.allclose(bare.compute(), truth(name, masked=False), rtol=1e-12, atol=0)
    many = made(name)
    many.update(torch.stack([BATCHES[1]] * 5))  # (5, 3, n, d): all axes in front are sequences
    assert torch.allclose(many.compute(), getattr(ds.metrics, PAIRS[name])(BATCHES[1]).mean())


@over("name", PAIRS)
def test_forward_gives_the_batch_and_adds_it(name: str) -> None:
    metric = made(name)
    for i, (X, mask) in enumerate(zip(BATCHES, MASKS, strict=True)):
        assert torch.allclose(metric(X, mask), truth(name, batches=slice(i, i + 1)))
    assert torch.allclose(metric.compute(), truth(name)) and metric.update_count == len(BATCHES)


@over("name", PAIRS)
def test_reset_clone_copy_and_pickle(name: str) -> None:
    metric = updated(name)
    for other in (metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert type(other) is type(metric) and other is not metric and other.compute() == metric.compute()
        other.reset()
        assert other.total == 0 and other.count == 0 and other.count.dtype == torch.long
        other.update(BATCHES[0])
        assert other.compute() != metric.compute() and hash(other)
    assert torch.allclose(metric.compute(), truth(name))


@over("name", PAIRS)
def test_the_state_dict_is_empty_until_it_is_asked_for(name: str) -> None:
    metric = updated(name)
    assert metric.state_dict() == {}
    metric.persistent(True)
    assert sorted(metric.state_dict()) == ["count", "total"]
    again = made(name)
    again.persistent(True)
    again.load_state_dict(metric.state_dict())
    again.update(BATCHES[0], MASKS[0])
    double = updated(name)
    double.update(BATCHES[0], MASKS[0])
    assert again.compute() == double.compute()


@over("name", PAIRS)
@over("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """Tokens in half precision are summed in float64, also in a module that is turned to half."""
    metric = torch.nn.ModuleList([made(name)]).to(dtype)[0]
    for X, mask in zip(BATCHES, MASKS, strict=True):
        metric.update(X.to(dtype), mask)
    X = torch.cat(BATCHES).to(dtype)
    assert metric.compute().dtype == torch.float64
    assert torch.allclose(
        metric.compute(), getattr(ds.metrics, PAIRS[name])(X, mask=torch.cat(MASKS)).mean(), rtol=1e-9
    )


@over("name", PAIRS)
def test_gradients_are_as_declared(name: str) -> None:
    metric = made(name)
    assert metric.is_differentiable is metric(BATCHES[0].clone().requires_grad_()).requires_grad is False
    for fact in ("is_differentiable", "higher_is_better"):
        with pytest.raises(RuntimeError):
            setattr(metric, fact, None)


@over("name", PAIRS)
def test_plots(name: str) -> None:
    figure, axes = updated(name).plot()
    assert axes.has_data() and figure.axes
    metric = made(name)
    _, axes = metric.plot([metric(X) for X in BATCHES])
    assert len(axes.lines[0].get_xdata()) == len(BATCHES)


def test_a_nan_is_never_averaged_away_and_no_update_is_told() -> None:
    metric = made("TokenDiversity")
    metric.update(BATCHES[0])
    broken = BATCHES[1].clone()
    broken[0, 0, 0] = torch.nan
    metric.update(broken)
    assert metric.compute().isnan()
    with pytest.warns(UserWarning, match="before the ``update`` method"):
        assert made("TokenDiversity").compute().isnan()


def test_a_wrong_mask_is_told_as_by_the_metric() -> None:
    with pytest.raises(ds.errors.MaskError, match=r"t_sim: "):
        made("TokenSimilarity").update(BATCHES[0], MASKS[1])


def test_a_collection_of_all() -> None:
    together = MetricCollection([made(name) for name in PAIRS])
    for X, mask in zip(BATCHES, MASKS, strict=True):
        together.update(X, mask=mask)
    assert all(torch.allclose(value, truth(name)) for name, value in together.compute().items())


def one_process(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = {name: updated(name, slice(rank, None, 2)).compute() for name in PAIRS}
    stepwise = made("TokenSimilarity", dist_sync_on_step=True)
    found["step"] = stepwise(BATCHES[rank], MASKS[rank])
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.long
def test_two_processes_give_the_number_of_one(tmp_path: Path) -> None:
    mp.spawn(one_process, (str(tmp_path),), nprocs=2)
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert all(torch.allclose(found[name], truth(name), rtol=1e-12, atol=0) for name in PAIRS)
        assert torch.allclose(found["step"], truth("TokenSimilarity", batches=slice(0, 2)))


def test_states_of_processes_are_summed() -> None:
    """The same without processes: torchmetrics gathers what the others have, here the second half of the batches."""
    others = {"total": None, "count": None}

    def gathered(state: torch.Tensor, group: object) -> list[torch.Tensor]:
        name = "count" if state.dtype == torch.long else "total"
        return [state, others[name]]

    for name in PAIRS:
        far, near = (
            updated(name, slice(2, None)),
            getattr(ds.integrations, name)(dist_sync_fn=gathered, distributed_available_fn=lambda: True),
        )
        others |= {"total": far.total, "count": far.count}
        for X, mask in zip(BATCHES[:2], MASKS[:2], strict=True):
            near.update(X, mask)
        assert torch.allclose(near.compute(), truth(name), rtol=1e-12, atol=0)


def test_names_are_listed_and_imported_late() -> None:
    assert dir(ds.integrations) == sorted(ds.integrations.__all__) and {*PAIRS} <= {*dir(ds.integrations)}
    with pytest.raises(AttributeError, match="no attribute 'TokenSim'"):
        ds.integrations.TokenSim  # noqa: B018


def test_without_torchmetrics_one_line_says_what_to_install() -> None:
    """And nothing is imported before a name of it is asked for."""
    code = (
        "import sys, depthscope as ds; ds.integrations, ds.scan; print('torchmetrics' in sys.modules, flush=True); "
        "sys.modules['torchmetrics'] = None; ds.integrations.TokenDiversity"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False"
    assert "MissingExtraError: integrations: needs torchmetrics. pip install '" in done.stderr


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "torchmetrics.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "page", "exec"), {})
    assert f"# {capsys.readouterr().out.strip()}\n" in code
