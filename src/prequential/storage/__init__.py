"""Files that survive: atomic writes, locks, checksums, checkpoints."""
