"""Wirings: how branches, residuals and norms are joined. One wiring, one file."""

from depthscope.registry import import_folder

import_folder(__name__, __path__)
