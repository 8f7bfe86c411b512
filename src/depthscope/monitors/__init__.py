"""Monitors: a model is looked at while it trains, and the training does not notice it."""
