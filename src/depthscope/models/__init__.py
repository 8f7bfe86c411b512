"""Models by name: presets at random initialisation, and whatever a user points at."""
