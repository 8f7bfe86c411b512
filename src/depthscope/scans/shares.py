"""Who made the tokens alike: shares of the growth of similarity, by kinds of steps."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from depthscope.scans.record import Scan

QUIET = 0.5  # total growth of the log-odds t_sim / t_div below which nothing is worth blaming
UNEXPLAINED = 0.5  # of the growth over all blocks: where steps miss more of it, they explain nothing

_WORDS = {
    "attention": "mixing by attention",
    "branch": "branches in which no attention is seen",
    "branches": "attention and feed-forward in parallel",
    "ffn": "the feed-forward network (its activation adds a common offset)",
    "norms": "the norms",
    "embeddings": "the embeddings (tokens enter already alike)",
    "biases": "a common offset from biases",
    "remedy": "the remedy",
    "other": "what the block does after its last residual sum",
}


def growth_shares(scan: "Scan") -> dict[str, float]:
    """Shares of the growth of log(t_sim / t_div) from unrelated tokens to the last block.

    The log-odds add up exactly over steps, sequence by sequence (Yu & Zhang 2023, eq. (6) in odds form). Growth that
    biases explain is counted as theirs. Empty when there is nothing to share out, and when the steps that could be
    followed do not add up to what the blocks did: then nobody is blamed.
    """
    if float(scan.states["t_div"][0]) == 0:
        return {"embeddings": 1.0}
    growth = {"embeddings": _at_the_start(scan)}
    for name in scan.step_names:
        row = scan.steps[name]
        usable = row["gain"].isfinite()
        gain = row["gain"][usable]
        bias = torch.where(gain > 0, row["bias_share"][usable].clamp(0, 1), 0.0)
        kind = "norms" if name.endswith("_norm") else "branches" if " and " in name else name.split("_")[0]
        growth["biases"] = growth.get("biases", 0.0) + float((gain * bias).sum())
        growth[kind] = growth.get(kind, 0.0) + float((gain * (1 - bias)).sum())
    positive = {name: value for name, value in growth.items() if value > 0}
    total = sum(positive.values())
    if total <= QUIET or not _adds_up(scan):
        return {}
    return {name: value / total for name, value in positive.items()}


def _at_the_start(scan: "Scan") -> float:
    """Mean over sequences of log((n - 1) t_sim / t_div): zero for unrelated tokens, whose t_div is 1 - 1/n."""
    if not scan.sequences:  # files of version 1
        t_div, n = scan.states["t_div"][:1], torch.tensor([scan.valid_tokens])
    else:
        t_div = scan.sequences["t_div"][0]
        n = scan.sequences["tokens"][0] if "tokens" in scan.sequences else torch.full_like(t_div, scan.valid_tokens)
    known = (t_div > 0) & (t_div < 1) & (n >= 2)
    odds = ((n - 1) * (1 - t_div) / t_div)[known].log()
    return float(odds.mean()) if len(odds) else 0.0


def _adds_up(scan: "Scan") -> bool:
    """Whether the steps explain what the blocks did, where that is known."""
    whole = scan.steps["block"]["gain"]
    known = whole.isfinite()
    steps = sum((scan.steps[name]["gain"].nan_to_num(0.0) for name in scan.step_names), torch.zeros_like(whole))
    missed = float((whole - steps)[known].abs().sum())
    return missed <= UNEXPLAINED * max(float(whole[known].abs().sum()), QUIET)


def driver_of(shares: dict[str, float]) -> str:
    """The largest share in words, with the second where it is a quarter or more."""
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    named = [f"{_WORDS[name]} ({share:.0%})" for i, (name, share) in enumerate(ranked[:2]) if i == 0 or share >= 0.25]
    return " and ".join(named)
