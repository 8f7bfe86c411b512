"""Arms of a comparison, written as words: a wiring or a remedy, its settings, its site, its own learning rate."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from depthscope.errors import UnknownNameError, UsageError
from depthscope.models.design import shelves
from depthscope.registry import TABLES, unknown
from depthscope.remedies.by_name import is_remedy, remedy_class, snake_names
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.training.build import Build

PLAIN = "post_norm"  # the wiring that a remedy mends unless another is named
AS_IT_IS = "plain"  # the same in comparisons of a model of one's own, whose wiring is its own
CAVEAT = "a third of the rate"
LITERAL = "the literal form"
ADVISED = "advised"  # in the place of a wiring: whatever the advisor chooses for sizes, depth and rate (advised.py)
GRAMMAR = 'as "pre_norm", "de_escalate:tau=0.5,at=ffn_in", "pre_norm+de_escalate" or "post_norm@3e-4"'


@dataclass(frozen=True)
class Arm:
    """One way to build the model, and the rate it is trained with (None: the one that all arms share).

    remark: why the arm is there, when nobody named it; what was chosen and why, when the advisor did. model: further
    settings of the build, scores and alpha, which the advisor may choose.
    """

    name: str
    wiring: str = PLAIN
    remedy: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    at: str | None = None
    causal: str = "auto"
    lr: float | None = None
    remark: str = ""
    model: dict[str, Any] = field(default_factory=dict, metadata={"since": 3})

    def build(self, base: Build) -> Build:
        """The base with this arm's wiring and remedy."""
        own = replace(base, wiring=self.wiring, remedy=self.remedy, remedy_settings=self.settings)
        return replace(own, at=self.at, causal=self.causal, **self.model)

    @property
    def plain(self) -> bool:
        """Whether it is post-norm as it was, the model that the remedies are for."""
        return self.wiring == PLAIN and self.remedy is None and not self.model

    @property
    def advised(self) -> bool:
        """Whether the advisor chose it."""
        return self.name.partition("@")[0] == ADVISED


def arm(text: str) -> Arm:
    """An arm from its words: [wiring+]name[:setting=value,...][@rate], name being a wiring or a remedy.

    A remedy without a wiring meets post_norm. "advised" asks the advisor. The setting `at` is the site of the remedy;
    causal=leak insists on its literal form in a causal model, which sees the future.
    """
    words, at_sign, rate = text.strip().partition("@")
    names, colon, pairs = words.partition(":")
    if words.strip() == ADVISED:
        return Arm(text.strip(), ADVISED, lr=_rate(rate, text) if at_sign else None)
    wiring, plus, remedy = names.partition("+")
    wiring = PLAIN if wiring == AS_IT_IS else wiring
    if not plus:
        wiring, remedy = (wiring, "") if _is_wiring(wiring) else (PLAIN, wiring)
    if not _is_wiring(wiring) or not ((not remedy and not plus) or is_remedy(remedy)):
        known = [*TABLES["wiring"], *snake_names(), ADVISED]
        wrong = remedy if _is_wiring(wiring) else wiring
        raise UnknownNameError(f"arm {text!r}: " + unknown("wiring or remedy", wrong, known))
    settings = _settings(pairs, text) if colon else {}
    if settings and not remedy:
        raise UsageError(f"arm {text!r}: only a remedy has settings; {wiring} is a wiring. Leave {pairs!r} out.")
    site, causal = settings.pop("at", None), settings.pop("causal", "auto")
    own_rate = _rate(rate, text) if at_sign else None
    return Arm(text.strip(), wiring, remedy or None, settings, site, causal, own_rate)


def arms(texts: str | Iterable[str]) -> list[Arm]:
    """All arms, from a list or from one text with commas: "post_norm,de_escalate:tau=0.5,at=ffn_in,pre_norm"."""
    parts = _cut(texts) if isinstance(texts, str) else list(texts)
    found = [arm(part) for part in parts]
    if not found:
        raise UsageError(f"arms: there must be one arm or more, {GRAMMAR}; got {texts!r}.")
    names = [one.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"arms: every arm must be there once; got {twice!r} twice. Leave one out.")
    return found


def with_caveat(chosen: Sequence[Arm], lr: float) -> list[Arm]:
    """The arms, and behind plain post_norm the same at a third of the rate: its failure depends on the rate.

    Not added where somebody gave post_norm a rate below lr, which all share, already; nor twice the same.
    """
    if any(one.plain and one.lr is not None and one.lr < lr for one in chosen):
        return list(chosen)
    lanes, rates = list[Arm](), {one.lr or lr for one in chosen if one.plain}
    for one in chosen:
        lanes.append(one)
        third = a_third(one.lr or lr)
        if one.plain and third not in rates:
            rates.add(third)
            lanes.append(
                replace(one, name=f"{one.name.partition('@')[0]}@{rate_words(third)}", lr=third, remark=CAVEAT)
            )
    return lanes


def with_literal(chosen: Sequence[Arm]) -> list[Arm]:
    """The arms of language models, and behind the first with de-escalation the same in the paper's literal form.

    The paper takes the mean over the whole segment, which holds the tokens that are to be predicted. How well that
    seems to do is worth a lane, once. Not added where somebody asked for a leak already.
    """
    if any(one.causal == "leak" for one in chosen):
        return list(chosen)
    lanes = list(chosen)
    for place, one in enumerate(chosen):
        if one.remedy is not None and remedy_class(one.remedy) is DeEscalate and "form" not in one.settings:
            words, at_sign, rate = one.name.partition("@")
            name = f"{words}{',' if ':' in words else ':'}causal=leak{at_sign}{rate}"
            lanes.insert(place + 1, replace(one, name=name, causal="leak", remark=LITERAL))
            break
    return lanes


def a_third(lr: float) -> float:
    """Of a rate, as people round it: to one digit where that is off by a tenth at most (1e-3: 3e-4), else to two."""
    round_one = float(f"{lr / 3:.0e}")
    return round_one if abs(3 * round_one / lr - 1) < 0.101 else float(f"{lr / 3:.1e}")


def rate_words(lr: float) -> str:
    """A learning rate as people write it: 1e-3, 3.3e-4."""
    digits, _, power = f"{lr:.2e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def _cut(text: str) -> list[str]:
    """At commas, but not at those between the settings of an arm."""
    parts: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        if "=" in piece.partition(":")[0] and parts:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return parts


def _settings(pairs: str, text: str) -> dict[str, Any]:
    """setting=value pairs; values are JSON where they can be, words otherwise."""
    found: dict[str, Any] = {}
    for pair in pairs.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not (key and equals and value):
            raise UsageError(f"arm {text!r}: settings must be name=value; got {pair!r}. Write an arm {GRAMMAR}.")
        try:
            found[key] = json.loads(value.lower() if value in ("True", "False") else value)
        except ValueError:
            found[key] = value
    return found


def _rate(words: str, text: str) -> float:
    try:
        rate = float(words)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise UsageError(f"arm {text!r}: after @ there must be a learning rate; got {words!r}. Write post_norm@3e-4.")
    return rate


def _is_wiring(name: str) -> bool:
    shelves()
    return name in TABLES["wiring"]
