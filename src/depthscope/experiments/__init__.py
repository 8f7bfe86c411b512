"""Experiments: one file, one figure, table or theorem of a paper, with the claims it makes."""

from depthscope.experiments._claim import Claim
from depthscope.experiments._run import Reproduction, names, reproduce

__all__ = ["Claim", "Reproduction", "names", "reproduce"]
