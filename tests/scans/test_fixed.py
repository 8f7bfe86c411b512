"""Scans of fixed models: a remedy is a step of its own, and the anatomy of the block is as before."""

import torch
import transformers as T
from torch import nn

import depthscope as ds
from loops import crossed, over

X = torch.randn(4, 16, 32, generator=torch.Generator().manual_seed(5))
STREAM = ("sa_sum", "ffn_in", "ffn_sum", "block_out")


@crossed("at, wiring", ["block_in", "attn_in", "sa_out", *STREAM], ["post_norm", "pre_norm", "sandwich"])
def test_the_norms_are_found_as_in_the_plain_model(wiring: str, at: str) -> None:
    model = ds.models.classic(3, 32, 4, wiring=wiring)
    plain = ds.scan(model, X)
    with ds.fix_(model, ds.remedies.DeEscalate(0.6), at=at):
        fixed = ds.scan(model, X)
    assert fixed.placement == plain.placement != "unknown"
    steps = list(fixed.step_names)
    assert [name for name in steps if name != "remedy"] == list(plain.step_names)
    assert ("remedy" in steps) == (at in STREAM)


@over("at", STREAM)
def test_the_steps_multiply_to_the_growth_of_the_block(at: str) -> None:
    """The odds t_sim / t_div are multiplied by every step's xi_1 / xi_2, the remedy's among them."""
    torch.manual_seed(0)
    model = ds.models.classic(3, 32, 4)
    with ds.fix_(model, ds.remedies.DeEscalate(0.6), at=at):
        scan = ds.scan(model, X[:1])
    odds = scan["t_sim"] / scan["t_div"]
    product = torch.ones(3, dtype=torch.float64)
    for name in scan.step_names:
        product *= scan.steps[name]["xi_1"] / scan.steps[name]["xi_2"]
    torch.testing.assert_close(product, odds[1:] / odds[:-1], rtol=1e-4, atol=0.0)
    remedy = scan.steps["remedy"]
    torch.testing.assert_close(remedy["xi_1"] / remedy["xi_2"], torch.full((3,), 0.16).double(), rtol=1e-4, atol=0.0)


def test_other_peoples_models() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    bert = T.BertModel(T.BertConfig(**sizes, vocab_size=99)).eval()
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    for model, inputs in ((bert, torch.randint(1, 99, (3, 7))), (encoder, X)):
        with ds.fix_(model, ds.remedies.DeEscalate(0.6), at="sa_sum"):
            scan = ds.scan(model, inputs)
        assert scan.placement == "post" and "remedy" in scan.step_names
        assert "remedy" not in ds.scan(model, inputs).step_names
