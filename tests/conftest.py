"""What every test starts from."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # two threads that wait for a busy core make small matrices twenty times slower
