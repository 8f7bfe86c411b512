"""The description of a block by its two junctions: how attention and network meet the residual stream.

It is plain data. A wiring declares it, the reference models take their factors and gains from it, theory and forecasts
compute with it and never ask for a wiring's name.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from depthscope.errors import UsageError
from depthscope.registry import lookup

MATRICES = ("W_q", "W_k", "W", "W_O", "W_1", "W_2", "W_gate")  # the roles of the matrices of a block


@dataclass(frozen=True)
class Junction:
    """How a branch f meets the stream x, at the start of training; x_0 is the input of the block.

    x -> N_sum( skip x + write N_write( f( read N_read(x) ) ) + again x_0 )

    Each N is a norm where its flag is set, and nothing else. inner_norm: a norm inside f, before its last matrix.
    """

    normed_read: bool = False
    read: float = 1.0
    inner_norm: bool = False
    normed_write: bool = False
    write: float = 1.0
    skip: float = 1.0
    again: float = 0.0
    normed_sum: bool = False


@dataclass(frozen=True)
class Junctions:
    """One block. gains: factors on freshly drawn matrices, by role; a matrix that is not named has 1.

    normed_input: a norm comes before the first block. side_stream: a further stream takes up what branches write, and
    no branch reads it.
    """

    attention: Junction
    network: Junction
    gains: Mapping[str, float] = field(default_factory=dict)
    normed_input: bool = False
    side_stream: bool = False


Declaration = Callable[[int, int], Junctions]  # (depth, index from 1) -> the junctions of that block


def both(junction: Junction, **more: object) -> Junctions:
    """A block whose two branches meet the stream alike."""
    return Junctions(junction, junction, **more)  # type: ignore[arg-type]


POST_NORM = both(Junction(normed_sum=True))
PRE_NORM = both(Junction(normed_read=True))


def everywhere(junctions: Junctions) -> Declaration:
    """The same description for every block."""
    return lambda depth, index: junctions


def declared(wiring: str, matrices: Collection[str] = MATRICES) -> Declaration:
    """What a wiring declares, by its name; gains act on those matrices alone that are there."""
    declare = lookup("wiring", wiring).junctions
    if declare(1, 1) is None:
        raise UsageError(
            f"{wiring}: the wiring must declare its junctions for this; it has none. Take another wiring, or forecast "
            "a model that is built: ds.forecast(model)."
        )

    def of_block(depth: int, index: int) -> Junctions:
        found = declare(depth, index)
        return replace(found, gains={role: gain for role, gain in found.gains.items() if role in matrices})

    return of_block
