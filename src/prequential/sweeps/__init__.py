"""Searches over settings."""
