"""Wirings: how branches, residuals and norms are joined. One wiring, one file."""
