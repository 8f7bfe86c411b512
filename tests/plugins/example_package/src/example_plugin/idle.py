"""This one registers nothing."""
