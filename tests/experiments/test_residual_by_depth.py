"""dong2021/residual_by_depth: what counts as a collapse, and models that would get one label."""

import math
from dataclasses import replace

import pytest
import torch

from depthscope.errors import UsageError
from depthscope.experiments.dong2021.residual_by_depth import SMOKE, collapse, run


def test_a_collapse_is_for_good_in_all_seeds_and_a_nan_is_none() -> None:
    fall = [1.0, 1e-4, 1e-2, 1e-5, 1e-6]
    assert collapse(torch.tensor([fall])) == 3
    assert collapse(torch.tensor([fall, [1.0, 1.0, 1.0, 1.0, 1e-6]])) == 4
    assert collapse(torch.tensor([[*fall[:-1], math.nan]])) == 5


def test_two_folders_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="folders must differ in their last name"):
        run(replace(SMOKE, trained="one/model,two/model"))
