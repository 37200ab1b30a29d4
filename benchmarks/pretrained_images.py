"""What a frozen network from PyPI knows about real images: 5 nearest neighbors by its features, and by pixels.

    PREQUENTIAL_DATA=folder python benchmarks/pretrained_images.py --network efficientnet-lite0 --size 224

The folder holds cifar100_webp_0.npz. The first 60 images of every fifth of its 50 classes; each image is classified by
the 5 others most similar to it by cosine. A minute of one core at 224, and seconds at 64.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from prequential.features import load_network

CLASSES, EACH = 10, 60


def images(path: Path) -> np.ndarray:
    """(600, 32, 32, 3); each class is one picture of 20 × 30 images."""
    parts = []
    with np.load(path) as arrays:
        packed, offset = arrays["webp"], arrays["offset"]
        for i in range(0, 5 * CLASSES, 5):
            sheet = np.array(Image.open(io.BytesIO(packed[offset[i] : offset[i + 1]].tobytes())).convert("RGB"))
            parts.append(sheet.reshape(20, 32, 30, 32, 3).swapaxes(1, 2).reshape(600, 32, 32, 3)[:EACH])
    return np.concatenate(parts)


def accuracy(x: np.ndarray) -> float:
    y = np.arange(CLASSES).repeat(EACH)
    x = x.reshape(len(x), -1).astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    similar = x @ x.T
    np.fill_diagonal(similar, -np.inf)
    votes = y[np.argsort(-similar, axis=1)[:, :5]]
    return float(np.mean([np.bincount(vote).argmax() == own for vote, own in zip(votes, y, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--size", type=int)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    x = images(Path(os.environ["PREQUENTIAL_DATA"]) / "cifar100_webp_0.npz")
    network = load_network(settings.network, size=settings.size)
    start = time.process_time()
    features = np.concatenate([network(x[at : at + 50]) for at in range(0, len(x), 50)])
    rate = len(x) / (time.process_time() - start)
    print(f"pixels {accuracy(x / 255 - 0.5):.3f}")
    print(
        f"{network.name} at {network.size} × {network.size}: {accuracy(features):.3f}, {rate:.0f} images a second of CPU"
    )


if __name__ == "__main__":
    main()
