"""The image feature extractors and their dropout."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from prequential.errors import BadInput, BadSetting
from prequential.models.extractors import VGG, ConvNet, ConvNeXt, Dropout, Extractor, make_extractor, seed_dropout

CASES = {
    "convnet": (lambda: ConvNet(1, 28, 28), (1, 28, 28)),
    "convnet-tiny-image": (lambda: ConvNet(1, 8, 8), (1, 8, 8)),
    "convnet-flat-image": (lambda: ConvNet(2, 1, 20), (2, 1, 20)),
    "vgg": (lambda: VGG(3, 16, 16), (3, 16, 16)),
    "vgg-tiny-image": (lambda: VGG(1, 5, 3), (1, 5, 3)),
    "convnext": (lambda: ConvNeXt(3, 64, 64, size="atto"), (3, 64, 64)),
    "convnext-odd-sides": (lambda: ConvNeXt(2, 45, 70, size="atto"), (2, 45, 70)),
}


@cache  # drawing millions of weights takes longer than most of the tests
def built(name: str) -> tuple[Extractor, torch.Tensor]:
    build, shape = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build(), torch.randn(3, *shape)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Extractor, torch.Tensor]:
    """An extractor and three images for it."""
    return copy.deepcopy(built(request.param))


def mixture(model: Extractor) -> torch.Tensor:
    """Weights for a sum of the features; the plain sum and the squares of normalised ones are constant."""
    return torch.randn(model.features, generator=torch.Generator().manual_seed(1))


def test_the_output_has_the_promised_shape_and_a_sane_scale(case: tuple[Extractor, torch.Tensor]) -> None:
    model, x = case
    out = model.eval()(x)
    assert out.shape == (3, model.features)
    # a 3×3 convolution of a single row or pixel has mostly padding to work on, and its output shrinks
    assert (0.1 if min(x.shape[2:]) > 8 else 0.005) < out.square().mean().sqrt() < 5
    assert not torch.allclose(out[0], out[1], atol=1e-3)


def test_the_small_one_has_a_name() -> None:
    assert make_extractor("convnext-atto", (32, 32, 3)).macs() == ConvNeXt(3, 32, 32, size="atto").macs()


def test_macs_are_those_of_the_flop_counter(case: tuple[Extractor, torch.Tensor]) -> None:
    model, x = case
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(x)
    assert counter.get_total_flops() == 2 * 3 * model.macs()


def test_macs_of_the_network_of_the_paper() -> None:
    with torch.device("meta"):
        model = ConvNeXt(3, 160, 160)
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 160, 160))
    assert counter.get_total_flops() == 2 * model.macs()


def test_training_macs_are_three_times_those_without_the_gradient_of_the_pixels(
    case: tuple[Extractor, torch.Tensor],
) -> None:
    model, x = case
    flops: dict[int, int] = {}  # of each convolution's forward pass
    first = None
    too_many = 0
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            first = first or module

            def note(module: nn.Module, _: object, out: torch.Tensor) -> None:
                flops[id(module)] = 2 * out[0, 0].numel() * module.weight.numel() * len(out)

            module.register_forward_hook(note)
    with FlopCounterMode(display=False) as counter:
        model.eval()(x).sum().backward()
    for module in model.modules():  # the counter takes the weight gradient of a depthwise convolution for a full one
        if isinstance(module, nn.Conv2d) and module.groups > 1:
            too_many += flops[id(module)] * (module.groups - 1)
    assert counter.get_total_flops() - too_many == 3 * 2 * 3 * model.macs() - flops[id(first)]


@pytest.mark.parametrize("training", [False, True])
def test_images_of_a_batch_do_not_see_each_other(case: tuple[Extractor, torch.Tensor], training: bool) -> None:
    model, x = case
    if training:
        for module in model.modules():
            if isinstance(module, Dropout):
                module.p = 0.0
    model.train(training)
    other = x.clone()
    other[1] = 100 * torch.randn(x[1].shape, generator=torch.Generator().manual_seed(5)) + 7
    before, after = model(x), model(other)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.allclose(before[1], after[1])


def test_every_pixel_and_parameter_matters(case: tuple[Extractor, torch.Tensor]) -> None:
    model, x = case
    x = x.clone().requires_grad_()
    model.eval()(x)[0].mul(mixture(model)).sum().backward()
    height, width = (side - side % 4 if isinstance(model, ConvNeXt) else side for side in x.shape[2:])
    assert x.grad is not None
    seen = x.grad[0, :, :height, :width].abs().sum(0) > 0
    assert seen.float().mean() > 0.9
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_the_memory_layout_changes_nothing_but_speed(case: tuple[Extractor, torch.Tensor]) -> None:
    model, x = case
    plain = copy.deepcopy(model).eval()
    plain.memory_format = torch.contiguous_format
    plain_convs = []
    for net in (model.eval(), plain):
        conv = next(m for m in net.modules() if isinstance(m, nn.Conv2d))
        conv.register_forward_hook(lambda _, __, out: plain_convs.append(out.is_contiguous()))
    a, b = model(x), plain(x)
    (a * mixture(model)).sum().backward()
    (b * mixture(model)).sum().backward()
    assert plain_convs == [False, True]
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-3 * q.grad.abs().max().item())  # type: ignore[union-attr]


def test_weights_and_gradients_lie_in_memory_in_the_default_order(case: tuple[Extractor, torch.Tensor]) -> None:
    """torch's fused AdamW pairs numbers by their place in memory, so mixed layouts would be silently wrong."""
    model, x = case
    model.eval()(x).sum().backward()
    for parameter in model.parameters():
        assert parameter.is_contiguous()
        assert parameter.grad is not None
        assert parameter.grad.is_contiguous()


