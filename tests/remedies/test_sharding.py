"""A sequence that is shared by the processes of a group: each holds a part, and all have the mean of the whole."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import depthscope as ds
from depthscope.errors import UsageError

R = ds.remedies
WORLD = 2
X = torch.randn(3, 10, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
MASK = torch.ones(3, 10, dtype=torch.bool)
MASK[0, 8:] = MASK[1, :2] = False
CUTS = (slice(0, 6), slice(6, 10))  # not of equal length
REMEDIES = [R.DeEscalate(0.7, form=form) for form in ("full", "prefix", "sink", "past")]
REMEDIES += [R.PairNorm(mean=mean) for mean in ("full", "sink")] + [R.FeatScale(4, s=0.3, t=-0.2, learnable=False)]


class Weights(torch.nn.Module):
    """A loss that tells tokens and channels apart."""

    def forward(self, Y: Tensor, first: int) -> Tensor:
        t = torch.arange(first, first + Y.shape[1], dtype=Y.dtype).view(-1, 1)
        return (Y * (1 + t) * torch.arange(1.0, 5.0, dtype=Y.dtype)).square().sum()


def whole(remedy: torch.nn.Module, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    leaf = X.clone().requires_grad_()
    Y = remedy(leaf, mask=mask)
    return Y.detach(), torch.autograd.grad(Weights()(Y, 0), leaf)[0]


class Passes(torch.nn.Module):
    """A model of one block that hands its tokens on, so that only the remedy acts."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Identity())])

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.blocks[0](x)


def one_process(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    assert dist.get_world_size() == WORLD
    results = []
    for remedy in REMEDIES:
        for mask in (None, MASK):
            model, leaf = Passes(), X[:, CUTS[rank]].clone().requires_grad_()
            with ds.fix_(model, remedy, at="block_out", causal="no", group=dist.group.WORLD):
                Y = model(leaf, attention_mask=None if mask is None else mask[:, CUTS[rank]])
            gradient = torch.autograd.grad(Weights()(Y, CUTS[rank].start), leaf)[0]
            results.append((Y.detach(), gradient))
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads now and then abort a process on its regular way out; what is tested is in the files


@pytest.mark.long
def test_two_processes_have_the_mean_of_the_whole_and_its_gradient(tmp_path: Path) -> None:
    mp.spawn(one_process, (str(tmp_path),), nprocs=WORLD)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD)]
    cases = [(remedy, mask) for remedy in REMEDIES for mask in (None, MASK)]
    assert len(parts[0]) == len(parts[1]) == len(cases) > 10
    for (remedy, mask), *shares in zip(cases, *parts, strict=True):
        Y, gradient = (torch.cat([share[i] for share in shares], 1) for i in (0, 1))
        expected, slope = whole(remedy, mask)
        torch.testing.assert_close(Y, expected, msg=f"{remedy}")
        torch.testing.assert_close(gradient, slope, msg=f"gradient of {remedy}")


def test_what_needs_all_tokens_is_refused() -> None:
    model = Passes()
    with ds.fix_(model, R.ContraNorm(), at="block_out", causal="no", group="a group"):
        with pytest.raises(UsageError, match=r"ContraNorm: all tokens of a sequence must be at hand; got a part of it"):
            model(X)
    with pytest.raises(UsageError, match="only a remedy of tokens can be shared by a group; got AttnScale"):
        ds.fix_(model, R.AttnScale(), group="a group")
