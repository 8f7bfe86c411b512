"""Effective depth: which blocks of a trained model earn their place, and what it costs to do without the others."""
