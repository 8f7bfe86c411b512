"""This one cannot be imported."""

raise ImportError("there is no such thing as example_library")
