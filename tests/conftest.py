"""What every test starts from."""

import os

# Some virtual machines announce AMX and then fault on it in bfloat16 products: oneDNN is told not to use it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest
import torch


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # two threads that wait for a busy core make small matrices twenty times slower
