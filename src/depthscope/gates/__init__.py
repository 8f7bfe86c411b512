"""Gates: does a scan hold what was asked of it? For continuous integration, with one check for each demand."""
