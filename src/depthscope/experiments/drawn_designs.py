"""Designs drawn by a seed for the question whether they train; those from SEEN on are held out.

The first SEEN were held out by halves at first. The formula of that time failed on the second half, and was fitted to
all of them; the designs that follow were drawn by the same seed, and not looked at before the formula was fixed. What
advice must demand was chosen by the failures among those before JUDGED; it is judged by those that follow.
"""

import random
from dataclasses import dataclass, replace
from typing import Any

from depthscope.models.design import Design
from depthscope.training.build import Build

TASKS = ("digits", "pydoc", "sorting")
TOKENS = {"digits": 17, "pydoc": 24, "sorting": 8}  # of a sequence
WIRINGS = (  # all that have a law; post-norm as often as all wirings that write nothing at the start
    *("post_norm",) * 3,
    *("pre_norm", "deep_norm", "depth_scaled", "b2t", "resi_dual", "admin", "sandwich", "sub_ln", "peri_ln"),
    *("mix_ln", "layer_norm_scaling", "layer_scale", "rezero", "skip_init"),
)
MENDED = ("post_norm", "post_norm", "post_norm", "b2t", "depth_scaled", "pre_norm")  # wirings met with de-escalation
SHARE_MENDED = 0.35
SEEN, JUDGED = 120, 240
GOLDEN = (5**0.5 - 1) / 2  # multiples of it, modulo 1, fill the interval evenly however many there are


@dataclass(frozen=True)
class DrawnDesign:
    """One design on one task. choices: of Design, and scores; tau 0 is no de-escalation."""

    number: int
    task: str
    held_out: bool
    choices: dict[str, Any]
    tau: float = 0.0
    site: str = "block_out"

    @property
    def judges_advice(self) -> bool:
        return self.number >= JUDGED

    @property
    def tokens(self) -> int:
        return TOKENS[self.task]

    @property
    def design(self) -> Design:
        return Design(**{k: v for k, v in self.choices.items() if k != "scores"}, causal=self.task == "pydoc")

    @property
    def asked(self) -> dict[str, Any]:
        """Arguments of ds.forecast."""
        more = {"tau": self.tau, "site": self.site} if self.tau else {}
        return self.choices | more | {"n": self.tokens, "causal": self.task == "pydoc"}

    def changed(self, **settings: Any) -> "DrawnDesign":
        """Another one in its place, by settings as advice has them; de-escalation and scores are those of settings."""
        tau, site = settings.pop("tau", 0.0), settings.pop("site", "block_out")
        return replace(self, choices=self.choices | {"scores": 1.0} | settings, tau=tau, site=site)

    @property
    def build(self) -> Build:
        """What a training builds."""
        if not self.tau:
            return Build(**self.choices)
        return Build(**self.choices, remedy="de_escalate", remedy_settings={"tau": self.tau}, at=self.site)


def drawn_designs(count: int, seed: int, depths: tuple[int, int], widths: tuple[int, ...]) -> list[DrawnDesign]:
    """`count` designs, task after task in turn.

    Depth is spread evenly on the log scale between two. The first designs are the same for any count.
    """
    found: list[DrawnDesign] = []
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        turn, place = divmod(number, len(TASKS))
        share = (turn * GOLDEN + random.Random(f"{seed} {place} depth").random()) % 1
        depth = round(depths[0] * (depths[1] / depths[0]) ** share)
        found.append(_one(number, TASKS[place], number >= SEEN, chance, depth, widths))
    return found


def _one(
    number: int, task: str, held_out: bool, chance: random.Random, depth: int, widths: tuple[int, ...]
) -> DrawnDesign:
    pick = chance.choice
    mended = chance.random() < SHARE_MENDED
    d = pick(widths)
    choices = {
        "depth": depth,
        "d": d,
        "h": pick([2, 4, 8]),
        "q": pick([1, 2]) * d,
        "wiring": pick(MENDED if mended else WIRINGS),
        "weights": pick(["torch_default", "torch_default", "xavier", "xavier", "unit_gain"]),
        "alpha": pick([0.5, 1.0, 1.0, 1.0, 1.5]),
        "activation": pick(["relu", "relu", "gelu", "swiglu"]),
        "scores": pick([1.0, 1.0, 1.0, 0.3]),
        "output": True,
    }
    tau, site = (pick([0.3, 0.5, 1.0, 1.0]), pick(["block_out", "block_out", "ffn_in"])) if mended else (0.0, "")
    if choices["wiring"] == "b2t":
        site = "block_out"  # where else the theory of blocks that add their input once more does not know
    return DrawnDesign(number, task, held_out, choices, tau, site or "block_out")
