"""What a scan costs over a plain forward pass, on the machine and device at hand."""
