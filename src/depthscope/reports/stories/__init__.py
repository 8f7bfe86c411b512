"""The stories of records: one file for each kind that has a story of its own; the others are told by their sheets."""
