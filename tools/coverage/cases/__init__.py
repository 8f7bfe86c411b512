"""The cases by group; importing a file of this folder enters its cases into the registry."""
