"""A frozen network, whatever it was made of: images in, features out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from prequential.errors import BadInput

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation


class Network:
    """A frozen network: images in, one row of features for each out.

    Images are scaled to `size` × `size`, to [0, 1], and standardized with `mean` and `std`.

    Parameters
    ----------
    name
        What it is called; kept with the features.
    run
        From standardized images (n, 3, size, size) to features (n, width).
    width
        How many features there are.
    size
        Height and width of the images it takes.
    mean, std
        Of the three channels.
    checksum
        SHA-256 of the weights; kept with the features.
    device
        Where `run` computes.

    Examples
    --------
    >>> color = Network("color", lambda images: images.mean((2, 3)), width=3, size=8, mean=(0, 0, 0), std=(1, 1, 1))
    >>> color(np.full((1, 8, 8, 3), 255, np.uint8)).tolist()
    [[1.0, 1.0, 1.0]]
    """

    def __init__(
        self,
        name: str,
        run: Callable[[torch.Tensor], torch.Tensor],
        *,
        width: int,
        size: int,
        mean: tuple[float, ...] = IMAGENET[0],
        std: tuple[float, ...] = IMAGENET[1],
        checksum: str = "",
        device: str | torch.device = "cpu",
    ) -> None:
        self.name, self.run, self.width, self.size, self.checksum = name, run, width, size, checksum
        self.mean, self.std = (torch.tensor(three, device=device).view(1, 3, 1, 1) for three in (mean, std))
        self.device = torch.device(device)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Features (n, width) float32 of images (n, height, width), (n, height, width, 1 or 3), uint8."""
        if images.ndim == 4 and images.shape[3] == 1:
            images = images[..., 0]
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
            raise BadInput(f"images are {images.dtype} {images.shape}, expected uint8 (n, height, width, 3)")
        if images.ndim == 3:
            images = np.repeat(images[..., None], 3, axis=3)
        with torch.inference_mode():
            x = torch.as_tensor(np.array(images, order="C")).to(self.device).permute(0, 3, 1, 2).float() / 255
            if x.shape[2:] != (self.size, self.size):
                x = F.interpolate(x, (self.size, self.size), mode="bicubic", antialias=True).clamp(0, 1)
            features = self.run((x - self.mean) / self.std)  # (n, width)
        if features.shape != (len(images), self.width):
            raise BadInput(f"{self.name} gave {tuple(features.shape)}, expected {(len(images), self.width)}")
        rows: np.ndarray = features.float().cpu().numpy()
        return rows