def test_dimensions_tell_weights_from_norms_biases_and_gains(case: tuple[Extractor, torch.Tensor]) -> None:
    model, _ = case
    decayed = {id(p) for p in model.parameters() if p.ndim >= 2}
    weights = {id(m.weight) for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))}
    assert decayed == weights


@pytest.mark.parametrize(("size", "parameters"), [("tiny", 28_589_128 - 769_000), ("base", 88_591_464 - 1_025_000)])
def test_convnext_has_the_published_number_of_parameters(size: str, parameters: int) -> None:
    """The published models have an output layer of 1000 classes on top."""
    with torch.device("meta"):
        assert sum(p.numel() for p in ConvNeXt(3, 224, 224, size=size).parameters()) == parameters


@pytest.mark.parametrize("gain", [0.0, 0.5])
def test_convnext_begins_with_its_blocks_scaled_by_the_gain(gain: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 32, 32)
    model = ConvNeXt(3, 32, 32, size="atto", skip_gain=gain)
    gains = [p for name, p in model.named_parameters() if "skip_gain" in name]
    assert len(gains) == 12
    assert all((p == gain).all() for p in gains)
    before = model(x)
    for module in model.stages.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
    assert torch.equal(model(x), before) == (gain == 0)  # without a gain nothing inside the blocks can be seen


def test_bfloat16_autocast_runs_and_stays_close(case: tuple[Extractor, torch.Tensor]) -> None:
    model, x = case
    exact = model.eval()(x)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(x)
    assert (rough.float() - exact).square().mean() < 0.01 * exact.square().mean()


def test_dropout_follows_the_seed_alone() -> None:
    torch.manual_seed(0)
    model, x = VGG(3, 8, 8), torch.randn(2, 3, 8, 8)
    twin = copy.deepcopy(model)
    state = torch.get_rng_state()
    seed_dropout(model, 3)
    seed_dropout(twin, 3)
    first = model(x)
    torch.rand(7)  # what others do with the global generator must not matter
    assert torch.equal(twin(x), first)
    torch.set_rng_state(state)
    assert not torch.equal(model(x), first)  # the masks of a second pass are fresh ones
    assert torch.equal(torch.get_rng_state(), state)
    seed_dropout(model, 3)
    assert torch.equal(model(x), first)
    seed_dropout(model, 4)
    assert not torch.equal(model(x), first)
    assert not any("drop" in name for name in model.state_dict())


