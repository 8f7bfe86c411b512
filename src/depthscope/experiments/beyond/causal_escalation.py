"""Does the analysis of escalation hold in decoders? The paper's quantities in causal post-norm models, before training.

Theorem 2.6 promises that attention makes tokens alike if omega + delta < 1. Causal attention does not meet this
condition: even uniform causal P has delta > 1 from 17 tokens on (without the mask it is 0), and omega is large in the
first block, because the first tokens receive most of the attention. So the theorem says nothing here, but tokens grow
alike all the same. Three things are measured instead. mu_1 and mu_2 are what a head keeps of the mean and of the
differences (eq. (10)); tokens grow alike in expectation if mu_1 > mu_2, which needs no bound. xi_1 / xi_2 is what a
block did to t_sim / t_div. And since every position of a causal model sees other tokens, we measure the diversity of
every prefix: t_div of tokens 1 .. k.

depthscope reproduce beyond/causal_escalation     about 10 s: 24 blocks, Gaussian tokens, 3 models a kind.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, Row, reported, stated
from depthscope.experiments.progress import track
from depthscope.metrics import delta
from depthscope.models.transformer import classic
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.remedies.fix import fix_
from depthscope.scans.record import Scan
from depthscope.scans.scan import scan

KINDS = ("bidirectional", "causal", "sink", "prefix", "past")  # the last three: causal with this form at ffn_in, tau 1
UNMENDED = KINDS.index("causal")
COLLAPSED = 0.99  # t_sim, after which xi_1 / xi_2 is about nothing
METRICS = ("t_sim", "xi", "omega", "delta", "mu", "attention_sink", "first_token_similarity")


@dataclass(frozen=True)
class Config:
    """n tokens; lengths: up to which uniform causal attention is asked for its delta."""

    LEAST = {"n": 32, "lengths": 17, "depth": 4, "trials": 1}  # what the claims are about
    n: int = 64
    depth: int = 24
    d: int = 128
    h: int = 4
    batch: int = 8
    lengths: int = 64
    trials: int = 3
    seed: int = 0


SMOKE = Config(n=32, depth=12, d=64, h=2, batch=4, lengths=24, trials=1)


def prefixes(n: int) -> list[int]:
    """The lengths of prefixes that are looked at: powers of two, and n."""
    return sorted({*(2**power for power in range(1, n.bit_length()) if 2**power <= n), n})


def run(cfg: Config) -> dict[str, Tensor]:
    """By kind, means over models: states (kinds, depth + 1), blocks (kinds, depth), heads as shares of them.

    prefix: t_div of the first k tokens, (kinds, depth + 1, prefixes). uniform_delta: of 2 ... lengths tokens.
    """
    turns = track([kind for kind in KINDS for _ in range(cfg.trials)], len(KINDS) * cfg.trials)
    seen: dict[str, list[dict[str, Tensor]]] = {kind: [] for kind in KINDS}
    for kind in turns:
        seen[kind].append(_quantities(_scanned(cfg, kind), cfg))
    mean = {
        name: torch.stack([torch.stack([one[name] for one in seen[kind]]).mean(0) for kind in KINDS])
        for name in seen["causal"][0]
    }
    return mean | {"uniform_delta": torch.stack([delta(uniform(n)) for n in range(2, cfg.lengths + 1)])}


def uniform(n: int) -> Tensor:
    """P_ts = 1 / t for s <= t, (n, n)."""
    return torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1)[:, None]


def _scanned(cfg: Config, kind: str) -> Scan:
    model = classic(cfg.depth, cfg.d, cfg.h, q=2 * cfg.d, causal=kind != "bidirectional").eval()
    X = torch.randn(cfg.batch, cfg.n, cfg.d)
    metrics = [*METRICS, *(f"t_div[0:{k}]" for k in prefixes(cfg.n))]
    if kind in ("bidirectional", "causal"):
        return scan(model, X, metrics=metrics)
    with fix_(model, DeEscalate(form=kind), at="ffn_in"):
        return scan(model, X, metrics=metrics)


def _quantities(found: Scan, cfg: Config) -> dict[str, Tensor]:
    head = {name: found.per_head(name) for name in ("omega", "delta", "mu_1", "mu_2")}
    plain = ("t_sim", "first_token_similarity", "xi_1", "xi_2", "omega", "delta", "mu_1", "mu_2", "sink_mass")
    return {name: found[name] for name in plain} | {
        "precondition": (head["omega"] + head["delta"] < 1).double().mean(1),
        "mu_1_above_mu_2": (head["mu_1"] > head["mu_2"]).double().mean(1),
        "prefix": torch.stack([found[f"t_div[0:{k}]"] for k in prefixes(cfg.n)], -1),
    }


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    t_sim, prefix = numbers["t_sim"], numbers["prefix"]
    on_the_way = t_sim[UNMENDED, :-1] < COLLAPSED
    grown = (numbers["xi_1"] / numbers["xi_2"])[UNMENDED][on_the_way].min()
    above = (numbers["uniform_delta"] > 1).nonzero()
    kept = prefix[UNMENDED, 4] / prefix[UNMENDED, 0]  # after four blocks; later all of them are near zero
    outweighs, first = numbers["mu_1_above_mu_2"][UNMENDED].mean(), numbers["first_token_similarity"][UNMENDED, -1]
    erased = prefix[KINDS.index("prefix"), 1:, 0] - 0.5
    met = {kind: numbers["precondition"][KINDS.index(kind)].mean() for kind in ("causal", "bidirectional")}
    start, along = t_sim[UNMENDED, 0], numbers["first_token_similarity"][UNMENDED, 0]
    lost, spread = t_sim[UNMENDED, -1], prefix[[2, 4], -1].min()
    never = cfg.lengths + 1
    rows: list[Row] = [
        ("uniform causal attention: the least number of tokens with delta > 1", int(above[0]) + 2, 17, 17, never),
        ("causal: heads with omega + delta < 1 (share)", met["causal"], 0.0, 0.01, met["bidirectional"]),
        ("bidirectional: the same", met["bidirectional"], 0.9, 1.0, met["causal"]),
        ("causal: heads with mu_1 > mu_2, measured instead (share)", outweighs, 0.99, 1.0, 0.5),
        (f"causal, tokens escalate nevertheless: least xi_1 / xi_2 before t_sim {COLLAPSED}", grown, 1.1, 10.0, 1.0),
        ("causal: t_sim after the last block", lost, 0.95, 1.0, start),
        ("causal: and tokens lie along the first one (share)", first, 0.8, 1.0, along),
        ("causal, four blocks: diversity that the first two tokens keep", kept[0], 0.0, 0.35, kept[-1]),
        ("causal, four blocks: diversity that all tokens keep", kept[-1], 0.35, 0.9, kept[0]),
        ("sink, prefix, past: largest t_sim after the last block", t_sim[2:, -1].max(), 0.0, 0.15, lost),
        ("sink, past: least diversity of a prefix at the end", spread, 0.6, 1.0, prefix[UNMENDED, -1].min()),
    ]
    says = "prefix: the first token is erased, t_div of the first two minus 1/2"  # x - x = 0: it cannot be otherwise
    return stated(cfg.trials, *rows) + reported(cfg.trials, (says, erased.abs().max()))


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    alike, condition, early = figure.subplots(1, 3)
    for row, kind in zip(numbers["t_sim"], KINDS, strict=True):
        alike.plot(row, label=kind)
    for kind, style in (("bidirectional", ":"), ("causal", "-")):
        place = KINDS.index(kind)
        blocks = range(1, cfg.depth + 1)
        condition.plot(
            blocks, (numbers["omega"] + numbers["delta"])[place], f"C0{style}", label=f"omega + delta, {kind}"
        )
        condition.plot(blocks, (numbers["mu_2"] / numbers["mu_1"])[place], f"C1{style}", label=f"mu_2 / mu_1, {kind}")
    condition.axhline(1, color="0.5", ls=":", lw=1)
    for block in sorted({0, 2, 4, 8, cfg.depth}):
        if block <= cfg.depth:
            early.plot(prefixes(cfg.n), numbers["prefix"][UNMENDED, block], "o-", ms=3, label=f"block {block}")
    early.plot(prefixes(cfg.n), numbers["prefix"][2, -1], "k--", lw=1, label=f"sink, block {cfg.depth}")
    alike.set(title="t_sim at initialisation", xlabel="block", ylim=(-0.02, 1.02))
    condition.set(title="Theorem 2.6 needs omega + delta < 1", xlabel="block", ylim=(0, None))
    early.set_xscale("log", base=2)
    early.set(title="causal: t_div of the first k tokens", xlabel="k", ylim=(-0.02, 1.02))
