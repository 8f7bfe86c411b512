"""What is run on the fake device, in a process of its own: python tests/fake_device_checks.py"""

import inspect
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import depthscope as ds
import depthscope.metrics
import depthscope.remedies  # both fill their tables
from depthscope.registry import TABLES
from fake_device import FAR, READ_AT, Far, MixedDevicesError, back, far_away, moved

R = ds.remedies
X = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
MASK = torch.ones(2, 9, dtype=torch.bool)
MASK[1, 6:] = False


def model(**choices: Any) -> nn.Module:
    torch.manual_seed(0)
    return ds.models.classic(3, 32, 4, **choices).eval()


def close(far: Any, near: Any) -> None:
    a, b = (torch.as_tensor(back(value)).double() for value in (far, near))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)


def the_device_tells() -> None:
    """The check itself: what mixes devices is caught, numbers are not."""
    a = Far(torch.ones(3))
    assert a.device == FAR and (a * 2 + torch.tensor(1.0)).device == FAR and torch.zeros(2, device=FAR).device == FAR
    for mixed in (lambda: a + torch.ones(3), lambda: torch.cat([a, torch.zeros(1)])):
        try:
            mixed()
        except MixedDevicesError:
            continue
        raise AssertionError("a mixture of devices was not caught")


def scans() -> None:
    of_two_states = {name for name, metric in TABLES["metric"].items() if metric.facts.kind == "step"}
    of_two_states -= {name for name in of_two_states if TABLES["metric"][name].facts.formula is not None}
    names = sorted(set(TABLES["metric"]) - of_two_states)  # those a scan refuses: it keeps numbers, not states
    for choices in ({}, {"causal": True}, {"wiring": "pre_norm"}):
        near = ds.scan(model(**choices), X, metrics=names)
        far = ds.scan(moved(model(**choices)), moved(X), metrics=names)
        for name in names:
            for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (far[name], near[name])), strict=True):
                assert not isinstance(a, Far), f"{name} stayed on the device"
                close(a, b)
        assert far.verdict.status == near.verdict.status
        assert far.causal == near.causal, (choices, far.causal, near.causal, far.notes)


def states() -> None:
    """An accelerator is waited for a few times in a scan of states, however deep the model is: numbers stay on it."""
    tokens = torch.randn(2, 70, 64, generator=torch.Generator().manual_seed(0))  # large enough to stay float32
    mask = torch.arange(70).expand(2, 70) < torch.tensor([[70], [60]])
    for given in ({}, {"mask": mask}):
        waited = []
        for depth in (2, 9):
            torch.manual_seed(0)
            built = ds.models.classic(depth, 64, 4).eval()
            near = ds.scan(built, tokens, attention=False, **given)
            READ_AT.clear()
            far = ds.scan(moved(built), moved(tokens), attention=False, **moved(given))
            waited.append(sum(READ_AT.values()))
            for name in near.states:
                close(far[name], near[name])
        assert waited[0] == waited[1] < 20, (waited, READ_AT.most_common(9))


def heads() -> None:
    """Numbers of heads stay on the device until the pass has ended: fetching them waits once, at any depth."""
    for causal in (False, True):
        fetches = []
        for depth in (2, 9):
            torch.manual_seed(0)
            built = ds.models.classic(depth, 64, 4, causal=causal).eval()
            tokens = torch.randn(8, 130, 64, generator=torch.Generator().manual_seed(0))  # large enough not to wait
            near = ds.scan(built, tokens)
            READ_AT.clear()
            far = ds.scan(moved(built), moved(tokens))
            fetches.append(sum(n for at, n in READ_AT.items() if at.startswith("scans/")))
            for name in ("attention_entropy", "delta", "lambda_2", "omega"):
                close(far[name], near[name])
            assert far.residuals.keys() == near.residuals.keys() and far.causal == near.causal == causal
        assert fetches[0] == fetches[1] < 20, (fetches, READ_AT.most_common(9))


def metrics() -> None:
    P = (X @ X.transpose(-1, -2)).softmax(-1)
    values = {"X": X, "Y": X.flip(0), "P": P}
    for metric in (metric for name, metric in TABLES["metric"].items() if name != "eta"):
        near = metric(*(values[letter] for letter in metric.facts.takes))
        far = metric(*(moved(values[letter]) for letter in metric.facts.takes))
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (far, near)), strict=True):
            close(a, b)


