"""The largest modulus of an eigenvalue where LAPACK gives up on a matrix."""

import numpy as np
import torch

from depthscope.metrics import plain_mixing
from depthscope.metrics.largest_eigenvalue import largest_modulus


def failing_on(stubborn: torch.Tensor):
    """eigvals that does not converge on one matrix."""
    real = torch.linalg.eigvals

    def eigvals(A: torch.Tensor) -> torch.Tensor:
        if any(torch.equal(M, stubborn) for M in A.reshape(-1, *A.shape[-2:])):
            raise torch.linalg.LinAlgError("did not converge")
        return real(A)

    return eigvals


def test_a_matrix_on_which_the_iteration_fails_is_turned(monkeypatch):
    A = torch.randn(2, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    true = np.abs(np.linalg.eigvals(A.numpy())).max(-1)
    monkeypatch.setattr(torch.linalg, "eigvals", failing_on(A[1, 2]))
    assert np.allclose(largest_modulus(A).numpy(), true)


def test_a_symmetric_matrix_on_which_it_fails_is_not_known(monkeypatch):
    S = torch.ones(4, 4, dtype=torch.float64)
    monkeypatch.setattr(torch.linalg, "eigvals", failing_on(S))
    found = largest_modulus(torch.stack([S, torch.eye(4, dtype=torch.float64)]))
    assert found[0].isnan() and found[1] == 1.0


def test_a_mixing_matrix_is_measured_though_the_iteration_fails_on_it(monkeypatch):
    M = torch.rand(1, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    centred = M - M.mean(-2, keepdim=True)
    true = np.abs(np.linalg.eigvals(centred.numpy())).max()
    monkeypatch.setattr(torch.linalg, "eigvals", failing_on(centred[0, 0]))
    assert np.isclose(float(plain_mixing.plain_mixing(M, None, None)["lambda_2"]), true)
