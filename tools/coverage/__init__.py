"""The coverage run: many models and spellings, each held to a truth that depthscope has no part in."""
