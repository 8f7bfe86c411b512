"""Parts of the token covariance, and steps that are linear in the tokens, against the tokens themselves."""

import torch

from depthscope.theory.covariance import de_escalated, energies_of, rescaled

X = torch.randn(3, 2, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5  # (.., n, d)


def covariance(X: torch.Tensor) -> torch.Tensor:
    return X @ X.mT / X.shape[-1]


def test_energies_are_those_of_the_mean_token_and_of_what_is_left() -> None:
    mean = X.mean(-2, keepdim=True)
    common, centred = energies_of(covariance(X))
    torch.testing.assert_close(common, mean.square().mean((-2, -1)))
    torch.testing.assert_close(centred, (X - mean).square().mean((-2, -1)))


def test_the_mean_token_and_the_rest_are_rescaled_each_by_itself() -> None:
    mean = X.mean(-2, keepdim=True)
    found = rescaled(covariance(X), 0.25, 4.0)
    torch.testing.assert_close(found, covariance(0.5 * mean + 2 * (X - mean)))


def test_de_escalation_takes_a_part_of_the_mean_token_away() -> None:
    torch.testing.assert_close(de_escalated(covariance(X), 0.3, False), covariance(X - 0.3 * X.mean(-2, keepdim=True)))
