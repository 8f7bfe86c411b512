"""Tokens that are laws beside plain tensors, and tokens that are sent to a device."""

import torch
from torch import Tensor, nn

import depthscope as ds


class Sent(nn.Module):
    """Blocks as a decoder runs them: a mask in the dtype of the tokens, and tokens that go to the device of a block."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.blocks = model

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            ones = torch.ones(x.shape[1], x.shape[1])
            assert type(ones.type_as(x)) is Tensor and type(torch.ones(1).expand_as(x)) is Tensor
            x = block(x.to("cpu").to(torch.device("cpu")).to(device="cpu").cpu())
        return x


def test_a_plain_tensor_that_takes_dtype_or_shape_from_a_law_stays_one_and_laws_go_to_devices() -> None:
    torch.manual_seed(0)
    model = ds.models.classic(3, 32, 4).eval()
    X = torch.randn(4, 8, 32) + torch.randn(4, 1, 32)
    torch.testing.assert_close(ds.forecast(Sent(model).eval(), X).t_sim, ds.forecast(model, X).t_sim)
