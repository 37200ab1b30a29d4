"""Features of frozen pretrained networks, extracted once and kept on disk."""

from prequential.features.extract import extract
from prequential.features.image_records import Records
from prequential.features.network import Network
from prequential.features.networks import load_network

__all__ = ["Network", "Records", "extract", "load_network"]
