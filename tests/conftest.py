"""What every test starts from: one thread, here and in the processes that tests start, and one seed."""

import gc
import os

# Threads that wait for a busy core make small matrices twenty times slower, and two processes have two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some virtual machines announce AMX and then fault on it in bfloat16 products: oneDNN is told not to use it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest
import torch

# What collecting makes (modules, cases) lives to the end: the garbage collector would walk over all of it again and again.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test `over` values of which some are long becomes two cases."""
    if "pace" in metafunc.fixturenames:
        metafunc.parametrize("pace", ["fast", pytest.param("long", marks=pytest.mark.long)])
