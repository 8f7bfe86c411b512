"""A notebook as a page: its text, its code, and what the code gave when it was last run."""

import json
from pathlib import Path
from textwrap import wrap
from typing import Any


def as_markdown(path: Path) -> str:
    """The cells one after another; text outputs as blocks, pictures inside the page."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell)) + "\n"


def _cell(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"]).rstrip()
    if cell["cell_type"] != "code":
        return [source]
    return [f"```python\n{source}\n```", *(part for output in cell["outputs"] for part in _output(output))]


def _output(output: dict[str, Any]) -> list[str]:
    if "text" in output:
        return [_block("".join(output["text"]))]
    data = output.get("data", {})
    if "image/png" in data:
        return [f"![what the code above draws](data:image/png;base64,{''.join(data['image/png']).strip()})"]
    if "text/plain" in data:
        return [_block("".join(data["text/plain"]))]
    return []


def _block(text: str) -> str:
    """Sentences, such as a verdict, are broken where a page would cut them off; columns stay as they are."""
    lines = text.rstrip().splitlines()
    if any(len(line) > 130 for line in lines):
        return "```text\n" + "\n".join(part for line in lines for part in (wrap(line, 100) or [""])) + "\n```"
    return "```output\n" + "\n".join(lines) + "\n```"
