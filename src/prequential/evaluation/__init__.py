"""Prequential evaluation: running scores, metrics, and a record of every example."""

from prequential.evaluation.records import RecordWriter, read_records
from prequential.evaluation.scores import Scores

__all__ = ["RecordWriter", "Scores", "read_records"]
