"""What happens between blocks is told where the stream was followed, an error where it was not."""

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
import streamed_models
from depthscope.errors import BlocksNotFoundError


def notes_between(scan: ds.Scan) -> list[str]:
    return [note for note in scan.notes if note.startswith("between block")]


def test_stages_that_merge_tokens() -> None:
    (note,) = notes_between(ds.scan(*streamed_models.swin()))
    assert note == (
        "between block 2 and 3 the model merges tokens: 64 tokens of width 16 become 16 of width 32; "
        "every block is measured from its own input"
    )


class Between(nn.Module):
    """Plain blocks with something between them."""

    def __init__(self, change) -> None:
        super().__init__()
        layer = lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)  # noqa: E731
        self.layers, self.change = nn.ModuleList([layer() for _ in range(3)]), change

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x if i != 2 else self.change(x))
        return x


def test_tokens_changed_outside_the_blocks() -> None:
    scan = ds.scan(Between(lambda x: x + 0.5).eval(), torch.randn(2, 9, 16))
    assert scan.depth == 3
    assert notes_between(scan) == [
        "between block 2 and 3 the tokens are changed outside the blocks; every block is measured from its own input"
    ]


def test_the_same_tokens_in_another_form_are_no_change() -> None:
    scan = ds.scan(Between(lambda x: x.clone().reshape(18, 16).view(2, 9, 16)).eval(), torch.randn(2, 9, 16))
    assert scan.depth == 3 and notes_between(scan) == []


def test_modules_that_are_no_chain_are_an_error_unless_they_were_named() -> None:
    model, tokens = streamed_models.tanh_between()
    with pytest.raises(
        BlocksNotFoundError, match=r"parts\.1 does not start where parts\.0 ended.*blocks=\"parts\.\*\""
    ):
        ds.scan(model, tokens)
    (note,) = notes_between(ds.scan(model, tokens, blocks="parts.*"))
    assert "the tokens are changed outside the blocks, and so in 1 more places" in note
