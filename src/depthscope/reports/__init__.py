"""A record in, text, a picture or a page out."""

from depthscope import records
from depthscope.reports import show

records.shown_by(show)
