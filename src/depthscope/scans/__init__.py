"""Measure while a model runs, and the record of what was measured."""
