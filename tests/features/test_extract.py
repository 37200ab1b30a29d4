import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from prequential.errors import BadInput, BadSetting, MissingExtra
from prequential.features import Network, extract, load_network
from prequential.streams.formats.feature_folder import FeatureStream
from prequential.streams.formats.feature_writer import COPY
from prequential.streams.stream import Chunk, Stream


class Images(Stream):
    """Small random images; those whose number is in `bad` cannot be decoded."""

    classes = 5

    def __init__(self, n=50, seed=0):
        rng = np.random.default_rng(seed)
        self.x = rng.integers(0, 256, (n, 12, 12, 3), dtype=np.uint8)
        self.seed = seed

    def __len__(self):
        return len(self.x)

    def _read(self, start, stop):
        return Chunk(self.x[start:stop], [i % 5 for i in range(start, stop)])

    def fingerprint(self):
        return f"images {self.seed} {len(self)}"


class DamagedStream(Images):
    """A stream of the same images that raises one sentence where every seventh is; it cannot try by itself."""

    def _read(self, start, stop):
        for i in range(start, stop):
            if i % 7 == 0:
                raise BadInput(f"example {i}: <object at 0x{id(object()):x}> is bad")
        return super()._read(start, stop)

    def task_starts(self):
        return np.array([0, 7, 20, 28])

    def columns(self, start, stop):
        return {"user": np.arange(start, stop, dtype=np.int32) * 10}


class Damaged:
    """Records of the same images where every seventh is bad."""

    def __init__(self, n=50):
        self.stream = Images(n)

    def __len__(self):
        return len(self.stream)

    def attempt(self, start, stop):
        chunk = self.stream.read(start, stop)
        good = [i for i in range(len(chunk)) if (start + i) % 7]
        bad = {start + i: f"image {start + i} is bad" for i in range(len(chunk)) if i not in good}
        return chunk.x[good], [chunk.y[i] for i in good], bad

    def fingerprint(self):
        return "damaged"


def colors(size=12):
    """A network whose features are known: the mean of each channel."""
    return Network("colors", lambda x: x.mean((2, 3)), width=3, size=size, mean=(0, 0, 0), std=(1, 1, 1))


def test_features_of_all_images_in_order(tmp_path):
    images, calls = Images(), []
    stream = extract(images, colors(), tmp_path, batch=8, dtype="float32", progress=lambda *n: calls.append(n))
    chunk = stream.read(0, 50)
    assert np.allclose(chunk.x, images.x.mean((1, 2)) / 255, atol=1e-6)
    assert chunk.y == [i % 5 for i in range(50)]
    assert stream.classes == 5
    assert calls[0] == (8, 50, 0)
    assert calls[-1] == (50, 50, 0)
    assert stream.manifest["about"]["network"] == "colors"
    # started again, it does nothing
    calls.clear()
    assert extract(images, colors(), tmp_path, batch=8, dtype="float32").fingerprint() == stream.fingerprint()
    assert calls == []


def test_bad_images_are_skipped_and_counted(tmp_path):
    source, calls = Damaged(), []
    stream = extract(source, colors(), tmp_path, batch=8, dtype="float32", progress=lambda *n: calls.append(n))
    good = [i for i in range(50) if i % 7]
    assert len(stream) == len(good)
    assert stream.manifest["skipped"] == 8
    assert calls[-1] == (50, 50, 8)
    assert np.allclose(stream.read(0, 50).x, source.stream.x[good].mean((1, 2)) / 255, atol=1e-6)
    assert stream.read(0, 50).y == [i % 5 for i in good]
    entries = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    assert entries == [{"position": i, "reason": f"image {i} is bad"} for i in range(0, 50, 7)]


