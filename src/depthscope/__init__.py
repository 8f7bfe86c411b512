"""depthscope shows where a Transformer stops gaining from depth, and why."""

from depthscope import errors, metrics, remedies
from depthscope.remedies._fix import fix_
from depthscope.reports.html import report
from depthscope.scans.record import Scan
from depthscope.scans.scan import scan

__version__ = "0.1.0"
__all__ = ["scan", "fix_", "report", "Scan", "metrics", "remedies", "errors"]
