"""Path lengths: how many paths of each length a network has, and what they contribute to its output.

Most paths are long, but short paths do most of the work of a trained network (Dong et al. 2021, sections 3 and 4). The
authors count paths, and draw a few of each length. Here all of them are summed exactly: for attention and skips alone,
as in the paper, and for whole models with norms and activations held at their values.

depthscope reproduce dong2021/path_lengths     about 1 minute on two cores, random weights. Nearly all paths are long,
but nearly all of the output of BERT and GPT-2 comes through short ones, before any training. With weights of unit gain
(classic) this is different: every attention is as strong as the skip beside it, and paths through 4 to 8 of 12
attentions make the output. With skips, the part through k attentions approaches rank one at a constant pace. Without
skips the pace triples with every attention. The reason is that P is computed from tokens that the skips keep apart.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.circuits.paths import paths
from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.progress import track
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from depthscope.theory.path_counts import MODELS, path_counts

SETTINGS = {"bert": "BERT", "gpt2": "GPT-2 (causal)", "classic": "classic (Var W = 1/d)"}  # presets, random weights
FORMS = ("attention", "secant")
SHORT = 1 / 4  # of the depth


@dataclass(frozen=True)
class Config:
    """BERT-base's sizes."""

    depth: int = 12
    d: int = 768
    h: int = 12
    n: int = 128
    sequences: int = 2
    seed: int = 0


SMOKE = Config(d=96, h=4, n=32)


def run(cfg: Config) -> dict[str, Tensor]:
    """For every setting and form: share, norm and residual of each length, (depth + 1,), and the error of their sum."""
    numbers = {f"counts_{name}": path_counts(L, H).shares for name, (L, H) in MODELS.items()}
    jobs = [(name, form) for name in SETTINGS for form in FORMS]
    for name, form in track(jobs, len(jobs)):
        found = paths(*resolve(name, Sizes(cfg.depth, cfg.d, cfg.h, cfg.n, cfg.sequences, cfg.seed)), form=form)
        for what in ("share", "norm", "residual"):
            numbers[f"{name}_{form}_{what}"] = getattr(found, what)
        numbers[f"{name}_{form}_error"] = torch.tensor(found.error)
    return numbers


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    short = round(SHORT * cfg.depth)
    bert, gpt_3, one_head = path_counts(12, 12), path_counts(96, 96), path_counts(96, 1)
    long_paths, half = (float(counts.shares[7:].sum()) for counts in (bert, path_counts(12, 1)))
    most = "BERT-base, ViT-B: part of all paths that go through more than half of the attentions"
    made = stated(  # the null: one head a block
        1,
        (most, long_paths, 0.999, 1, half),
        ("GPT-3: log10 of the number of paths", gpt_3.log10_total, 190, 191, one_head.log10_total),
        ("GPT-3: mean length of a path, of 96", gpt_3.mean_length, 95, 96, one_head.mean_length),
    )
    by_count = path_counts(cfg.depth, cfg.h).shares[: short + 1].sum()
    for name, label in SETTINGS.items():  # the null: without the paths of length 1; as many as there are; not causal
        shares = {form: numbers[f"{name}_{form}_share"] for form in FORMS}
        error, whole = (float(numbers[f"{name}_{form}_error"]) for form in FORMS)
        left_out = {form: shares[form][1].abs() for form in FORMS}
        held = f"{label}: with norms and activations held they miss the model by"
        made += stated(
            1,
            (f"{label}: all lengths together miss the network by", error, 0, 1e-10, left_out["attention"]),
            (held, whole, 0, 1e-4, left_out["secant"]),
        )
        for form in FORMS:
            what = "attention and skips alone" if form == "attention" else "the whole model"
            says = f"{label}, {what}: share of the output through at most a quarter of the attentions"
            found = shares[form][: short + 1].sum()
            made += stated(1, (says, found, 0.8, 1.2, by_count), expected=name != "classic")
        residual = numbers[f"{name}_attention_residual"]
        says = f"{label}: relative residual of the paths through 4 attentions"
        low, high = (0.0, 1e-3) if name != "gpt2" else (0.05, 1.0)  # a causal mask leaves the first tokens apart
        other = numbers["bert_attention_residual"][4] if name == "gpt2" else residual[0]
        made += stated(1, (says, residual[4], low, high, other))
        says = f"{label}: the pace towards rank one triples with every attention (doubly exponential)"
        made += stated(1, (says, pace_growth(residual), 2, 4), expected=False)
    return made


def pace_growth(residual: Tensor) -> float:
    """By what factor log(residual) falls faster from one length to the next, lengths 1 to 5: 1 for a constant pace."""
    steps = residual[1:6].log().diff()
    return float((steps[1:] / steps[:-1]).mean())


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    figure.set_size_inches(14, 4.2)
    counts, shares, residuals = figure.subplots(1, 3)
    for name, (L, _) in MODELS.items():
        counts.plot([k / L for k in range(L + 1)], (numbers[f"counts_{name}"] * L).tolist(), label=name)
    counts.set(title="number of paths", xlabel="length / depth", ylabel="density", xlim=(0.5, 1.0))
    for index, (name, label) in enumerate(SETTINGS.items()):
        for form, style in zip(FORMS, ("--", "-"), strict=True):
            of = {"attention": "attention and skips alone", "secant": "whole model"}[form]
            line = {"ls": style, "marker": ".", "color": f"C{index}", "label": f"{label}, {of}"}
            shares.plot(numbers[f"{name}_{form}_share"].tolist(), **line)
            residuals.semilogy(numbers[f"{name}_{form}_residual"].clamp(min=1e-16).tolist(), **line | {"label": None})
    shares.set(title="share of the output", xlabel="attentions on the path")
    residuals.set(title="relative residual of the part", xlabel="attentions on the path")
