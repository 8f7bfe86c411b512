"""Effective depth: what trained blocks are worth, and which wiring makes deep ones useful."""
