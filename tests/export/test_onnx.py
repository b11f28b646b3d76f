"""ONNX files: the same numbers as torch at every size, metadata, and refusals."""

import json

import numpy as np
import pytest
import torch
from tiny_model import make_model

from fewtags.engine.onnx_net import OnnxNet, load_onnx, load_trained
from fewtags.engine.predict import heatmaps, predict_photos
from fewtags.errors import CheckpointError, ConfigError
from fewtags.export import onnx as module
from fewtags.export.onnx import LIMIT, export_onnx, other_sizes, preprocessing
from fewtags.photos.in_memory import NamedImage

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
Image = pytest.importorskip("PIL.Image")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    net, info = make_model()
    return net, info, export_onnx(net, info, tmp_path_factory.mktemp("onnx") / "model.onnx")


def photos(count):
    rng = np.random.default_rng(0)
    return [NamedImage(Image.fromarray(rng.integers(0, 256, (70, 90, 3), np.uint8)), f"{n}") for n in range(count)]


@pytest.mark.parametrize(("count", "height", "width"), [(1, 64, 64), (7, 64, 64), (3, 128, 96)])
def test_outputs_by_torch_in_plain_steps(exported, count, height, width):
    """Divide by 255, normalise, run the net, sigmoid: what another program may expect of `pixels`."""
    net, info, made = exported
    pixels = np.random.default_rng(1).integers(0, 256, (count, 3, height, width), np.uint8)
    mean, std = (np.array(v, np.float32)[:, None, None] for v in (info.mean, info.std))
    images = torch.from_numpy((pixels.astype(np.float32) / 255 - mean) / std)
    with torch.no_grad():
        wanted = net(images)
    scores, maps, logits = ort.InferenceSession(made.path).run(["scores", "maps", "logits"], {"pixels": pixels})
    np.testing.assert_allclose(scores, wanted.logits.sigmoid(), atol=1e-5)
    np.testing.assert_allclose(maps, wanted.maps.sigmoid(), atol=1e-5)
    np.testing.assert_allclose(logits, wanted.logits, atol=1e-4)
    assert np.ptp(scores) > 0.01  # the outputs depend on the photo


def test_parity_is_measured_and_stated(exported):
    _, info, made = exported
    assert max(made.parity.scores, made.parity.maps) < LIMIT
    assert not made.fixed
    assert {batch[1:] for batch in made.parity.compared} == {(64, 64), *other_sizes(64)}
    assert "opset 17" in "\n".join(made.lines(info.size))
    assert [o.version for o in onnx.load(made.path).opset_import] == [17]


def test_metadata_for_other_programs(exported):
    found = ort.InferenceSession(exported[2].path).get_modelmeta().custom_metadata_map
    assert json.loads(found["class_ids"]) == ["n01", "n02", "größe"]
    assert json.loads(found["class_names"]) == ["bird", "crane [n02]", "crane [größe]"]
    assert json.loads(found["thresholds"]) == [0.25, 1 / 3, 0.5]
    assert json.loads(found["pool"]) == {"name": "mean", "head_kernel": 1}
    assert json.loads(found["preprocessing"])["size"] == [64, 64]
    assert "max |dp|" in found["parity"]


def test_centre_crop_is_described():
    assert preprocessing(make_model(policy="imagenet")[1])["crop_share"] == 224 / 256


def test_predictions_and_maps_as_of_the_net(exported):
    """Photos of another shape, through the same decoding; only rounding in the net may differ."""
    net, info, made = exported
    again, read = load_trained(made.path)
    assert (read.class_ids, read.thresholds, read.groups) == (info.class_ids, info.thresholds, info.groups)
    given = photos(5)
    wanted = [p.prob for p in predict_photos(net, info, given, CPU, batch_size=2)]
    found = [p.prob for p in predict_photos(again, read, given, CPU, batch_size=2)]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    for wanted_part, part in zip(heatmaps(net, info, given[0], CPU), heatmaps(again, read, given[0], CPU), strict=True):
        np.testing.assert_allclose(part, wanted_part, atol=1e-5)


def test_every_pixel_value_reaches_the_file_unchanged(exported):
    """`Collate` with the mean and std of `load_onnx` gives 0..255, and `OnnxNet` rounds nothing away."""
    from fewtags.photos.loader import Collate

    _, info = load_onnx(exported[2].path)
    values = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    images = Collate(info.mean, info.std).pixels([values])
    assert torch.equal(images, torch.from_numpy(values.astype(np.float32)).permute(2, 0, 1)[None])


@pytest.mark.parametrize(("kernel", "pool"), [(3, "mean"), (1, "lse"), (1, "softmax"), (1, "max")])
def test_other_heads(tmp_path, kernel, pool):
    """lse depends on the number of cells, which a trace keeps as a constant: its file takes one size."""
    net, info = make_model(size=32, kernel=kernel, pool=pool)
    made = export_onnx(net, info, tmp_path / "model.onnx")
    assert bool(made.fixed) == (pool == "lse")
    assert max(made.parity.scores, made.parity.maps) < LIMIT


def test_transformers_have_one_size(tmp_path):
    net, info = make_model("test_vit", size=96, kernel=3)
    made = export_onnx(net, info, tmp_path / "vit.onnx")
    assert "one size" in made.fixed
    with pytest.raises(
        CheckpointError, match=r"vit.onnx fails on a batch of 1 x 3 x 64 x 64 pixels; its input is n x 3"
    ):
        OnnxNet(made.path)(torch.zeros(1, 3, 64, 64))


def test_a_file_that_differs_from_torch_is_not_written(tmp_path, monkeypatch):
    """The reference of the comparison gets another head than the traced net."""
    net, info = make_model(size=32)
    original, calls = module._Exported.forward, []

    def changed(self, pixels):
        scores, maps, logits = original(self, pixels)
        calls.append(torch.onnx.is_in_onnx_export())
        return (scores if calls[-1] else scores + 2e-4), maps, logits

    monkeypatch.setattr(module._Exported, "forward", changed)
    with pytest.raises(ConfigError, match=r"test_resnet cannot be exported to ONNX: the results differ .* than 0.0001"):
        export_onnx(net, info, tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]
    assert {True, False} == {*calls}


def test_what_is_not_an_export_is_refused(tmp_path):
    net, info = make_model(size=32)
    with pytest.raises(ConfigError, match=r"ends in \.onnx"):
        export_onnx(net, info, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="does not exist"):
        load_onnx(tmp_path / "no.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(CheckpointError, match=r"text.onnx cannot be read as ONNX: .*; export it again"):
        load_onnx(tmp_path / "text.onnx")
    value = onnx.helper.make_tensor_value_info
    one = [onnx.TensorProto.FLOAT, [1]]
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [value("x", *one)], [value("y", *one)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(CheckpointError, match="has no output called scores"):
        load_onnx(tmp_path / "other.onnx")
