"""A survey that is sure of the token axis: where no attention was seen, who moves whom tells it.

Mixing that shows no pattern (linear attention, a state space) leaves open whether tokens are (B, n, d) or (n, B, d),
and a remedy would mix sequences that are taken for tokens. A token that is changed moves others; a sequence does not.
"""

from typing import Any

from torch import nn

from depthscope.traces.causality import trial_of
from depthscope.traces.survey import Survey, survey
from depthscope.traces.token_axis import Frames


def sure_survey(
    model: nn.Module, chosen: set[str] | None, args: tuple, kwargs: dict[str, Any], stream: str | None = None
) -> Survey:
    """survey(...), and once more where tokens lie on another axis than was taken."""
    found = survey(model, chosen, args, kwargs, stream)
    if found.guessed is None:
        return found
    taken = found.axis
    axis = moving_axis(model, found.streams[0].paths, found.guessed, taken, args, kwargs)
    if axis in (None, taken):
        return found
    return survey(model, chosen, args, kwargs, stream, along(found.guessed, axis))


def along(shape: tuple[int, ...], axis: int) -> Frames:
    """What is known of token axes where the tokens of (a, b, d) lie along this one."""
    frames = Frames(square_axis=axis)
    frames.add(shape[1 - axis], shape[axis])
    return frames


def moving_axis(
    model: nn.Module, blocks: list[str], shape: tuple[int, ...], taken: int, args: tuple, kwargs: dict[str, Any]
) -> int | None:
    """The axis along which the blocks mix, the one that was taken first; None where they mix along none.

    shape: of what enters them. Other axes than the first two are not in doubt.
    """
    paths = list(dict.fromkeys(blocks))
    axes = [taken] + [axis for axis in (1, 0) if axis != taken and len(shape) == 3]
    return next((axis for axis in axes if _mixes(model, paths, axis, args, kwargs)), None)


def _mixes(model: nn.Module, blocks: list[str], axis: int, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a token that is changed where the blocks begin moves others along this axis."""
    trial = trial_of(model, blocks, axis, args, kwargs, 0)
    if not trial.base or trial.n < 2:
        return False
    for changed in sorted({0, trial.n // 2, trial.n - 1}):
        moved = trial.moved([changed], [i for i in range(trial.n) if i != changed])
        if moved is not None and float(moved[0].max()) > trial.rounding:
            return True
    return False
