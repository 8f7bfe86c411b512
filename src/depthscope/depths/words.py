"""Numbers of blocks in words."""

from collections.abc import Sequence


def numbered(blocks: Sequence[int]) -> str:
    """block 4; blocks 3, 7 and 22 to 26."""
    runs: list[list[int]] = []
    for block in sorted(blocks):
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    said = [part for run in runs for part in _parts(run)]
    listed = said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"
    return f"block{'s' if len(blocks) > 1 else ''} {listed}"


def _parts(run: list[int]) -> list[str]:
    return list(map(str, run)) if len(run) < 3 else [f"{run[0]} to {run[-1]}"]
