"""Known datasets as streams."""
