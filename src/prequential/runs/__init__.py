"""Runs in directories: settings, jobs in processes of their own, checkpoints, what they show."""
