"""Dovonon, Bronstein & Kusner 2024 (2401.04301): whether a Transformer smooths is decided by its eigenvalues."""