def fixes() -> None:
    for name, remedy in TABLES["remedy"].items():
        width = {"d": 32} if "d" in inspect.signature(remedy).parameters else {}
        for choices in ({}, {"causal": True}):
            outputs: list[Any] = []
            for put in (lambda value: value, moved):
                fixed = put(model(output=True, **choices))
                try:
                    with ds.fix_(fixed, put(remedy(**width))), torch.no_grad():
                        outputs.append(fixed(put(X)))
                except ds.errors.CausalLeakError as error:  # the same on both
                    outputs.append(str(error))
            if isinstance(outputs[0], str):
                assert outputs[0] == outputs[1], name
            else:
                close(*reversed(outputs))


def padding_and_sites() -> None:
    def encoder() -> nn.Module:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    for at in ("block_in", "sa_out", "ffn_in", "block_out"):
        outputs = []
        for put in (lambda value: value, moved):
            fixed = put(encoder())
            with ds.fix_(fixed, R.DeEscalate(0.5), at=at), torch.no_grad():
                outputs.append(fixed(put(X), src_key_padding_mask=put(~MASK)))
        close(back(outputs[1])[MASK], outputs[0][MASK])


def forecasts() -> None:
    for given in ({"inputs": X}, {"n": 9}):
        near, far = (ds.forecast(put(model(output=True)), **put(given)).t_sim for put in (lambda value: value, moved))
        close(far, near)


def without_float64() -> None:
    """The same verbs where the device has no float64, as MPS: what needs it is measured on the CPU."""
    try:
        Far(torch.ones(2)).double()
        raise AssertionError("the device took float64")
    except MixedDevicesError:
        pass
    for check in (scans, fixes, padding_and_sites, language, forecasts, ablations, circuits):
        check()


def ablations() -> None:
    """Blocks without skips fall to the floor of float32, where all that is left is rounding; it is the same on both."""
    near, far = (ds.ablate(put(model()), put(X)).to_dict() for put in (lambda value: value, moved))
    assert len(far["rows"]) == 8
    alike(far, near, "ablate")


def circuits() -> None:
    for verb in (ds.spectrum, ds.paths):
        for choices in ({}, {"causal": True}, {"wiring": "pre_norm"}):
            near, far = (verb(put(model(output=True, **choices)), put(X)) for put in (lambda value: value, moved))
            alike(far.to_dict(), near.to_dict(), verb.__name__)


def alike(far: Any, near: Any, where: str) -> None:
    """Two records as dicts: the same words, and numbers that are close."""
    if isinstance(near, dict):
        assert list(far) == list(near), where
        for name in near:
            alike(far[name], near[name], f"{where}.{name}")
    elif isinstance(near, list | tuple):
        assert len(far) == len(near), where
        for i, (one, other) in enumerate(zip(far, near, strict=True)):
            alike(one, other, f"{where}[{i}]")
    elif isinstance(near, float):
        assert math.isclose(far, near, rel_tol=1e-4, abs_tol=1e-6) or (far != far and near != near), (where, far, near)
    else:
        assert far == near, (where, far, near)


def language() -> None:
    torch.manual_seed(0)
    words = torch.randint(0, 30, (2, 8))
    outputs = []
    for put in (lambda value: value, moved):
        torch.manual_seed(0)
        built = put(ds.models.transformer_xl(vocabulary=30, memory=5, depth=2, d=16, h=2, q=32))
        with ds.fix_(built, R.DeEscalate(0.5)), torch.no_grad():
            _, memory = built(put(words))
            outputs.append(built(put(words.flip(1)), memory)[0])
    close(*reversed(outputs))


CHECKS: tuple[Callable[[], None], ...] = (
    the_device_tells, metrics, states, heads, scans, fixes, padding_and_sites, language, forecasts, ablations, circuits,
    without_float64,
)  # fmt: skip

if __name__ == "__main__":
    for check in CHECKS:
        if sys.argv[1:] and check.__name__ not in sys.argv[1:]:
            continue
        with far_away(narrow=check is without_float64):
            check()
        print(check.__name__, sum(READ_AT.values()), READ_AT.most_common(6), flush=True)
