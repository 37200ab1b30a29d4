"""Checks that every learner must pass."""
