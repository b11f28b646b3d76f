"""The service: the numbers of `predict`, limits, errors, and a graceful end."""

import asyncio
import base64
import http.client
import io
import json
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_model import make_model

from fewtags.engine.model import save_model
from fewtags.engine.predict import heatmaps, predict_photos

pytest.importorskip("fastapi")
pytest.importorskip("multipart")
from fastapi.testclient import TestClient

from fewtags.serve.app import Guard, make_app
from fewtags.serve.model import Limits, ServedModel

CPU = torch.device("cpu")
LIMITS = Limits(bytes=200_000, pixels=40_000, photos=3)


@pytest.fixture(scope="module")
def trained():
    net, info = make_model()
    return net, replace(info, thresholds=(0.0, 0.0, 1.0))


@pytest.fixture(scope="module")
def client(trained):
    model = ServedModel(*trained, CPU, LIMITS)
    with TestClient(make_app(model)) as made:
        yield made
    assert not model.batcher._thread.is_alive()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three photos of different shapes."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for n, shape in enumerate([(70, 90, 3), (64, 64, 3), (120, 50, 3)]):
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(folder / f"{n}.png")
    return [folder / f"{n}.png" for n in range(3)]


def test_predict_has_the_numbers_of_the_command(client, trained, files):
    wanted = [p.prob for p in predict_photos(*trained, files, CPU)]
    parts = [("photos", (p.name, p.read_bytes())) for p in files]
    found = client.post("/predict?probabilities=true", files=parts).json()
    ids = trained[1].class_ids
    assert [answer["photo"] for answer in found] == ["0.png", "1.png", "2.png"]
    np.testing.assert_allclose([[a["probabilities"][i] for i in ids] for a in found], wanted, atol=1e-6)
    for answer, prob in zip(found, wanted, strict=True):
        best = sorted(range(2), key=lambda c: -prob[c])
        assert [tag["id"] for tag in answer["tags"]] == [ids[c] for c in best]  # the third class has the threshold 1
        assert {tag["threshold"] for tag in answer["tags"]} == {0.0}
    one = client.post("/predict?max_tags=1&threshold=0", files=parts[:1]).json()
    assert len(one[0]["tags"]) == 1


def test_a_model_without_maps_gives_tags_only(files):
    model = ServedModel(*make_model("test_vit", pool="class_token"), CPU, LIMITS)
    with TestClient(make_app(model)) as client:
        assert client.post("/predict", files={"photos": ("a.png", files[0].read_bytes())}).status_code == 200
        answer = client.post("/heatmaps", files={"photo": ("a.png", files[0].read_bytes())})
    assert (answer.status_code, "a heatmap needs class maps" in answer.json()["detail"]) == (422, True)


def test_heatmaps_have_the_numbers_of_the_command(client, trained, files):
    _, wanted = heatmaps(*trained, files[0], CPU)
    answer = client.post("/heatmaps?class=bird&maps=true", files={"photo": ("a.png", files[0].read_bytes())}).json()
    (found,) = answer["heatmaps"]
    np.testing.assert_allclose(found["map"], wanted[0], atol=1e-5)
    picture = Image.open(io.BytesIO(base64.b64decode(found["picture"].removeprefix("data:image/png;base64,"))))
    assert picture.size == (90, 70)
    tags = client.post("/heatmaps", files={"photo": ("a.png", files[0].read_bytes())}).json()["heatmaps"]
    assert {tag["id"] for tag in tags} == {"n01", "n02"}
    assert [tag["map"] for tag in tags] == [None, None]
    wrong = client.post("/heatmaps?class=birt", files={"photo": ("a.png", files[0].read_bytes())})
    assert (wrong.status_code, "did you mean 'bird'" in wrong.json()["detail"]) == (422, True)


def test_what_is_not_a_photo_is_an_answer_of_its_own(client, files):
    parts = [("photos", ("evil.png", b"hello")), ("photos", ("0.png", files[0].read_bytes()))]
    bad, good = client.post("/predict", files=parts).json()
    assert bad["error"].startswith("evil.png: is not a photo")
    assert (bad["tags"], good["error"]) == ([], None)
    assert "fewtags-" not in bad["error"]  # no path of this machine


def test_limits(client, files):
    large = io.BytesIO()
    Image.new("RGB", (201, 200)).save(large, "PNG")
    (answer,) = client.post("/predict", files={"photos": ("large.png", large.getvalue())}).json()
    assert "has 201 x 200 pixels, more than the limit of" in answer["error"]
    many = client.post("/predict", files=[("photos", ("a.png", b"x"))] * 4)
    assert (many.status_code, many.json()["detail"]) == (413, "4 photos, more than the limit of 3; send fewer.")
    long = client.post("/predict", files={"photos": ("a.png", bytes(300_000))})
    assert (long.status_code, "more than 200,000 bytes" in long.json()["detail"]) == (413, True)


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"-1")]])
def test_a_body_of_unknown_length_is_cut_off(headers):
    """The application stops reading, answers 400 as FastAPI does, and the sender gets 413."""
    sent, read = [], 0

    async def app(scope, receive, send):
        try:
            while (await receive())["more_body"]:
                pass
        except Exception:
            await send({"type": "http.response.start", "status": 400, "headers": []})

    async def receive():
        nonlocal read
        read += 1
        return {"type": "http.request", "body": bytes(40), "more_body": True}

    async def send(message):
        sent.append(message)

    asyncio.run(Guard(app, 100)({"type": "http", "headers": headers}, receive, send))
    assert (sent[0]["status"], read) == (413, 0 if headers else 3)


def test_pages_and_description(client):
    page = client.get("/")
    assert "3 classes, test_resnet" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    for name in ("page.js", "page.css", "health"):
        assert client.get(f"/{name}").status_code == 200
    assert [c["name"] for c in client.get("/model").json()["classes"]] == ["bird", "crane [n02]", "crane [größe]"]
    assert {"/predict", "/heatmaps", "/model", "/health"} == {*client.get("/openapi.json").json()["paths"]}


def test_sigterm_ends_the_service_after_open_requests(trained, files, tmp_path):
    save_model(tmp_path / "model.safetensors", *trained)
    command = [sys.executable, "-m", "fewtags", "serve", str(tmp_path), "--cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        body = (
            b'--x\r\nContent-Disposition: form-data; name="photos"; filename="a.png"\r\n\r\n'
            + files[0].read_bytes()
            + b"\r\n--x--\r\n"
        )
        host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.putrequest("POST", "/predict")
        connection.putheader("Content-Type", "multipart/form-data; boundary=x")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:100])
        # An answer to a second request shows that the service has read the first one so far.
        with urllib.request.urlopen(f"{address}health", timeout=60) as health:
            assert json.load(health) == {"status": "ok"}
        os.kill(process.pid, signal.SIGTERM)
        connection.send(body[100:])
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)[0]["photo"]) == (200, "a.png")
        connection.close()
        assert process.wait(60) == 0, process.stderr.read()
        assert "the service has ended" in process.stderr.read()
    finally:
        process.kill()
        process.stdout.close()
        process.stderr.close()
