"""What a block loses when a skip, its feed-forward network or its norms are taken out (Dong et al. 2021)."""
