"""What predicts: the networks."""
