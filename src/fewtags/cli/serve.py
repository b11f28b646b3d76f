"""`fewtags serve`: a web service for a trained model."""

from __future__ import annotations

from typing import Annotated

import typer

from fewtags.cli.options import Cpu, MixedPrecision, Precision, Threshold, check_precision
from fewtags.cli.progress import echo, say
from fewtags.cli.use import Model, with_own_thresholds


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 in a container.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: 8765 if it is free, else any.")] = None,
    max_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a request; more are refused.")] = 20_000_000,
    max_pixels: Annotated[int, typer.Option(min=1, help="Pixels of a photo; more are refused.")] = 50_000_000,
    max_photos: Annotated[int, typer.Option(min=1, help="Photos in a request; more are refused.")] = 16,
    batch_size: Annotated[int, typer.Option(min=1, help="Waiting photos that the model sees together.")] = 16,
    threshold: Threshold = None,
    precision: Precision = None,
    mixed_precision: MixedPrecision = None,
    cpu: Cpu = False,
) -> None:
    """Answer requests for tags and heatmaps over HTTP, with a page for dropping photos.

    \b
    GET  /              the page
    POST /predict       tags of photos (multipart field photos; max_tags,
                        threshold, probabilities)
    POST /heatmaps      heatmaps of a photo (multipart field photo; class,
                        threshold, maps)
    GET  /model         classes, thresholds and limits
    GET  /health        for load balancers
    GET  /openapi.json  the description of all of this

    The service has no login and no encryption: put a reverse proxy in front of it. SIGTERM ends it after the open
    requests.

    \b
    Examples:
      fewtags serve runs/first
      fewtags serve model.onnx --host 0.0.0.0 --port 8000
      curl -F photos=@a.jpg -F photos=@b.jpg http://127.0.0.1:8765/predict
    """  # noqa: D301
    from fewtags.engine.places import refuse_missing_model

    arithmetic = check_precision(mixed_precision)
    refuse_missing_model(model)
    from fewtags.engine.inference import load_predictor
    from fewtags.engine.machine import cores, torch_device
    from fewtags.review.serve import listen
    from fewtags.serve.model import Limits, ServedModel
    from fewtags.serve.run import serve as run

    net, info = load_predictor(model, torch_device(cpu), arithmetic)
    info = with_own_thresholds(info, model, threshold, precision)
    limits = Limits(bytes=max_bytes, pixels=max_pixels, photos=max_photos, batch=batch_size, decoders=max(2, cores()))
    bound = listen(host, port)
    say(f"{len(info.class_ids)} classes; Ctrl-C ends the service after the open requests")
    shown = f"[{host}]" if ":" in host else host
    echo(f"http://{shown}:{bound.getsockname()[1]}/")
    run(ServedModel(net, info, torch_device(cpu), limits), bound)
    say("the service has ended")