def test_a_stream_that_raises_is_read_around_its_bad_images(tmp_path, monkeypatch):
    monkeypatch.setattr("prequential.features.metadata_files.ROWS", 9)  # several pieces
    stream = extract(DamagedStream(), colors(), tmp_path, batch=8, dtype="float32")
    good = [i for i in range(50) if i % 7]
    assert np.allclose(stream.read(0, 50).x, Images().x[good].mean((1, 2)) / 255, atol=1e-6)
    assert stream.read(0, 50).y == [i % 5 for i in good]
    assert stream.manifest["skipped"] == 8
    lines = (tmp_path / "skipped.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {"position": 7, "reason": "example 7: <object> is bad"}  # no address: it changes
    # what else the source knows goes with the rows that are left
    assert np.load(tmp_path / "position.npy").tolist() == good
    assert np.load(tmp_path / "user.npy").tolist() == [10 * i for i in good]
    assert np.load(tmp_path / "user.npy").dtype == np.int32
    assert np.load(tmp_path / "task_starts.npy").tolist() == [0, 6, 17, 24]  # 0, 7 and 28 are bad themselves


def test_sources_that_know_no_more_leave_no_columns(tmp_path):
    extract(Images(), colors(), tmp_path)
    found = sorted(path.name for path in tmp_path.iterdir() if path.name != COPY)
    assert found == ["manifest.json", "position.npy", "skipped.jsonl", "x-00000.npy", "y-00000.npy"]


def test_nothing_but_bad_images(tmp_path):
    with pytest.raises(BadInput, match="none of the 1 images can be used; the first: image 0 is bad"):
        extract(Damaged(1), colors(), tmp_path)


def test_a_disk_that_is_taken_away_is_no_bad_image(tmp_path):
    source = Damaged(8)
    source.path = tmp_path / "disk"
    source.path.mkdir()
    with pytest.raises(BadInput, match="disk is gone or empty; start the same extraction again when it is back"):
        extract(source, colors(), tmp_path / "out", batch=1)
    (source.path / "photo").write_text("")
    assert len(extract(source, colors(), tmp_path / "out", batch=1)) == 6


def test_entries_after_the_last_commit_are_written_again(tmp_path):
    """As a kill between an entry and the manifest, or in the middle of an entry, leaves them."""

    def stop(done, total, skipped):
        if done == 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(Damaged(), colors(), tmp_path / "a", batch=8, progress=stop)
    listed = tmp_path / "a" / "skipped.jsonl"
    before = listed.read_bytes()
    listed.write_bytes(before + b'{"position": 28, "reason": "image 28 is bad"}\n{"posi')
    extract(Damaged(), colors(), tmp_path / "a", batch=8)
    extract(Damaged(), colors(), tmp_path / "b", batch=8)
    a, b = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in ("a", "b"))
    assert a == b


def test_a_damaged_list_of_skipped_images_is_made_again(tmp_path):
    """By trying the images again; if others can be read now, the features and the list cannot be brought together."""

    def stop(done, total, skipped):
        if done == 24:
            raise KeyboardInterrupt

    extract(Damaged(), colors(), tmp_path / "whole", batch=8)
    expected = {f.name: f.read_bytes() for f in (tmp_path / "whole").iterdir()}
    for name in ("fewer", "changed"):
        with pytest.raises(KeyboardInterrupt):
            extract(Damaged(), colors(), tmp_path / name, batch=8, progress=stop)
        listed = tmp_path / name / "skipped.jsonl"
        before = listed.read_bytes()
        listed.write_bytes(before.splitlines(keepends=True)[0] if name == "fewer" else before.replace(b"bad", b"good"))
        extract(Damaged(), colors(), tmp_path / name, batch=8)
        assert {f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} == expected
    with pytest.raises(KeyboardInterrupt):
        extract(Damaged(), colors(), tmp_path / "mended", batch=8, progress=stop)
    (tmp_path / "mended" / "skipped.jsonl").unlink()
    source = Damaged()
    source.attempt = lambda a, b: (source.stream.x[a:b], [0] * (b - a), {})  # every image can be read now
    with pytest.raises(BadInput, match="is damaged, and of its source 0 images cannot be used now, expected 4; delete"):
        extract(source, colors(), tmp_path / "mended", batch=8)


def test_a_batch_of_bad_images_alone(tmp_path):
    stream = extract(Damaged(15), colors(), tmp_path, batch=1)
    assert len(stream) == 12
    assert stream.manifest["skipped"] == 3


def test_what_cannot_go_together_is_refused(tmp_path):
    with pytest.raises(BadSetting, match=r"batch \(0\) must be at least 1"):
        extract(Images(), colors(), tmp_path, batch=0)
    extract(Images(), colors(), tmp_path)
    with pytest.raises(BadSetting, match="was begun with source 'images 0 50', not 'images 1 50'"):
        extract(Images(seed=1), colors(), tmp_path)
    with pytest.raises(BadSetting, match="was begun with size 12, not 8"):
        extract(Images(), colors(size=8), tmp_path)
    with pytest.raises(BadInput, match=r"images are float64 \(1, 2, 2, 3\), expected uint8"):
        colors()(np.zeros((1, 2, 2, 3)))
    with pytest.raises(BadInput, match=r"odd gave \(1, 3\), expected \(1, 4\)"):
        Network("odd", lambda x: x.mean((2, 3)), width=4, size=2)(np.zeros((1, 2, 2, 3), np.uint8))


