"""What every verb gives on many models, written down and compared: a rebuild of the inside must not move a number.

    python tools/snapshot.py write FILE [--experiments]     before a change
    python tools/snapshot.py compare FILE                   after it: every difference, with its size

The models are those of tests/scans/families.py and one reference model for each wiring. Only public names are used.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "scans"))
import families

import depthscope as ds

SITES = ("block_in", "attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum", "block_out")
TOKENS = {
    "DeEscalate": lambda: ds.remedies.DeEscalate(0.7),
    "PairNorm": lambda: ds.remedies.PairNorm(),
}
AT_HOME = {  # remedies at the site that is their own
    "GainControl": lambda: ds.remedies.GainControl(0.5),
    "AttnScale": lambda: ds.remedies.AttnScale(0.5),
    "CentredAttention": lambda: ds.remedies.CentredAttention(),
    "SigmaReparam": lambda: ds.remedies.SigmaReparam(),
}


def models() -> Iterator[tuple[str, Any, Any]]:
    for name, build in families.FAMILIES.items():
        family = build()
        yield name, family.model, family.inputs
    X = torch.randn(3, 10, 32, generator=torch.Generator().manual_seed(2))
    for wiring in WIRINGS:
        for output in (False, True):
            torch.manual_seed(0)
            yield f"classic-{wiring}-{output}", ds.models.classic(4, 32, 4, wiring=wiring, output=output).eval(), X


WIRINGS = (
    "admin b2t deep_norm depth_scaled hyper_connections layer_norm_scaling layer_scale mix_ln peri_ln post_norm "
    "pre_norm resi_dual rezero sandwich skip_init sub_ln"
).split()


def tried(call: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def output_of(model: Any, inputs: Any) -> Any:
    with torch.no_grad():
        return first_of(model(inputs))


def first_of(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output
    return next(iter(output.values() if hasattr(output, "values") else output))


def record(thing: Any) -> Any:
    return thing.to_dict() if hasattr(thing, "to_dict") else thing


def snapshot_of(model: Any, inputs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"scan": tried(lambda: record(ds.scan(model, inputs)))}
    found["gradients"] = tried(
        lambda: record(ds.scan(model, inputs, metrics=["t_sim"], attention=False, gradients=loss))["gradients"]
    )

    def fixed(make: Callable[[], Any], at: str | None, scanned: bool) -> Any:
        with ds.fix_(model, make(), at=at) as fix:
            out = output_of(model, inputs)
            again = record(ds.scan(model, inputs, metrics=["t_sim"], attention=False)) if scanned else None
            return {"output": out, "fired": fix.fired, "repr": repr(fix), "scan": again}

    for name, make in TOKENS.items():
        for at in SITES:
            found[f"{name}@{at}"] = tried(lambda make=make, at=at, name=name: fixed(make, at, name == "DeEscalate"))
    for name, make in AT_HOME.items():
        found[name] = tried(lambda make=make: fixed(make, None, False))
    for parts in (("skips",), ("ffn",), ("norms",), ("attention_skip", "ffn", "norms")):

        def cut(parts: tuple[str, ...] = parts) -> Any:
            with ds.without_(model, *parts):
                return {
                    "output": output_of(model, inputs),
                    "scan": record(ds.scan(model, inputs, metrics=["t_sim"], attention=False)),
                }

        found["without " + ",".join(parts)] = tried(cut)
    found["forecast"] = tried(lambda: record(ds.forecast(model, inputs)))
    for form in ("secant", "tangent", "attention"):
        found[f"paths {form}"] = tried(lambda form=form: record(ds.paths(model, inputs, form=form)))
    found["bounds"] = tried(lambda: record(ds.bounds(model, inputs)))
    found["spectrum"] = tried(lambda: record(ds.spectrum(model, inputs)))
    return found


def loss(output: Any) -> Any:
    first = (
        output
        if isinstance(output, torch.Tensor)
        else next(iter(output.values()))
        if hasattr(output, "values")
        else output[0]
    )
    return first.float().square().mean()


def taken(experiments: bool) -> dict[str, Any]:
    found = {}
    for name, model, inputs in models():
        print(name, file=sys.stderr, flush=True)
        found[name] = snapshot_of(model, inputs)
    for name in ds.experiments.names() if experiments else ():
        print(name, file=sys.stderr, flush=True)
        torch.manual_seed(0)
        found[name] = {c.says: c.value for c in ds.reproduce(name, smoke=True).claims}
    return found


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            if key not in new:
                yield f"{where}/{key}: gone"
            else:
                yield from differences(old[key], new[key], f"{where}/{key}")
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        if old != new and all(isinstance(x, int | float) for x in (*old, *new)):
            yield from differences(
                torch.tensor(old, dtype=torch.float64), torch.tensor(new, dtype=torch.float64), where
            )
        else:
            for index, (a, b) in enumerate(zip(old, new, strict=True)):
                yield from differences(a, b, f"{where}[{index}]")
    elif isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and old.shape == new.shape:
        if not torch.equal(old.nan_to_num(1e33), new.nan_to_num(1e33)):
            off = float((old - new).abs().nan_to_num(0.0).max())
            yield f"{where}: off by {off:.2e} of {float(old.abs().nan_to_num(0.0).max()):.2e}"
    elif (
        isinstance(old, torch.Tensor)
        or isinstance(new, torch.Tensor)
        or (old != new and not (old != old and new != new))
    ):
        short = [" ".join(str(x).split())[:220] for x in (old, new)]
        yield f"{where}: {short[0]}  ->  {short[1]}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("write", "compare"))
    parser.add_argument("file")
    parser.add_argument("--experiments", action="store_true")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if chosen.command == "write":
        torch.save(taken(chosen.experiments), chosen.file)
        return
    old = torch.load(chosen.file, weights_only=False)
    new = taken(chosen.experiments)
    found = list(differences({k: v for k, v in old.items() if k in new}, new))
    print("\n".join(found) or "no difference")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
