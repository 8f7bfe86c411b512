"""The small comparison with an executor as an object. python -m tools.scale.by_object submitit|mpi FOLDER"""

import sys
from pathlib import Path
from typing import Any

from tools.scale.small import COMPARISON

import depthscope as ds


def executor_of(engine: str, folder: Path) -> Any:
    if engine == "submitit":
        import submitit

        return submitit.AutoExecutor(folder=folder / "submitit", cluster="local")
    from mpi4py.futures import MPIPoolExecutor

    return MPIPoolExecutor()


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    ds.compare(**COMPARISON, folder=folder, executor=executor_of(sys.argv[1], folder))
