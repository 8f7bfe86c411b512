"""What a reader of a causal scan should know: where the paper's theorem stops, and where attention sinks are."""

from torch import Tensor

SINK = 0.3  # mass on the first token above which a head is a sink (Gu et al. 2024) ...
ABOVE_CHANCE = 2.0  # ... and this many times what uniform attention gives, which is 0.36 for four tokens


def decoder_notes(heads: dict[str, Tensor]) -> list[str]:
    """Notes from head quantities (depth, h) of causal attention, NaN where a block has fewer heads."""
    return _theorem_notes(heads) + _sink_notes(heads)


def _theorem_notes(heads: dict[str, Tensor]) -> list[str]:
    """Theorem 2.6 of Yu & Zhang 2023 supposes omega + delta < 1; uniform causal P has delta > 1 from 17 tokens on."""
    if not {"omega", "delta"} <= heads.keys():
        return []
    both = heads["omega"] + heads["delta"]
    known = both.isfinite()
    if not known.any():
        return []
    return [
        f"causal attention: omega + delta < 1, which Theorem 2.6 needs, holds in {int((both < 1).sum())} of "
        f"{int(known.sum())} heads (uniform causal attention has delta above 1 from 17 tokens on); elsewhere its bound "
        "says nothing. What is measured: omega, how far the mean token is drawn to tokens that receive most; delta, "
        "the most a difference can be stretched by; xi_1 / xi_2, what a step really did to t_sim / t_div"
    ]


def _sink_notes(heads: dict[str, Tensor]) -> list[str]:
    if "sink_mass" not in heads:
        return []
    mass, chance = heads["sink_mass"], heads["sink_chance"]
    sinks = (mass > SINK) & (mass > ABOVE_CHANCE * chance)
    if not sinks.any():
        return []
    block, head = divmod(int(mass.nan_to_num(0.0).argmax()), mass.shape[1])
    return [
        f"attention sinks: in {int(sinks.sum())} of {int(mass.isfinite().sum())} heads the first token receives over "
        f"{SINK:.0%} of the attention of later tokens, most in block {block + 1}, head {head + 1}: "
        f"{float(mass[block, head]):.0%}, where uniform attention gives {float(chance[block, head]):.0%}"
    ]
