"""What depthscope recognises in a model, what it does not, and the line that would help."""
