"""Nets that only run forward: folded, in mixed precision, compiled; and models that are saved as they were trained."""

import numpy as np
import pytest
import torch
from tiny_model import make_model
from torch import nn

from fewtags.cli.chunks import describe_job
from fewtags.engine import inference
from fewtags.engine.inference import CompiledBackbone, compile_net, for_inference, load_predictor
from fewtags.engine.model import save_model
from fewtags.engine.predict import heatmaps, predict_maps, predict_photos
from fewtags.errors import ConfigError
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.photos.in_memory import NamedImage

Image = pytest.importorskip("PIL.Image")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    net, info = make_model()
    generator = torch.Generator().manual_seed(0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.fill_(0.5)
            module.weight.data.fill_(1.2)
    with torch.no_grad():
        logits = net.predict_logits(torch.rand(4, 3, 64, 64, generator=generator))
        net.head.weight.div_(logits.abs().max())
    return net.eval(), info


@pytest.fixture(scope="module")
def photos():
    rng = np.random.default_rng(0)
    return [NamedImage(Image.fromarray(rng.integers(0, 256, (70, 90, 3), np.uint8)), f"{n}") for n in range(7)]


def probabilities(net, info, photos, batch_size=4):
    return np.stack([found.prob for found in predict_photos(net, info, photos, CPU, batch_size=batch_size)])


def test_results_are_those_of_the_trained_net(model, photos, tmp_path):
    net, info = model
    path = tmp_path / "model.safetensors"
    save_model(path, net, info)
    content = path.read_bytes()
    loaded, read = load_predictor(path, CPU)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in loaded.modules())
    wanted = probabilities(net, info, photos)
    assert np.ptp(wanted) > 0.01
    np.testing.assert_allclose(probabilities(loaded, read, photos), wanted, atol=1e-5)
    pairs = zip(predict_maps(loaded, read, photos, CPU), predict_maps(net, info, photos, CPU), strict=True)
    for (view, found), (same, maps) in pairs:
        assert view == same
        np.testing.assert_allclose(found, maps, atol=1e-5)
    for found, one in zip(heatmaps(loaded, read, photos[0], CPU), heatmaps(net, info, photos[0], CPU), strict=True):
        np.testing.assert_allclose(found, one, atol=1e-5)
    assert path.read_bytes() == content


def test_same_bits_each_time(model, photos, tmp_path):
    """A table that is written again, or continued, has the same numbers; and its job the same checksum."""
    save_model(tmp_path / "model.safetensors", *model)
    first, second = (load_predictor(tmp_path / "model.safetensors", CPU) for _ in range(2))
    assert np.array_equal(probabilities(*first, photos), probabilities(*second, photos))
    assert describe_job(*first, [], {}) == describe_job(*second, [], {})


def test_mixed_precision(model, photos):
    """bfloat16 has 8 bits: other numbers, near those of float32. The head computes in float32."""
    net, info = model
    half = for_inference(net, info, CPU, "bf16")
    assert (net.precision, half.precision, for_inference(net, info, CPU).precision) == ("no", "bf16", "no")
    wanted, found = (probabilities(n, info, photos) for n in (net, half))
    assert 1e-5 < np.abs(found - wanted).max() < 0.05
    with torch.inference_mode():
        out = half(torch.zeros(1, 3, 64, 64))
    assert [value.dtype for value in out] == [torch.float32, torch.float32, torch.bfloat16]
    assert describe_job(half, info, [], {}) != describe_job(for_inference(net, info, CPU), info, [], {})


@pytest.mark.parametrize(("bf16", "chosen"), [(True, "bf16"), (False, "no")])
def test_default_precision_of_a_gpu(model, monkeypatch, bf16, chosen):
    """The rule of `train.precision`."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: bf16)
    assert for_inference(*model, torch.device("cuda")).precision == chosen
    assert for_inference(*model, torch.device("cuda"), "fp16").precision == "fp16"
    assert for_inference(*model, torch.device("cuda"), "no").precision == "no"


def test_fp16_needs_a_gpu(model):
    with pytest.raises(ConfigError, match=r"^mixed_precision='fp16' needs a GPU; use bf16 or no\.$"):
        for_inference(*model, CPU, "fp16")


class _Counting(nn.Module):
    """Counts the shapes that a backbone gets."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.shapes = backbone, []

    def forward(self, images):
        self.shapes.append(tuple(images.shape))
        return self.backbone(images)


def test_compiled_batches_have_one_size(model, photos, monkeypatch):
    """7 photos in batches of 4: the last batch is filled up, and nothing of the filling comes back."""
    net, info = model
    plain = for_inference(net, info, CPU)
    wanted = probabilities(plain, info, photos)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    ready = for_inference(net, info, CPU)
    ready.backbone = counting = _Counting(ready.backbone)
    compiled, problem = compile_net(ready, info, CPU, 4)
    assert problem == ""
    assert np.array_equal(probabilities(compiled, info, photos), wanted)
    assert counting.shapes == [(4, 3, 64, 64)] * 3  # one to compile, two of photos
    assert describe_job(compiled, info, [], {}) != describe_job(plain, info, [], {})


@pytest.fixture
def small(model):
    """A net of one convolution, for the sake of the compiler."""
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3, stride=16), nn.ReLU())
    return SpatialNet(backbone, SpatialHead(4, 3)).eval(), model[1]


def test_compiling_goes_through_dynamo(small, photos, monkeypatch):
    """Traced and run by torch's own tools, but without a C++ compiler: once, for batches of all sizes."""
    net, info = small
    wanted = probabilities(net, info, photos)
    real, graphs = torch.compile, []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda function, **_: real(function, backend=backend, dynamic=False))
    compiled, problem = compile_net(net, info, CPU, 4)
    assert problem == ""
    np.testing.assert_allclose(probabilities(compiled, info, photos), wanted, atol=1e-6)
    assert len(graphs) == 1


@pytest.mark.slow
def test_compiled_by_the_real_compiler(small, photos):
    net, info = small
    wanted = probabilities(net, info, photos)
    compiled, problem = compile_net(net, info, CPU, 4)
    if problem:
        pytest.skip(problem)
    assert isinstance(compiled.backbone, CompiledBackbone)
    np.testing.assert_allclose(probabilities(compiled, info, photos), wanted, atol=1e-5)


def fails(function, **_):
    def run(images):
        raise RuntimeError("no C++ compiler\nmany lines")

    return run


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_without_a_compiler_the_net_runs_as_it_is(small, photos, monkeypatch, real):
    """torch looks for the compiler itself; here it finds none."""
    if real:
        from torch._inductor import config

        monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    else:
        monkeypatch.setattr(torch, "compile", fails)
    net, info = small
    wanted = probabilities(net, info, photos)
    found, problem = compile_net(net, info, CPU, 5)
    assert problem.startswith("torch.compile does not work here, so the net runs as it is: ")
    assert "\n" not in problem
    assert not isinstance(found.backbone, CompiledBackbone)
    assert np.array_equal(probabilities(found, info, photos), wanted)


def test_onnx_files_have_their_own_precision(model, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from fewtags.export.onnx import export_onnx

    path = export_onnx(*model, tmp_path / "model.onnx").path
    net, info = load_predictor(path, CPU)
    assert for_inference(net, info, CPU) is net
    with pytest.raises(ConfigError, match=r"^mixed_precision='bf16' is for run folders: an ONNX file has its own"):
        load_predictor(path, CPU, "bf16")
    with pytest.raises(ConfigError, match=r"^compile is for run folders: onnxruntime compiles .*model\.onnx itself"):
        inference.compile_net(net, info, CPU, 4)
