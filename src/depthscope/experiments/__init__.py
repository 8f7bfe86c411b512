"""Experiments: one file, one figure, table or theorem of a paper, with the claims it makes."""

from depthscope.experiments.claim import Claim
from depthscope.experiments.found import names
from depthscope.experiments.run import Reproduction, reproduce, results

__all__ = ["Claim", "Reproduction", "names", "reproduce", "results"]
