"""Stories as pages: one HTML file that needs nothing else, and a small card for notebooks."""
