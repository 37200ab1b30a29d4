"""A model of Hugging Face as the extractor."""

import pytest
import torch

from prequential.models.extractors.own import OwnExtractor

transformers = pytest.importorskip("transformers")
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def vit(**options):
    return transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, **TINY), **options)


def resnet():
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic"}
    return transformers.ResNetModel(transformers.ResNetConfig(num_channels=1, **sizes))


@pytest.mark.parametrize(("make", "features"), [(vit, 16), (lambda: vit(add_pooling_layer=False), 16), (resnet, 8)])
def test_its_outputs_become_vectors_with_gradients(make, features):
    extractor = OwnExtractor(make, (1, 8, 8), {})
    assert extractor.features == features
    out = extractor(torch.rand(3, 1, 8, 8))
    assert out.shape == (3, features)
    out.sum().backward()
    assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in extractor.parameters())
