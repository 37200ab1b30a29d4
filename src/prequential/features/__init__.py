"""Features of frozen pretrained networks, extracted once and kept on disk."""

from prequential.features.extract import extract
from prequential.features.networks import Network, load_network
from prequential.features.records import Records

__all__ = ["Network", "Records", "extract", "load_network"]
