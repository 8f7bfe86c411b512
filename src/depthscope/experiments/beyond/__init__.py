"""Beyond the papers: where their statements end, and what comes after."""
