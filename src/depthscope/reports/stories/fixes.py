"""What to do about a scan: the line of code that keeps the tokens apart, or the one that keeps the fix."""

import re
from collections.abc import Mapping

from depthscope.reports.story import Code, Part, Words
from depthscope.scans.record import Scan
from depthscope.traces.streams import ALONE

LINE = re.compile(r": (?P<line>ds\.[^;]+);")  # as forecasts/advise.py writes it into a verdict
AT = re.compile(r"(?P<remedy>\w+\(.*\)) at (?P<site>\w+)$")  # as remedies are described in a scan


def what_to_do(scans: Mapping[str, Scan]) -> list[Part]:
    """The advice of every verdict, then lines to copy: the fix that is forecast to help, the fix that was measured."""
    parts: list[Part] = [Words(scan.verdict.advice, label=label) for label, scan in scans.items()]
    lines: dict[str, str] = {}
    for label, scan in scans.items():
        named = f" ({label})" if label else ""
        if scan.remedies and not scan.verdict.fix_needed:
            lines |= {line: f"Keep the fix that was measured{named}:" for line in _kept(scan)}
        elif scan.verdict.fix_needed and (line := _forecast_to_help(scan)):
            lines.setdefault(line, f"The mildest change that is forecast to help{named}:")
    first = next(iter(scans.values()))
    where = "" if first.stream == ALONE else f', stream="{first.stream}"'
    lines.setdefault(f"scan = ds.scan(model, inputs{where})", "Measure it again:")
    return [*parts, *(Code(said, line) for line, said in lines.items())]


def _forecast_to_help(scan: Scan) -> str:
    """The line that the verdict's advice names; nothing where no forecast vouches for one."""
    found = LINE.search(scan.verdict.advice)
    return found["line"] if found else ""


def _kept(scan: Scan) -> list[str]:
    found = (AT.match(one) for one in scan.remedies)
    return [f'ds.fix_(model, ds.remedies.{one["remedy"]}, at="{one["site"]}")' for one in found if one]
