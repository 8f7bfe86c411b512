"""Figure 1: BERT and ALBERT of 100 blocks, at default initialisation, end with all tokens alike; gradients stay.

"in either model both token similarity and cosine similarity escalate to unity, where the escalation patterns for the
two measures appear almost identical ... the gradient norm value in BERT remains roughly at a constant level"
(Yu & Zhang 2023, section 1.1).

depthscope reproduce yu2023/fig1     about a minute and 7 GB on two cores: BERT-100 of width 768 has 732 M weights.
Tokens are random; the gradient is that of the masked-language loss with random labels, which the paper leaves open.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import MissingExtraError, UsageError
from depthscope.experiments.claim import Claim, Row, stated
from depthscope.experiments.progress import track
from depthscope.extras import install
from depthscope.scans.scan import scan

MODELS = ("bert", "albert")


@dataclass(frozen=True)
class Config:
    """The base sizes of both models at depth 100."""

    depth: int = 100
    d: int = 768
    h: int = 12
    n: int = 128
    sequences: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.d % self.h:
            raise UsageError(f"yu2023/fig1: heads must divide the width; got d = {self.d} and h = {self.h}.")


SMOKE = Config(d=96, h=4, n=64)


def run(cfg: Config) -> dict[str, Tensor]:
    """t_sim and t_cos (2 models, depth + 1), means over the sequences; BERT's gradient norm per block (depth,)."""
    rows: dict[str, list[Tensor]] = {"t_sim": [], "t_cos": []}
    numbers = {}
    for name in track(MODELS, len(MODELS)):
        model, ids, labels = _model(name, cfg)

        def loss(output: Any, labels: Tensor = labels) -> Tensor:
            return torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())

        seen = scan(model, ids, metrics=["t_sim", "t_cos"], attention=False, gradients=loss if name == "bert" else None)
        for metric, values in rows.items():
            values.append(seen[metric])
        if name == "bert":
            numbers["gradient_norm"] = seen["gradient_norm"]
    return {**{name: torch.stack(values) for name, values in rows.items()}, **numbers}


def _model(name: str, cfg: Config) -> tuple[Any, Tensor, Tensor]:
    try:
        from transformers import AlbertConfig, AlbertForMaskedLM, BertConfig, BertForMaskedLM
    except ImportError:
        raise MissingExtraError(f"yu2023/fig1: needs transformers. {install('hf')}") from None
    sizes: dict[str, Any] = {
        "num_hidden_layers": cfg.depth,
        "hidden_size": cfg.d,
        "num_attention_heads": cfg.h,
        "intermediate_size": 4 * cfg.d,
        "initializer_range": 0.02 * (768 / cfg.d) ** 0.5,  # the default at width 768, the same gain at other widths
    }
    built = (
        BertForMaskedLM(BertConfig(**sizes))
        if name == "bert"
        else AlbertForMaskedLM(AlbertConfig(embedding_size=128, **sizes))
    )
    ids = torch.randint(0, built.config.vocab_size, (cfg.sequences, cfg.n))
    return built.eval(), ids, torch.randint(0, built.config.vocab_size, ids.shape)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    similarity, cosine, gradient = numbers["t_sim"], numbers["t_cos"], numbers["gradient_norm"]
    passes = [float((row <= 0.9).sum()) for row in similarity]  # blocks before t_sim passes 0.9
    apart = (cosine - similarity).abs().max()
    other = (similarity[0] - similarity[1]).abs().max()  # the gap to a curve of something else
    level, sooner = gradient.max() / gradient.min(), passes[1] / passes[0]
    made: list[Row] = [  # the null: tokens as they start; gradients that grow as the odds do
        ("BERT's token similarity escalates to unity (last block)", similarity[0, -1], 0.99, 1.0, similarity[0, 0]),
        ("ALBERT's token similarity escalates to unity (last block)", similarity[1, -1], 0.99, 1.0, similarity[1, 0]),
        ("t_cos and t_sim are almost identical (largest gap over all blocks)", apart, 0.0, 0.02, other),
        ("ALBERT escalates faster (block where t_sim passes 0.9, ALBERT over BERT)", sooner, 0.0, 0.9, 1.0),
        ("BERT's gradient norm stays at one level (largest over smallest)", level, 1.0, 10.0, 2.0**cfg.depth),
    ]
    return stated(1, *made)  # one draw of the weights


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, middle, right = figure.subplots(1, 3)
    for ax, name in ((left, "t_sim"), (middle, "t_cos")):
        for model, row in zip(("BERT", "ALBERT"), numbers[name], strict=True):
            ax.plot(row, label=model)
        ax.set(xlabel="block", ylim=(-0.02, 1.05))
    right.semilogy(torch.arange(1, cfg.depth + 1), numbers["gradient_norm"], label="BERT")
    middle_of = float(numbers["gradient_norm"].median())
    right.set(title="gradient norm of the weights", xlabel="block", ylim=(middle_of / 30, middle_of * 30))
    left.set_title("token similarity t_sim")
    middle.set_title("cosine similarity t_cos")