def slow_network():
    weights = torch.randn(432, 16, generator=torch.Generator().manual_seed(0))

    def run(x):
        time.sleep(0.01)
        return x.flatten(1) @ weights

    return Network("random", run, width=16, size=12)


def test_killed_and_started_again(tmp_path):
    """A real process, killed and started again; the files come out as without the kill."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_extract import Damaged, extract, slow_network
import importlib
module = importlib.import_module('prequential.features.extract')
module.SECONDS_BETWEEN_COMMITS = 0.05
extract(Damaged(160), slow_network(), sys.argv[1], batch=8, rows_per_shard=50)
"""
    extract(Damaged(160), slow_network(), tmp_path / "whole", batch=8, rows_per_shard=50)
    command = [sys.executable, "-c", code, str(tmp_path / "killed")]
    with subprocess.Popen(command) as process:
        while not (tmp_path / "killed" / "y-00000.npy").exists():
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with pytest.raises(BadInput, match="is not finished"):
        FeatureStream(tmp_path / "killed")
    extract(Damaged(160), slow_network(), tmp_path / "killed", batch=8, rows_per_shard=50)
    a, b = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in ("whole", "killed"))
    assert a == b
    assert len(FeatureStream(tmp_path / "killed")) == 137


def test_interrupted_by_the_user_nothing_is_lost(tmp_path):
    def stop(done, total, skipped):
        if done == 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(Images(), colors(), tmp_path, batch=8, progress=stop)
    seen = []
    extract(Images(), colors(), tmp_path, batch=8, progress=lambda done, *rest: seen.append(done))
    assert seen == [32, 40, 48, 50]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Small random networks saved as the hub has them."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
    mae = transformers.ViTMAEConfig(
        **small,
        intermediate_size=32,
        decoder_hidden_size=8,
        decoder_intermediate_size=8,
        decoder_num_attention_heads=2,
        decoder_num_hidden_layers=1,
    )
    transformers.ViTMAEForPreTraining(mae).save_pretrained(folder / "mae")
    resnet = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 6, 8, 10], depths=[1, 1, 1, 1])
    transformers.ResNetForImageClassification(resnet).save_pretrained(folder / "resnet")
    transformers.Dinov2Model(transformers.Dinov2Config(**small)).save_pretrained(folder / "dino")
    swin = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=4, depths=[1, 1], num_heads=[2, 2], window_size=2
    )
    transformers.SwinModel(swin).save_pretrained(folder / "swin")
    (folder / "dino" / "preprocessor_config.json").write_text(
        '{"crop_size": {"height": 20, "width": 20}, "do_center_crop": true, "size": {"shortest_edge": 24}, '
        '"image_mean": [0.5, 0.5, 0.5]}'
    )
    return folder


def test_mae_sees_all_patches_in_order(weights, tmp_path):
    net = load_network(weights / "mae")
    assert (net.width, net.size) == (16, 16)
    x = Images(6).x
    state = torch.get_rng_state()
    a, b = net(x), net(x)
    assert (a == b).all()  # nothing is drawn at random
    assert (torch.get_rng_state() == state).all()
    assert np.allclose(net(x[:2]), a[:2], atol=1e-5)
    # every patch matters
    for row in (0, 6, 11):
        changed = x.copy()
        changed[0, row, row] ^= 255
        assert not np.allclose(net(changed)[0], a[0], atol=1e-6)
    cls = load_network(weights / "mae", pooling="cls")(x)
    assert not np.allclose(cls, a)
    # what transformers computes when all patches are kept in their order
    from transformers import ViTMAEModel

    model = ViTMAEModel.from_pretrained(weights / "mae", mask_ratio=0.0).eval()
    pixels = torch.nn.functional.interpolate(
        torch.tensor(x).permute(0, 3, 1, 2) / 255, (16, 16), mode="bicubic", antialias=True
    )
    with torch.inference_mode():
        tokens = model(
            (pixels.clamp(0, 1) - net.mean) / net.std, noise=torch.arange(16.0).expand(6, -1)
        ).last_hidden_state
    assert tokens.shape == (6, 17, 16)
    assert np.allclose(a, tokens[:, 1:].mean(1), atol=1e-5)
    assert np.allclose(cls, tokens[:, 0], atol=1e-5)
    assert load_network(weights / "mae", size=24)(x).shape == (6, 16)  # its position code is interpolated
    stream = extract(Images(6), str(weights / "mae"), tmp_path, dtype="float32", batch=6)
    assert (stream.read(0, 6).x == a).all()


