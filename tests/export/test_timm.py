"""timm folders: equal logits after `timm.create_model("local-dir:...")`, refusals with the reason, cards, uploads."""

import json

import pytest
import timm
import torch
from huggingface_hub import ModelCard
from tiny_model import make_model

from fewtags.errors import ConfigError
from fewtags.export.hub import HubError, export_hub, push_folder
from fewtags.export.timm import export_timm


@pytest.mark.parametrize(
    ("backbone", "pool"),
    [("test_resnet", "mean"), ("test_vit", "mean"), ("test_vit", "class_token"), ("test_efficientnet", "mean")],
)
def test_timm_gives_the_same_logits(tmp_path, backbone, pool):
    net, info = make_model(backbone, size=96 if backbone == "test_vit" else 64, pool=pool)
    export_timm(net, info, tmp_path / "out")
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    images = torch.randn(3, 3, info.size, info.size)
    images[:, :, : info.size // 2] = 1.0
    with torch.no_grad():
        wanted = net(images).logits
        torch.testing.assert_close(model(images), wanted, rtol=0, atol=float(1e-5 * wanted.abs().max()))
    config = timm.data.resolve_model_data_config(model)
    found = [tuple(config[key]) for key in ("mean", "std", "input_size")]
    assert found == [info.mean, info.std, (3, info.size, info.size)]
    assert config["crop_mode"] == "squash"
    stored = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert stored["label_names"] == ["n01", "n02", "größe"]
    assert stored["fewtags"]["thresholds"]["n02"] == 1 / 3


@pytest.mark.parametrize(
    ("backbone", "kernel", "pool", "reason"),
    [
        ("test_resnet", 1, "lse", "this model has the pool lse, which timm does not have"),
        ("test_resnet", 3, "mean", "this model has a 3 x 3 head, which timm does not have"),
        ("test_convnext", 1, "mean", "other layers between pool and classifier"),
    ],
)
def test_what_timm_cannot_express_is_refused(tmp_path, backbone, kernel, pool, reason):
    with pytest.raises(ConfigError, match=reason):
        export_timm(*make_model(backbone, kernel=kernel, pool=pool), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_card_says_how_timm_loads_the_folder(tmp_path):
    _, info = make_model()
    (tmp_path / "out").mkdir()
    export_hub(tmp_path, info, tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.library_name == "timm"
    assert "timm.create_model" in card.text


def test_an_edited_card_is_kept(tmp_path):
    (tmp_path / "README.md").write_text("# My own card\n")
    (tmp_path / "out").mkdir()
    export_hub(tmp_path, make_model()[1], tmp_path / "out")
    assert (tmp_path / "out" / "README.md").read_text() == "# My own card\n"


class _Hub:
    """The two calls of `HfApi`, recorded."""

    def __init__(self, error=None):
        self.calls, self.error = [], error

    def create_repo(self, repository, *, private, exist_ok):
        if self.error:
            raise self.error
        self.calls.append(("create", repository, private, exist_ok))
        return f"https://huggingface.co/{repository}"

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        self.calls.append(("upload", repo_id, sorted(p.name for p in folder_path.iterdir())))


def test_upload(tmp_path):
    hub = _Hub()
    (tmp_path / "config.json").touch()
    assert push_folder(tmp_path, "me/tags", api=hub) == "https://huggingface.co/me/tags"
    assert hub.calls == [("create", "me/tags", True, True), ("upload", "me/tags", ["config.json"])]


def test_a_failed_upload_says_what_to_do(tmp_path):
    with pytest.raises(
        HubError, match=r"could not be uploaded to me/tags: 401 Unauthorized. Log in with `hf auth login`"
    ):
        push_folder(tmp_path, "me/tags", api=_Hub(ConnectionError("401 Unauthorized\nlong text")))


def test_a_wrong_name_is_refused_without_a_network(tmp_path):
    with pytest.raises(ConfigError, match="--push a/b/c: "):
        push_folder(tmp_path, "a/b/c")
