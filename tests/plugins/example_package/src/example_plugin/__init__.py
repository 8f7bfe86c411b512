"""What another package may add to depthscope: one file, one thing."""
