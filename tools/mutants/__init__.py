"""Mutants: the package is broken on purpose, in one place at a time, and the tests must notice."""
