"""Models with the right verdict written beside them: constructed traps, random models, presets.

gallery(seed) makes them all; another seed gives other sizes, depths, positions and weights of the same kinds.
"""

from depthscope.models.gallery.damage import add_damage
from depthscope.models.gallery.entry import Entry, Shelf
from depthscope.models.gallery.paces import add_paces
from depthscope.models.gallery.presets import add_presets
from depthscope.models.gallery.random_models import add_random
from depthscope.models.gallery.traps import add_traps

__all__ = ["gallery", "Entry", "Shelf"]


def gallery(seed: int = 0) -> list[Entry]:
    """All entries that need no training; nothing is built before Entry.build."""
    shelf = Shelf(seed)
    for add in (add_traps, add_paces, add_damage, add_random, add_presets):
        add(shelf)
    return shelf.entries
