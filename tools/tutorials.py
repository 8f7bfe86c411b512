"""The tutorials: notebooks of docs/tutorials that are run from top to bottom and kept with what they show.

python tools/tutorials.py [NAME ...]      run them again and write their outputs; all of them without a name
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
LONGEST = 300  # seconds for one cell
QUIET = {"PYTHONWARNINGS": "ignore:IProgress"}  # tqdm asks for ipywidgets; every other warning is shown in its cell


def run(path: Path) -> Any:
    """A notebook with the outputs of a fresh kernel, in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        options = {"timeout": LONGEST, "kernel_name": "python3", "coalesce_streams": True}
        client = NotebookClient(notebook, resources={"metadata": {"path": folder}}, **options)
        client.execute(env=os.environ | QUIET)
    return tidied(notebook)


def tidied(notebook: Any) -> Any:
    """Without what changes from run to run or belongs to one machine: clocks, ids, versions of Python."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    return notebook


def main(names: list[str]) -> None:
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(run(path), path)
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])