def test_resnet_gives_its_global_average(weights):
    net = load_network(weights / "resnet")
    assert (net.width, net.size) == (10, 224)
    small = load_network(weights / "resnet", size=32)
    rows = small(Images(4).x)
    assert rows.shape == (4, 10)
    assert not np.allclose(rows[0], rows[1])
    assert (small(Images(4).x[..., 0])).shape == (4, 10)  # gray images


def test_networks_without_a_class_token(weights):
    swin = load_network(weights / "swin")
    x = Images(3).x
    rows = swin(x)
    assert rows.shape == (3, 8)
    from transformers import SwinModel

    model = SwinModel.from_pretrained(weights / "swin").eval()
    pixels = torch.nn.functional.interpolate(
        torch.tensor(x).permute(0, 3, 1, 2) / 255, (16, 16), mode="bicubic", antialias=True
    )
    with torch.inference_mode():
        tokens = model((pixels.clamp(0, 1) - swin.mean) / swin.std).last_hidden_state
    assert np.allclose(rows, tokens.mean(1), atol=1e-5)
    with pytest.raises(BadSetting, match="pooling is 'cls', but swin has no class token"):
        load_network(weights / "swin", pooling="cls")


def test_a_folder_is_called_by_its_name(weights, monkeypatch):
    monkeypatch.chdir(weights / "dino")
    assert load_network(".").name == load_network(weights / "dino").name == "dino"


def test_grey_images_with_a_channel():
    x = Images(3).x[..., :1]
    assert (colors()(x) == colors()(x[..., 0])).all()


