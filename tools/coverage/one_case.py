"""One case of the coverage run, checked in a process of its own within a limit of time; any executor may call it."""

import multiprocessing
import os
import sys
import warnings
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path

import torch
import transformers
from tools.coverage.case import all_cases
from tools.coverage.checks import Finding, check

LIMIT = 120.0  # seconds a case
PRELOADED = [__name__, *(f"tools.coverage.cases.{f.stem}" for f in Path(__file__).parent.glob("cases/[a-z]*.py"))]


def findings(number: int, name: str, verbs: tuple[str, ...], limit: float = LIMIT) -> dict[str, Finding]:
    """What each verb gave; a process that dies or takes too long is a crash of all verbs. number: of the call."""
    context = _context()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_check, args=(name, verbs, theirs), daemon=True)  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(limit) else _all(verbs, f"more than {limit:.0f} s")
    except EOFError:
        found = _all(verbs, "the process ended")
    process.kill()
    process.join()
    return found


@cache
def _context() -> BaseContext:
    """Every process is a fork of one that has imported all and has one thread; ours may have many."""
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # that one starts from it, and not from ours
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _check(name: str, verbs: tuple[str, ...], reply: Connection) -> None:
    """Check one case, and send what was found."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    try:
        reply.send(check(all_cases()[name], verbs))
    except Exception as error:  # the truth itself fails: the case must be mended
        why = f"NO TRUTH {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        reply.send({verb: Finding("none", why) for verb in verbs})


def _all(verbs: tuple[str, ...], why: str) -> dict[str, Finding]:
    return {verb: Finding("crash", why) for verb in verbs}