def test_dropout_keeps_the_mean_and_drops_the_right_share() -> None:
    model = nn.Sequential(Dropout(0.3), nn.Identity(), Dropout(0.3))
    seed_dropout(model, 0)
    one, two = (module(torch.ones(200_000)) for module in (model[0], model[2]))
    assert (one == 0).float().mean().item() == pytest.approx(0.3, abs=0.005)
    assert one.mean().item() == pytest.approx(1.0, abs=0.01)
    both = ((one == 0) & (two == 0)).float().mean().item()
    assert both == pytest.approx(0.09, abs=0.005)  # the two modules draw independent masks
    x = torch.ones(5, requires_grad=True)
    model.eval()
    assert torch.equal(model(x), x)


def test_dropout_without_a_seed_is_refused() -> None:
    with pytest.raises(RuntimeError, match="seed_dropout"):
        VGG(3, 8, 8)(torch.zeros(1, 3, 8, 8))


def test_dropout_gradient_is_the_mask() -> None:
    drop = Dropout(0.5)
    seed_dropout(drop, 1)
    x = torch.full((100,), 3.0, requires_grad=True)
    out = drop(x)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(out.detach(), 3 * x.grad)
    assert set(x.grad.tolist()) == {0.0, 2.0}


def test_the_extractors_say_their_dropout() -> None:
    assert VGG(3, 8, 8).dropout == 0.1
    assert VGG(3, 8, 8, dropout=0.0).dropout == 0.0
    assert ConvNet(1, 8, 8).dropout == 0.0
    assert ConvNeXt(1, 32, 32, size="atto").dropout == 0.0


def test_initial_weights_follow_the_global_seed() -> None:
    outs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outs.append(make_extractor("convnet", (8, 8))(torch.ones(1, 1, 8, 8)))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


@pytest.mark.parametrize(
    ("name", "shape", "kind", "features"),
    [("convnet", (28, 28), ConvNet, 256), ("vgg", (32, 32, 3), VGG, 512), ("convnext", (64, 32, 3), ConvNeXt, 768)],
)
def test_make_extractor(name: str, shape: tuple[int, ...], kind: type, features: int) -> None:
    with torch.device("meta"):
        model = make_extractor(name, shape)
    assert type(model) is kind
    assert model.features == features
    assert model.shape == ((*shape, 1)[2], *shape[:2])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: make_extractor("resnet", (28, 28)), "extractor is 'resnet', expected one of convnet, vgg, convnext"),
        (lambda: make_extractor("vgg", (54,)), r"'vgg' needs images .* has shape \(54,\)"),
        (lambda: ConvNeXt(3, 28, 40), "28×40 pixels, expected at least 32×32"),
        (lambda: ConvNeXt(3, 64, 64, size="huge"), "size is 'huge', expected one of atto, tiny"),
        (lambda: ConvNeXt(0, 64, 64), r"channels_in \(0\)"),
        (lambda: ConvNet(1, 0, 8), r"height \(0\)"),
        (lambda: VGG(1, 8, 0), r"width \(0\)"),
        (lambda: VGG(1, 8, 8, dropout=1.0), r"dropout \(1.0\) must be at least 0 and below 1"),
        (lambda: seed_dropout(Dropout(0.1), -1), r"seed \(-1\) must be at least 0"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(call: object, sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("model", [ConvNet(1, 8, 8), VGG(1, 8, 8), ConvNeXt(1, 32, 32, size="atto")])
def test_other_images_than_promised_are_refused(model: Extractor) -> None:
    with pytest.raises(BadInput, match=rf"shape \(3, 40, 8\), expected \(1, {model.shape[1]}, {model.shape[1]}\)"):
        model(torch.zeros(2, 3, 40, 8))


def gradients(conv: nn.Conv2d, x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()  # keeps its layout
    wanted = [x, *conv.parameters()]
    return list(torch.autograd.grad((conv(x).relu_() * weights).sum(), wanted))