def test_folders_that_do_not_hold_a_whole_network(weights, tmp_path):
    shutil.copytree(weights / "dino", tmp_path / "odd")
    config = json.loads((tmp_path / "odd" / "config.json").read_text())
    (tmp_path / "odd" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(BadInput, match=r"has no weights for \d+ parts of the dinov2 .* the first is .*layer\.2\."):
        load_network(tmp_path / "odd")  # they would be random
    (tmp_path / "odd" / "config.json").write_text(json.dumps({**config, "hidden_size": 18}))
    with pytest.raises(BadInput, match=r"odd cannot be loaded: [^\n]*$"):
        load_network(tmp_path / "odd")
    (tmp_path / "odd" / "config.json").write_text("{")
    with pytest.raises(BadInput, match=r"odd cannot be loaded: [^\n]*$"):
        load_network(tmp_path / "odd")
    (tmp_path / "odd" / "config.json").unlink()
    with pytest.raises(BadInput, match=r"odd has no config\.json"):
        load_network(tmp_path / "odd")
    shutil.copy(weights / "dino" / "config.json", tmp_path / "odd")
    weights_file = tmp_path / "odd" / "model.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:1000])
    with pytest.raises(BadInput, match=r"odd cannot be loaded: [^\n]*$"):
        load_network(tmp_path / "odd")


def test_dinov2_takes_what_its_folder_says(weights):
    net = load_network(weights / "dino")
    assert (net.width, net.size) == (16, 20)
    assert net.mean.flatten().tolist() == [0.5, 0.5, 0.5]
    assert net(Images(3).x).shape == (3, 16)
    assert re.fullmatch("[0-9a-f]{64}", net.checksum)
    assert not np.allclose(net(Images(3).x), load_network(weights / "dino", pooling="mean")(Images(3).x))


def test_a_damaged_download_is_found(weights, tmp_path):
    """The hub's cache names files after their checksums."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    content = (weights / "dino" / "model.safetensors").read_bytes()
    (blobs / ("0" * 64)).write_bytes(content)
    (snapshot / "model.safetensors").symlink_to(blobs / ("0" * 64))
    (snapshot / "config.json").write_bytes((weights / "dino" / "config.json").read_bytes())
    with pytest.raises(BadInput, match=r"has checksum [0-9a-f]{12}…, expected 000000000000…; delete it"):
        load_network(snapshot)


def test_one_sentence_when_there_are_no_weights(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    for name in ("nothing", "/tmp/nowhere/at/all", "./weights", str(tmp_path / "gone")):
        with pytest.raises(BadInput, match=f"'{name}' is no network and no folder; expected resnet50, mae-vit-b"):
            load_network(name)
    with pytest.raises(BadSetting, match="pooling is 'max', expected"):
        load_network("resnet50", pooling="max")
    with pytest.raises(BadInput, match=r"^the folder \S+ has no \.safetensors weights in it; expected config\.json"):
        load_network(tmp_path)
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "ENDPOINT", "https://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("urllib.request.getproxies", dict)
    start = time.perf_counter()
    with pytest.raises(
        BadInput,
        match=r"the weights of microsoft/resnet-50-none are not on this machine and cannot be fetched .*; fetch them where "
        r"there is a network with: hf download microsoft/resnet-50-none --local-dir FOLDER, and give that folder",
    ):
        load_network("microsoft/resnet-50-none")
    assert time.perf_counter() - start < 5


def test_timm_is_used_where_it_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match="timm:resnet50 needs an optional package"):
        load_network("timm:resnet50")

    class Fake:
        @staticmethod
        def create_model(name, pretrained, num_classes):
            assert (name, pretrained, num_classes) == ("tiny", True, 0)
            model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4))
            model.num_features = 4
            return model

        class data:  # noqa: N801 (a module)
            @staticmethod
            def resolve_model_data_config(model):
                return {"input_size": (3, 10, 10), "mean": (0, 0, 0), "std": (1, 1, 1)}

    monkeypatch.setitem(sys.modules, "timm", Fake)
    net = load_network("timm:tiny")
    assert (net.width, net.size) == (4, 10)
    assert net(Images(3).x).shape == (3, 4)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("config.json", {"auto_map": {"AutoModel": "evil.Model"}}),
        ("config.json", {"vision_config": {"auto_map": {"AutoConfig": "evil.Config"}}}),
        ("config.json", {"attn_implementation": "attacker/kernel"}),
        ("config.json", {"_attn_implementation": {"": "attacker/kernel"}}),
        ("config.json", {"quantization_config": {"quant_method": "bitsandbytes"}}),
        ("config.json", {"use_pretrained_backbone": True, "backbone": "resnet50"}),
        ("config.json", {"backbone": "attacker/weights"}),
        ("preprocessor_config.json", {"auto_map": {"AutoImageProcessor": "evil.Processor"}}),
        ("adapter_config.json", {"base_model_name_or_path": "attacker/weights"}),
    ],
)
def test_a_folder_runs_no_code_and_fetches_nothing(weights, tmp_path, name, changes):
    folder = shutil.copytree(weights / "dino", tmp_path / "folder")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\n")
    path = folder / name
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.is_file() else {}), **changes}))
    with pytest.raises(BadInput, match=r"nothing was loaded|holds an adapter"):
        load_network(folder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 10**9},
        {"intermediate_size": 10**12},
        {"num_hidden_layers": 10**9},
        {"image_size": 10**9},
        {"image_size": [32, 10**9]},
        {"text_config": {"vocab_size": 10**15}},
        {"hidden_size": 128, "intermediate_size": 1 << 20, "num_hidden_layers": 4000},
    ],
)
def test_sizes_that_the_weights_cannot_have_are_refused(weights, tmp_path, changes):
    folder = shutil.copytree(weights / "dino", tmp_path / "folder")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(BadInput, match=r"config\.json has .*(expected at most|more than its).*; nothing was loaded"):
        load_network(folder)


class _Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickled_weights_are_never_loaded_whatever_timm_asks_for(tmp_path, monkeypatch):
    torch.save({"weight": _Evil(str(tmp_path / "executed"))}, tmp_path / "weights.bin")

    class Fake:
        @staticmethod
        def create_model(name, pretrained, num_classes):
            torch.load(tmp_path / "weights.bin", weights_only=False)

    monkeypatch.setitem(sys.modules, "timm", Fake)
    before = dict(os.environ)
    with pytest.raises(BadInput, match="timm:tiny cannot be loaded"):
        load_network("timm:tiny")
    assert dict(os.environ) == before
    assert not (tmp_path / "executed").exists()
    for name in ("timm:hf-hub:attacker/net", "timm:local-dir:/tmp/net", "timm:", "timm:../net"):
        with pytest.raises(BadInput, match="is no network of timm's own"):
            load_network(name)
