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


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "of tests over many values try this one alone, and leave other tests out: --only DeEscalate"
    parser.addoption("--only", metavar="VALUE", help=told)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (value := config.getoption("--only")) is None:
        return
    from loops import narrowed  # not above: pytest has put this folder on the path by now

    paces = [(getattr(item, "callspec", None) and item.callspec.params.get("pace")) or "fast" for item in items]
    kept = [narrowed(getattr(one, "function", None), pace, value) for one, pace in zip(items, paces, strict=True)]
    config.hook.pytest_deselected(items=[item for item, keep in zip(items, kept, strict=True) if not keep])
    items[:] = [item for item, keep in zip(items, kept, strict=True) if keep]


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
