"""What depthscope raises. Every message says where, what must hold, what came, what to do."""

import collections.abc
import re
from contextlib import contextmanager

_VERB = re.compile(r"(scan|forecast|advise|fix_|without_|ablate|paths|bounds|spectrum|depth|drop_|Monitor): ")
_NAMED = re.compile(r"[A-Za-z_][\w.]*: ")  # a remedy, a metric or a model that speaks for itself


class DepthscopeError(Exception):
    """The base of all errors raised by depthscope on purpose."""


class ShapeError(DepthscopeError, ValueError):
    """A tensor has the wrong shape or too few tokens."""


class MaskError(DepthscopeError, ValueError):
    """A padding mask does not fit the tokens, or leaves nothing to measure."""


class StochasticError(DepthscopeError, ValueError):
    """An attention matrix whose rows are not probabilities."""


class UnknownNameError(DepthscopeError, LookupError):
    """No metric, remedy, preset or site has this name."""


class BlocksNotFoundError(DepthscopeError, LookupError):
    """The repeated blocks of a model could not be told."""


class AttentionNotSeenError(DepthscopeError, RuntimeError):
    """No self-attention of the model passed through a function that can be watched."""


class HookError(DepthscopeError, RuntimeError):
    """A hook that had to fire did not."""


class CausalLeakError(DepthscopeError, ValueError):
    """An operation over all tokens was about to let a causal model see its future."""


class VanishedError(DepthscopeError, ArithmeticError):
    """Of a signal that something should be learned from, only rounding noise is left."""


class ConditionError(DepthscopeError, ArithmeticError):
    """A matrix that must be inverted is too near to one that cannot be."""


class ForecastError(DepthscopeError, ValueError):
    """A forecast met something whose effect on tokens it does not know."""


class ForwardError(DepthscopeError, RuntimeError):
    """The user's model raised while it ran."""


class RecordError(DepthscopeError, ValueError):
    """A saved record cannot be read."""


class DamagedError(RecordError):
    """A file is not what was written into it."""


class CheckpointError(DepthscopeError, RuntimeError):
    """A training checkpoint cannot be written, read, or does not belong to the run."""


class WorkerLostError(DepthscopeError, RuntimeError):
    """The process of a job was killed or stopped from outside: the job did not fail, and may be done again."""


class MissingExtraError(DepthscopeError, ImportError):
    """An optional dependency is not installed."""


class UsageError(DepthscopeError, ValueError):
    """An argument that cannot be used as it is."""


def name_caller(error: DepthscopeError, verb: str) -> None:
    """Put the verb that the user called in front of the bare fact, in the place of a verb that is there already."""
    said = error.args[0] if error.args and isinstance(error.args[0], str) else ""
    inner = _VERB.match(said)
    if said and (inner or not _NAMED.match(said)):
        error.args = (f"{verb}: {said[inner.end() :] if inner else said}", *error.args[1:])


def first_line(error: BaseException) -> str:
    """What an error says first; its kind where it says nothing, as many do."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def said_by(verb: str) -> collections.abc.Iterator[None]:
    """The border of a verb: an error from below carries the bare fact, and here it is told who was called.

    Where one verb calls another, the outermost is the one that the user knows.
    """
    try:
        yield
    except DepthscopeError as error:
        name_caller(error, verb)
        raise


class TheoryWarning(DepthscopeError, UserWarning):  # noqa: N818, warns unless python -W error
    """A formula was asked for where its theorem does not apply."""


class MonitorWarning(DepthscopeError, UserWarning):  # noqa: N818, warns unless python -W error
    """An alarm of a monitor, or a monitor that cannot look at its model any more."""


class PluginWarning(DepthscopeError, UserWarning):  # noqa: N818, warns unless python -W error
    """Something that another package offers could not be loaded."""


class FixLostWarning(DepthscopeError, UserWarning):  # noqa: N818, warns unless python -W error
    """A fix is not, or will not be, in a model that was copied or saved."""
