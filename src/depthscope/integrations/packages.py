"""Packages that are not ours: there in a version that is known, or one line that says what to install."""

import re
from importlib.metadata import PackageNotFoundError, version

from depthscope.errors import MissingExtraError, UsageError
from depthscope.extras import install


def need(package: str, least: str, who: str, extra: str) -> None:
    """Raise unless the package is there, at least in this version."""
    try:
        found = version(package)
    except PackageNotFoundError:
        raise MissingExtraError(f"{who}: needs {package}. {install(extra)}") from None
    if _numbers(found) < _numbers(least):
        raise UsageError(
            f"{who}: {package} must be {least} or later; {found} is installed. pip install '{package}>={least}'"
        )


def _numbers(words: str) -> list[int]:
    """2.6.0rc1 -> [2, 6, 0]"""
    release = re.match(r"\d+(\.\d+)*", words)
    return [int(one) for one in release.group().split(".")] if release else []
