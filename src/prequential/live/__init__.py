"""Learners at work on rows of text that come from a file or a pipe."""
