"""Training: tasks and their data, the loop, and fair comparisons of arms under one budget."""
