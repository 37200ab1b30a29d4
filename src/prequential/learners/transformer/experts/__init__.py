"""Experts: what predicts side by side, before the mixer makes one prediction of all. Add one in `make_experts`."""

from prequential.learners.inputs import Inputs
from prequential.learners.transformer.experts.expert import Expert, Predicted
from prequential.learners.transformer.experts.knn import KNNExpert
from prequential.learners.transformer.experts.native_boosting import make_grower
from prequential.learners.transformer.experts.network import NetworkExpert
from prequential.learners.transformer.experts.recent_labels import RecentLabelsExpert
from prequential.learners.transformer.experts.trees import TreesExpert
from prequential.native.experts import NativeExperts
from prequential.settings import Settings

__all__ = ["Expert", "KNNExpert", "NetworkExpert", "Predicted", "RecentLabelsExpert", "TreesExpert", "make_experts"]


def make_experts(
    settings: Settings, inputs: Inputs, *, num_classes: int, native: NativeExperts | None = None
) -> dict[str, Expert]:
    """The experts beside the network, by name; `native` where they use the native core."""
    experts: dict[str, Expert] = {}
    if inputs.num_neighbors:
        experts["knn"] = KNNExpert(
            memory=inputs.num_neighbors,
            chunk_size=settings.chunk_size,
            width=inputs.width,
            num_classes=num_classes,
            learn_metric=settings.neighbor_metric == "learned",
            native=native,
        )
    if inputs.num_trees:
        # trees on x alone lose nothing where changes say nothing; the mixer finds out which are better
        widths = {"trees": inputs.width, "change_trees": inputs.wide}
        for name, width in list(widths.items())[: 1 if inputs.wide == inputs.width else 2]:
            experts[name] = TreesExpert(
                num_trees=inputs.num_trees,
                width=width,
                num_classes=num_classes,
                grower=make_grower(log_probs=native is not None),
            )
    if settings.method == "mixed" if settings.recent_labels is None else settings.recent_labels:
        experts["recent_labels"] = RecentLabelsExpert(
            chunk_size=settings.chunk_size, num_classes=num_classes, native=native
        )
    return experts
