"""What depthscope says of a case, held to the truth, verb by verb."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tools.coverage.case import Case, Sample, Stream
from tools.coverage.truth import of_heads, recorded, similarities, without_mean
from torch import Tensor

import depthscope as ds
from depthscope.errors import DepthscopeError

EXACT = 1e-6  # of t_sim
HEADS = 1e-3  # of delta and lambda_2
OUTPUTS = 1e-4  # of outputs, relative to the largest
NEAR = 0.05  # of a forecast's t_sim
VERBS = ("scan", "back", "fix", "forecast")


@dataclass(frozen=True)
class Finding:
    """right, refused, wrong, off (a forecast), crash, or none (no truth to hold it to); why in one line."""

    verdict: str
    why: str = ""


class WrongError(Exception):
    """Something that was said is not so."""


class NotGivenError(Exception):
    """A stream that the answer leaves out: it says nothing wrong."""


class OffError(Exception):
    """A forecast that is farther from the truth than it may be."""


def check(case: Case, verbs: tuple[str, ...] = VERBS) -> dict[str, Finding]:
    """One finding for each verb."""
    judged = Judged(case)
    return {verb: _classified(getattr(judged, verb)) for verb in verbs}


def _classified(act: Callable[[], None]) -> Finding:
    try:
        act()
    except WrongError as error:
        return Finding("wrong", _line(error))
    except OffError as error:
        return Finding("off", _line(error))
    except (DepthscopeError, NotGivenError) as error:
        return Finding("refused", f"{type(error).__name__}: {_line(error)}")
    except Exception as error:
        return Finding("crash", f"{type(error).__name__}: {_line(error)}")
    return Finding("right")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


class Judged:
    """A case with its truth. Each verb runs on a model of its own."""

    def __init__(self, case: Case) -> None:
        self.case = case
        sample = case.sample()
        self.truths = {
            name: similarities(recorded(sample, stream), stream.mask) for name, stream in sample.streams.items()
        }
        self.heads = of_heads(sample.streams[case.stream])
        self._scan: Any = None
        self._name: str | None = None  # of the judged stream, in scan.streams

    @property
    def truth(self) -> np.ndarray:
        return self.truths[self.case.stream]

    def scan(self) -> None:
        """t_sim and depth of the judged stream, and the heads where they are given."""
        sample = self.case.sample()
        try:
            found = ds.scan(sample.model, sample.inputs, **self._attention())
        except DepthscopeError:
            if self.case.repeats:
                raise
            return
        several = len(self.truths) > 1  # with one true stream, it is the one that the scan shows
        streams = (getattr(found, "streams", None) if several else None) or {"": found}
        for name, one in streams.items():
            if _fits(one, self.truth):
                self._scan, self._name = one, name or None
                break
        else:
            self._say_wrong(streams, found)
        self._check_heads(self._scan)

    def _say_wrong(self, streams: dict[str, Any], main: Any) -> None:
        if len(self.truths) > 1 and all(any(_fits(s, t) for t in self.truths.values()) for s in streams.values()):
            raise NotGivenError(f"the stream {self.case.stream} is not in the scan, which has {list(streams)}")
        raise WrongError(_difference(main, self.truth))

    def _check_heads(self, found: Any) -> None:
        if self.heads is None or not found.heads:
            return
        for name, rows in self.heads.items():
            if any(note.startswith(f"{name} is ") or f"{name} are from" in note for note in found.notes):
                continue  # said to be an estimate
            for block, true in enumerate(rows):
                given = found.per_head(name)[block][: found.head_counts[block]].numpy()
                if true is None or not len(given):
                    continue
                if given.shape != true.shape:
                    raise WrongError(f"block {block + 1} has {len(true)} heads; the scan says {len(given)}")
                if not np.allclose(given, true, rtol=HEADS, atol=HEADS):
                    raise WrongError(f"{name} of block {block + 1} is {_few(true)}; the scan says {_few(given)}")

    def back(self) -> None:
        """scan.blocks gives the same numbers when it is passed back."""
        found = self._scanned()
        sample = self.case.sample()
        again = ds.scan(sample.model, sample.inputs, blocks=found.blocks, **self._attention())
        streams = getattr(again, "streams", None) or {"": again}
        if not any(_fits(one, found["t_sim"].numpy()) for one in streams.values()):
            raise WrongError(_difference(again, found["t_sim"].numpy()))

    def fix(self) -> None:
        """De-escalation after every block equals the true stream without its mean; no leak; undo is bit for bit."""
        sample = self.case.sample()
        stream = sample.streams[self.case.stream]
        before = sample.output()
        with stream.tapped(without_mean(stream)):
            true = sample.output()
        where = self._stream(ds.fix_)
        handle = ds.fix_(sample.model, ds.remedies.DeEscalate(1.0), at="block_out", **where)
        with handle:
            given = sample.output()
            changed = None if stream.changed is None else sample.output(stream.changed)
            repadded = None if sample.repadded is None else sample.output(sample.repadded)
        self._compare(sample, stream, given, true)
        if not torch.equal(sample.output(), before):
            raise WrongError("undo does not give the outputs of before")
        if changed is not None and sample.token_axis is not None:
            _check_leak(given, changed, sample.token_axis)
        if repadded is not None and _distance(*(_real(x, sample, stream) for x in (given, repadded))) > OUTPUTS:
            raise WrongError("outputs at tokens depend on what is at the padding")

    def _compare(self, sample: Sample, stream: Stream, given: Tensor, true: Tensor) -> None:
        far = _distance(_real(true, sample, stream), _real(given, sample, stream))
        if not far <= OUTPUTS:
            raise WrongError(f"the output is {far:.2g} from that of the stream without its mean")

    def forecast(self) -> None:
        """t_sim of every state within 0.05."""
        sample = self.case.sample()
        found = ds.forecast(sample.model, sample.inputs, **self._stream(ds.forecast)).t_sim.double().numpy()
        if found.shape != self.truth.shape:
            raise OffError(f"depth {len(found) - 1} for {len(self.truth) - 1}")
        far = np.abs(found - self.truth)
        if not np.nanmax(far) <= NEAR:
            raise OffError(
                f"{np.nanmax(far):.3f} off at state {np.nanargmax(far)}: {_few(found)} for {_few(self.truth)}"
            )

    def _attention(self) -> dict[str, bool]:
        return {} if self.case.attention else {"attention": False}

    def _scanned(self) -> Any:
        if self._scan is None:
            self.scan()
        if self._scan is None:
            raise NotGivenError("nothing was scanned")
        return self._scan

    def _stream(self, verb: Callable[..., Any]) -> dict[str, Any]:
        """stream= where the model has several and the verb takes it; otherwise the blocks of the scan."""
        if len(self.truths) == 1:
            return {}
        found = self._scanned()
        if self._name is not None and "stream" in inspect.signature(verb).parameters:
            return {"stream": self._name}
        return {"blocks": found.blocks}


def _fits(scan: Any, truth: np.ndarray) -> bool:
    values = scan["t_sim"].double().numpy()  # NaN where all tokens are zero
    return values.shape == truth.shape and np.allclose(values, truth, rtol=EXACT, atol=EXACT, equal_nan=True)


def _difference(scan: Any, truth: np.ndarray) -> str:
    values = scan["t_sim"].double().numpy()
    if values.shape != truth.shape:
        return f"depth {len(values) - 1} for {len(truth) - 1}, blocks {scan.blocks}"
    return f"t_sim {_few(values)} for {_few(truth)}, blocks {scan.blocks}"


def _few(values: Any) -> str:
    return re.sub(r"\b0\.", ".", " ".join(f"{v:.3f}" for v in values))


def _real(x: Tensor, sample: Sample, stream: Stream) -> Tensor:
    """An output at the tokens that are no padding."""
    if stream.mask is None or sample.token_axis is None:
        return x
    batch_first = x if sample.token_axis == 1 else x.transpose(0, 1)
    return batch_first[stream.mask] if batch_first.shape[:2] == stream.mask.shape else x


def _distance(true: Tensor, given: Tensor) -> float:
    return float((true - given).abs().max() / true.abs().max().clamp_min(1e-30))


def _check_leak(given: Tensor, changed: Tensor, axis: int) -> None:
    n = given.shape[axis]
    earlier, now = (x.narrow(axis, 0, n - 1) for x in (given, changed))
    if not torch.allclose(earlier, now, rtol=0, atol=1e-5 * float(given.abs().max())):
        raise WrongError(f"a later token moves earlier ones by {float((earlier - now).abs().max()):.2g}")
