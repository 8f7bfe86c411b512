"""Verbs on a second device that is not there: tensors made on the wrong one are caught without an accelerator."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.utils.backend_registration as registration

HERE = Path(__file__).parent
CHECKS = "the_device_tells metrics states heads scans fixes padding_and_sites language forecasts ablations circuits without_float64".split()


@pytest.mark.long
@pytest.mark.skipif(
    not hasattr(registration, "_setup_privateuseone_for_python_backend"), reason="this torch takes no device in Python"
)
def test_all_checks_pass_on_the_fake_device() -> None:
    """In a process of its own: torch keeps a device that was registered."""
    paths = os.pathsep.join([str(HERE), str(HERE.parent / "src")])
    done = subprocess.run(
        [sys.executable, str(HERE / "fake_device_checks.py")],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert [line.split()[0] for line in done.stdout.splitlines()] == CHECKS
