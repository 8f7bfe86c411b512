"""The grids: every size by every other, or a star that varies one size at a time."""

from collections.abc import Sequence
from itertools import product

from depthscope.benches.cell import OWN_KINDS, Cell, usual_heads
from depthscope.errors import UsageError

WIDTHS, TOKENS, BATCHES, DEPTHS = (256, 768, 1024), (64, 128, 512, 2048), (1, 4, 8), (12, 48)
CENTRE = {"width": 256, "tokens": 128, "batch": 4, "depth": 12, "heads": 4}
ARMS = {"width": (768, 1024), "tokens": (64, 512), "batch": (1, 8), "depth": (48,), "heads": (2, 8, 16)}
GRIDS = ("quick", "full")
SMALLEST = {"width": 64, "tokens": 8, "batch": 1, "depth": 12, "heads": 1}


def grid(name: str, kinds: Sequence[str] = OWN_KINDS) -> list[Cell]:
    """The cells of a grid by its name, the cheapest first."""
    if name not in GRIDS:
        raise UsageError(f"bench: --grid must be {' or '.join(GRIDS)}; got {name!r}. Or name --width, --tokens, ...")
    return quick(kinds) if name == "quick" else full(kinds)


def quick(kinds: Sequence[str] = OWN_KINDS) -> list[Cell]:
    """A star: a centre, and from there one size after another. Enough to fit how the cost grows with each."""
    cells = [Cell(kind, **CENTRE) for kind in kinds]
    for kind, (name, sizes) in product(kinds, ARMS.items()):
        for size in sizes:
            sized = CENTRE | {name: size}
            cells.append(Cell(kind, **sized | ({"heads": usual_heads(size)} if name == "width" else {})))
    return ordered(cells)


def full(kinds: Sequence[str] = OWN_KINDS) -> list[Cell]:
    """Every size by every other, and the star, in which heads vary while the width does not."""
    return ordered([*crossed(kinds, WIDTHS, TOKENS, BATCHES, DEPTHS), *quick(kinds)])


def crossed(
    kinds: Sequence[str],
    widths: Sequence[int],
    tokens: Sequence[int],
    batches: Sequence[int],
    depths: Sequence[int],
    heads: Sequence[int] = (),
) -> list[Cell]:
    """Every size by every other; as many heads as suit the width where none are named."""
    sizes = product(kinds, widths, tokens, batches, depths)
    return ordered([Cell(*size, h) for size in sizes for h in heads or (usual_heads(size[1]),)])


def ordered(cells: Sequence[Cell]) -> list[Cell]:
    """Every cell once, the cheapest first: what is left out when time runs out is as little as can be."""
    return sorted(set(cells), key=lambda cell: (cell.work, cell))


def smallest(kind: str) -> Cell:
    """A cell in which there is next to nothing to compute: what a scan adds there is the fixed cost of its blocks."""
    return Cell(kind, **SMALLEST)
