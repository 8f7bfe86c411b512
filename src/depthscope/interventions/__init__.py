"""Changes of a running model that can be undone: the core of fix_ and without_."""
