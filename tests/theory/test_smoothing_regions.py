"""What H alone decides, against attention that does its worst: nearly cyclic, nearly the identity, random."""

import math

import pytest
import torch
from kinds import KINDS, attention

from depthscope.errors import UsageError
from depthscope.theory import always_smooths, layer_spectrum, never_smooths, sharpening_disc
from loops import over

F = torch.float64


def spectra_of_H(cases, pairs=2, reals=2):
    """Eigenvalues of real matrices around -1/2, from small to large."""
    size = torch.rand(cases, 1, dtype=F) * 1.5
    h = size * torch.view_as_complex(torch.randn(cases, pairs, 2, dtype=F)) - 0.5 * torch.rand(cases, 1, dtype=F)
    alone = size * torch.randn(cases, reals, dtype=F) - 0.5 * torch.rand(cases, 1, dtype=F)
    return torch.cat([h, h.conj(), alone], -1)


def hostile_spectra():
    """Eigenvalues of positive row-stochastic matrices on the edge of what is possible."""
    found = [torch.linalg.eigvals(attention(kind, 7)) for kind in KINDS if kind != "identity"]
    for n in range(2, 40):  # cycles: a = (1 - eps) e^{2 pi i k / n}
        phases = torch.polar(torch.full((n - 1,), 0.999, dtype=F), 2 * math.pi * torch.arange(1, n, dtype=F) / n)
        found.append(torch.cat([torch.ones(1, dtype=torch.complex128), phases]))
    found += [torch.tensor([1.0, 1 - eps], dtype=torch.complex128) for eps in (1e-4, 1e-2, 0.1)]
    return found


def test_always_and_never_are_exact():
    h = spectra_of_H(600)
    always, never = always_smooths(h), never_smooths(h)
    margins = torch.stack([layer_spectrum(h, a).margin for a in hostile_spectra()], -1)
    assert 30 < int(always.sum()) < 550 and 30 < int(never.sum()) < 550
    assert not bool((always & never).any())
    assert bool((margins[always] > 0).all())
    assert bool((margins[never] <= 0).all())
    # the conditions are sharp: but for cases near the edge, some attention decides otherwise
    assert float((margins[~always] <= 0).any(-1).double().mean()) > 0.97
    assert float((margins[~never] > 0).any(-1).double().mean()) > 0.97


@over("kind", [k for k in KINDS if k not in ("identity", "uniform")])
def test_the_papers_conditions_are_among_them(kind):
    a = torch.linalg.eigvals(attention(kind, 200, 6))
    inside, above = -torch.rand(200, 5, dtype=F).clamp(min=1e-3), torch.rand(200, 5, dtype=F) + 1e-3
    assert bool(never_smooths(inside).all()) and bool(always_smooths(above).all())
    assert bool((layer_spectrum(inside, a).margin < 0).all())
    assert bool((layer_spectrum(above, a).margin > 0).all())


def test_a_positive_real_part_is_not_enough_where_attention_turns():
    h = torch.polar(torch.ones(2, dtype=F), torch.tensor([math.pi / 3, -math.pi / 3], dtype=F))
    assert not bool(always_smooths(h)) and not bool(never_smooths(h))
    turning = 0.9 * torch.eye(6, dtype=F).roll(1, -1) + 0.1 / 6  # positive, eigenvalues 0.9 e^{2 pi i k / 6}
    found = layer_spectrum(h, torch.linalg.eigvals(turning))
    assert found.verdict == "sharpen" and float(found.margin) == pytest.approx(math.log(3**0.5 / 1.9))
    assert layer_spectrum(h, [1.0, 0.9, -0.9]).verdict == "smooth"  # but with real eigenvalues it is


def test_more_than_the_papers_conditions():
    assert bool(always_smooths([2.0, -1.9, 1.5j, -1.5j]))
    assert bool(never_smooths([-0.2, -1.5]))  # |1 - 0.2| is the larger
    assert bool(never_smooths([-0.5 + 0.4j, -0.5 - 0.4j]))
    assert bool(never_smooths([0.0, -0.5])) and not bool(always_smooths([0.0]))
    assert not bool(never_smooths([-2.5]))
    assert never_smooths(torch.randn(3, 4, 5)).shape == (3, 4)


def test_the_disc_is_where_the_pair_beats_the_constant():
    a = torch.polar(torch.rand(40, dtype=F), 6.3 * torch.rand(40, dtype=F))
    h = 3 * torch.view_as_complex(torch.randn(500, 1, 2, dtype=F))
    centre, radius = sharpening_disc(a)
    assert bool((((h - centre).abs() < radius) == ((1 + h * a).abs() > (1 + h).abs())).all())


@over("a, left", [(0.0, -2.0), (0.5, -4 / 3), (-0.5, -4.0), (0.999999, -1.0)])
def test_the_disc_of_a_real_eigenvalue_lies_over_an_interval(a, left):
    centre, radius = sharpening_disc(a)
    assert float(centre.real - radius) == pytest.approx(left, abs=1e-5)
    assert float(centre.real + radius) == pytest.approx(0, abs=1e-9)


def test_the_one_of_the_constant_vector_has_no_disc():
    with pytest.raises(UsageError, match=r"sharpening_disc: lambda_A must lie inside the unit disc; got modulus 1\."):
        sharpening_disc(1.0)
