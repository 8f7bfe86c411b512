"""What lies between the blocks of a stream: stages that merge tokens, and whatever changes them outside the blocks.

Every block is measured from its own input to its own output, so a change between two of them is in no block's numbers.
Where the stream was followed through the change a reader is told of it; where blocks are only modules that take tokens
and give tokens, nobody knows whether they are one chain, and that is an error.
"""

from depthscope.errors import BlocksNotFoundError
from depthscope.scans.state_numbers import float64
from depthscope.traces.blocks import Found
from depthscope.traces.families import template
from depthscope.traces.log import State

SAME = 1e-5  # relative difference of energies up to which a state is the one before it, in another form
MOST = 4  # changes of size that are told one by one


def gap_notes(found: Found, *, named: bool, remedied: bool) -> list[str]:
    """Notes on what changes tokens between blocks. named: the user chose the blocks; remedied: a remedy acts."""
    blocks = found.blocks
    gaps = [i for i in range(1, len(blocks)) if not _same(blocks[i - 1].result, blocks[i].source)]
    if not gaps:
        return []
    folded = any(blocks[i - 1].result.shape[0] != blocks[i].source.shape[0] for i in gaps)  # streams, in the batch
    if not (named or remedied or folded) and any(block.attentions is None for block in blocks):
        raise BlocksNotFoundError(_not_a_chain(found, gaps[0]))
    resized = [i for i in gaps if _size(blocks[i - 1].result) != _size(blocks[i].source)]
    changed = [i for i in gaps if i not in resized]
    said = [_resized(i, blocks[i - 1].result, blocks[i].source) for i in resized[:MOST]]
    if len(resized) > MOST:
        said.append(f"and so in {len(resized) - MOST} more places")
    if changed:
        more = f", and so in {len(changed) - 1} more places" if len(changed) > 1 else ""
        said.append(f"between block {changed[0]} and {changed[0] + 1} the tokens are changed outside the blocks{more}")
    return ["; ".join([*said, "every block is measured from its own input"])]


def _size(state: State) -> tuple[int, int]:
    return state.tokens, state.width


def _same(before: State, after: State) -> bool:
    """Whether two states hold the same tokens, be it in another form: same size, and energies that are equal."""
    if before is after:
        return True
    if _size(before) != _size(after):
        return False
    for name in ("common", "centred"):
        one, other = (float64(getattr(state.numbers, name)) for state in (before, after))
        if len(one) != len(other) or bool(((one - other).abs() > SAME * other.abs()).any()):
            return False
    return True


def _resized(block: int, before: State, after: State) -> str:
    """Between block 2 and 3 the model merges tokens: 256 tokens of width 24 become 64 of width 48."""
    (n, d), (m, e) = _size(before), _size(after)
    does = "merges tokens" if m < n else "has more tokens" if m > n else "changes the width of its tokens"
    return f"between block {block} and {block + 1} the model {does}: {n} tokens of width {d} become {m} of width {e}"


def _not_a_chain(found: Found, gap: int) -> str:
    names = [found.blocks[i].name for i in (gap - 1, gap)]
    seen = ", ".join(dict.fromkeys(template(path) for block in found.blocks for path in block.paths))
    return (
        f"the blocks must be one chain, each starting where the one before it ended; {names[1]} does not start where "
        f"{names[0]} ended, and no residual stream was seen that leads from one to the other. Something between them "
        f'changes the tokens. If they are the blocks you mean, pass blocks="{seen}"; else name others with blocks=.'
    )
