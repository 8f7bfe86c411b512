"""The Spectrum record: which blocks smooth and which sharpen, by how much, and the eigenvalues that decide it."""

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import RecordError
from depthscope.files import whole_file
from depthscope.theory.layer_spectrum import VERDICTS

FORMAT, VERSION = "depthscope.spectrum", 1
COMPLEX = ("eigenvalues", "head_eigenvalues", "lambda_H", "lambda_A")


@dataclass(frozen=True, eq=False)
class Spectrum:
    """One row for each block. margin > 0: repeated as it is, the block would make tokens all alike (smooth,
    over-smoothing), like exp(-margin depth); margin < 0: what differs between tokens wins (sharpen)."""

    model: str
    tokens: int
    width: int
    samples: int
    placement: list[str]  # of the norm that attention goes with: pre, post, none
    eigenvalues: Tensor  # (depth, d) complex: of H = W_V W_O of all heads, with the scale of a norm before attention;
    # (depth, d - 1) where a norm behind the sum takes the channels' mean away
    head_eigenvalues: Tensor  # (depth, heads, d_v) complex: of each head's H, those that are not zero by its shape
    factor: Tensor  # (depth,) what lambda_H is multiplied by: 1 / (size of the tokens x weight of the skip)
    lambda_H: Tensor  # (depth,) complex: the dominating pair
    lambda_A: Tensor
    constant: Tensor  # (depth,) log growth of the constant part for each repetition
    rest: Tensor  # (depth,) the same of what differs between tokens
    margins: Tensor  # (depth, samples) of each sequence, without the scale of a norm behind the sum
    margin_apart: Tensor  # (depth,) the margin where every head keeps its own attention, by repeating the block
    margin_of_weights: Tensor  # (depth,) with tokens of size 1 and a skip of weight 1, as in the paper
    head_margins: Tensor  # (depth, heads), without the scale of a norm behind the sum; NaN beyond a block's own heads
    lowest: Tensor  # (depth, heads) least real part of attention's eigenvalues, mean over sequences
    rank_gap: Tensor  # (depth,) 0: a tie, the only case without rank collapse
    asymmetry: Tensor  # (depth,) |H - H^T| / |H|
    negative_scales: Tensor  # (depth,) share of channels whose norm has a negative scale
    hfc_lfc: Tensor  # (depth + 1,) high over low frequencies = sqrt(t_div / t_sim), mean over sequences
    frequencies: str  # tokens: 1-D along the sequence; patches: 2-D over the image, by length
    response: Tensor  # (depth, F) energy after a block over energy before, lowest frequency first
    tie: float
    notes: list[str] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return len(self.constant)

    @property
    def heads(self) -> int:
        return self.head_margins.shape[1]

    @property
    def margin(self) -> Tensor:
        """(depth,) constant - rest."""
        return self.constant - self.rest

    @property
    def verdicts(self) -> list[str]:
        """smooth, sharpen or neither, block by block."""
        return [_word(m, self.tie) for m in self.margin.tolist()]

    @property
    def head_verdicts(self) -> list[list[str]]:
        return [[_word(m, self.tie) for m in row if not math.isnan(m)] for row in self.head_margins.tolist()]

    @property
    def ties(self) -> Tensor:
        """(depth,) bool: several pairs dominate together, so that not even the direction of the state is rank one."""
        return self.rank_gap <= self.tie

    @property
    def shares(self) -> dict[str, float]:
        """The share of blocks that smooth, that sharpen, and that do neither."""
        return _shares(self.verdicts)

    @property
    def head_shares(self) -> dict[str, float]:
        return _shares([word for row in self.head_verdicts for word in row])

    @property
    def shares_of_weights(self) -> dict[str, float]:
        """The same for tokens of size 1, as the paper has it."""
        return _shares([_word(m, self.tie) for m in self.margin_of_weights.tolist()])

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; a complex number is a pair, a number that is not finite is a word."""
        record = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        told = {
            "margin": _plain(self.margin),
            "verdicts": self.verdicts,
            "shares": self.shares,
            "head_shares": self.head_shares,
            "shares_of_weights": self.shares_of_weights,
        }
        return {"format": FORMAT, "version": VERSION, **record, **told}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Spectrum":
        got = (record.get("format"), record.get("version")) if isinstance(record, dict) else (None, None)
        if got != (FORMAT, VERSION):
            raise RecordError(
                f"Spectrum: a record must be a {FORMAT} of version {VERSION}; got {got[0]!r}, {got[1]!r}. Was it "
                "saved by Spectrum.save?"
            )
        missing = [f.name for f in fields(cls) if f.name not in record]
        if missing:
            raise RecordError(f"Spectrum: a record must have all its fields; missing: {', '.join(missing)}.")
        values = {f.name: record[f.name] for f in fields(cls)}
        for f in fields(cls):
            if f.type is Tensor:
                numbers = torch.tensor(_numbers(values[f.name]), dtype=torch.float64)
                values[f.name] = torch.view_as_complex(numbers) if f.name in COMPLEX else numbers
        return cls(**values)

    def save(self, path: str | Path) -> None:
        """Write the record as JSON: the whole file or none."""
        with whole_file(path) as part:
            part.write_text(json.dumps(self.to_dict(), allow_nan=False))

    @classmethod
    def load(cls, path: str | Path) -> "Spectrum":
        try:
            return cls.from_dict(json.loads(Path(path).read_text()))
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RecordError(f"Spectrum.load: {str(path)!r} must be JSON written by save(); {error}.") from None

    def __str__(self) -> str:
        from depthscope.reports.spectrum import spectrum_text

        return spectrum_text(self)


def _word(margin: float, tie: float) -> str:
    return VERDICTS[1 + (margin > tie) - (margin < -tie)]


def _shares(words: list[str]) -> dict[str, float]:
    return {word: words.count(word) / max(1, len(words)) for word in reversed(VERDICTS)}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _plain((torch.view_as_real(value) if value.is_complex() else value).tolist())
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(value: Any) -> Any:
    return [_numbers(v) for v in value] if isinstance(value, list) else float(value)
