"""Experiments: one file, one figure, table or theorem of a paper, with the claims it makes."""

from depthscope.experiments.claim import Claim
from depthscope.experiments.run import Reproduction, names, reproduce, results

__all__ = ["Claim", "Reproduction", "names", "reproduce", "results"]
