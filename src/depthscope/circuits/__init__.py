"""The attention of a real model as matrices: P and the weights of every head, and what follows from them."""
