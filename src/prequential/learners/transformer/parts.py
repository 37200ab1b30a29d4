"""What a transformer learner is made of, and how the first example decides it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from prequential.errors import BadSetting
from prequential.labels import Labels
from prequential.learners.inputs import Inputs
from prequential.learners.memory import Memory
from prequential.learners.transformer.async_trainer import AsyncTrainer
from prequential.learners.transformer.distributed import here
from prequential.learners.transformer.engine import choose_engine, make_passes
from prequential.learners.transformer.ensemble import Ensemble
from prequential.learners.transformer.experts import NetworkExpert, make_experts
from prequential.learners.transformer.normalized_replay import NormalizedReplay
from prequential.learners.transformer.trainer import Trainer
from prequential.memory_limits import check_fits
from prequential.models.make import OwnNetwork, make_model
from prequential.native.experts import native_experts
from prequential.settings import Settings


class Parts(NamedTuple):
    """What a learner is made of, in the order in which an example passes through it."""

    inputs: Inputs
    ensemble: Ensemble
    replay: NormalizedReplay
    trainer: Trainer

    def state_dict(self) -> dict[str, Any]:
        trained = self.trainer.state_dict()  # first: it waits for steps under way
        return {
            "engine": self.trainer.engine.name,
            "image_bytes": self.inputs.image_bytes,
            "inputs": self.inputs.state_dict(),
            "ensemble": self.ensemble.state_dict(),
            "replay": self.replay.state_dict(),
            "trainer": trained,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._asdict().items():
            part.load_state_dict(state[name])


def make_parts(
    settings: Settings,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    labels: Labels,
    memory: Memory,
    device: torch.device,
    missing: bool = False,
    extractor: OwnNetwork | None = None,
) -> Parts:
    """Makes everything for inputs like the first example.

    Parameters
    ----------
    settings
        Of the learner.
    shape, dtype
        Of the first example.
    labels, memory
        Those of the learner; replay reads them.
    device
        Where the network computes.
    missing
        Whether features may be missing; refused where nothing takes their place.
    extractor
        A network of the user's own that makes features of images.
    """
    num_classes = labels.capacity
    inputs = Inputs(settings, shape, dtype)
    if missing and not inputs.normalizes:
        raise BadSetting(f"features may be missing only where they are standardized, but x has shape {shape}")
    check_memory(settings, inputs.features, num_classes=num_classes, device=device)
    model = make_model(
        settings,
        features=inputs.features,
        extractor=inputs.extractor,
        shape=inputs.image_shape,
        num_classes=num_classes,
        own=extractor,
    ).to(device)
    engine = choose_engine(settings, device=device, processes=here().count, model=model)
    native = native_experts() if engine.name == "native" else None
    if native is not None:
        inputs = Inputs(settings, shape, dtype, native)
    trainer = (AsyncTrainer if settings.async_steps else Trainer)(model, settings, here(), engine=engine)
    network = NetworkExpert(make_passes(engine, trainer.prediction_model), trainer.prediction_context, here())
    replay = NormalizedReplay(
        settings.num_streams - 1,
        chunk_size=settings.chunk_size,
        memory=memory,
        labels=labels,
        inputs=inputs,
        seed=settings.seed,
    )
    others = make_experts(settings, inputs, num_classes=num_classes, native=native)
    quick = settings.mixing == "quick"
    ensemble = Ensemble(network, others, open_ended=labels.open_ended, quick=quick, native=native)
    return Parts(inputs, ensemble, replay, trainer)


def check_memory(settings: Settings, features: int, *, num_classes: int, device: torch.device) -> None:
    """Refuses sizes for which the CPU has not enough memory."""
    s = settings
    sizes = f"width ({s.width}), depth ({s.depth}), window ({s.window}), num_streams ({s.num_streams}), classes ({num_classes})"
    what = f"{features} features, {sizes}" if features > 1 else sizes
    if device.type == "cpu":
        check_fits(s.least_bytes(num_classes, features), what)
