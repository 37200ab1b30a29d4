"""The command line."""

from prequential.cli.app import main as main
