"""The README's example prints what the README shows."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_prints_what_is_shown() -> None:
    code, shown = re.search(r"```python\n(.*?)```\n```\n(.*?)```", README.read_text(), re.DOTALL).groups()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.split() == shown.split()  # lines of the page are short: it breaks them where it likes
    assert done.stdout.splitlines()[0].startswith("collapsed: ") and len(done.stdout.splitlines()) == 2
    assert len(code.strip().splitlines()) == 6
