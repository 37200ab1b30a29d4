"""The journal of a live stream."""
