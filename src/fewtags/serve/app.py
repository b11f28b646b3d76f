"""The addresses of the service, and what they return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, final

from fastapi import FastAPI, File, HTTPException, Query, Request, UploadFile
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel

from fewtags.engine.own_thresholds import class_position
from fewtags.errors import DataError, FewtagsError
from fewtags.nets.spatial import refuse_without_maps
from fewtags.serve.batcher import BusyError, ClosedError
from fewtags.serve.model import Maps, ServedModel
from fewtags.text import printable

HERE = Path(__file__).parent
MOST_MAPS = 20
"""Heatmaps in one answer."""
LONGEST_NAME = 200
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class TagAnswer(BaseModel):
    """A class that is present."""

    id: str
    name: str
    probability: float
    threshold: float


class PhotoAnswer(BaseModel):
    """The result for one photo: its tags, or the error of reading it."""

    photo: str
    tags: list[TagAnswer] = []
    probabilities: dict[str, float] | None = None
    error: str | None = None


class HeatmapAnswer(TagAnswer):
    """A class of a photo with its heatmap: a PNG as a data URL; the map [rows, columns] if it was asked for."""

    picture: str
    scale: str
    map: list[list[float]] | None = None


class HeatmapsAnswer(BaseModel):
    """The heatmaps of one photo."""

    photo: str
    heatmaps: list[HeatmapAnswer]


class ClassAnswer(BaseModel):
    """A class of the model."""

    id: str
    name: str
    threshold: float


class ModelAnswer(BaseModel):
    """The model."""

    backbone: str
    size: int
    classes: list[ClassAnswer]
    selection: str
    version: str
    limits: dict[str, int]


class _TooLargeError(Exception):
    """A request has more bytes than allowed."""


@final
class Guard:
    """Middleware that adds `HEADERS`, and answers 413 to a request whose body is too large, before or as it arrives."""

    def __init__(self, app: Callable[..., Awaitable[None]], limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        seen, started = 0, False

        async def counted_receive() -> Any:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limit:
                raise _TooLargeError
            return message

        async def watched_send(message: Any) -> None:
            nonlocal started
            if seen > self.limit and not started:
                return  # of FastAPI, which takes the error for a body that it cannot parse
            started = True
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        if declared.isdigit() and int(declared) <= self.limit:
            try:
                await self.app(scope, counted_receive, watched_send)
            except _TooLargeError:
                if started:
                    raise
            if started:
                return
        text = f"the request has more than {self.limit:,} bytes; send fewer or smaller photos."
        # The rest of the body is not read.
        refusal = JSONResponse({"detail": text}, 413, headers={**HEADERS, "Connection": "close"})
        await refusal(scope, receive, send)


Photos = Annotated[list[UploadFile], File(description="One or several photos.")]
OnePhoto = Annotated[UploadFile, File(description="A photo.")]
Most = Annotated[int | None, Query(ge=1, description="Tags per photo at most.")]
Threshold = Annotated[float | None, Query(ge=0, le=1, description="Threshold of all classes instead of their own.")]


def make_app(model: ServedModel) -> FastAPI:
    """Make the application of a model. The model is closed when the application ends."""
    limits = model.limits
    decoders = ThreadPoolExecutor(limits.decoders, "decode")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        decoders.shutdown(wait=True)
        await asyncio.to_thread(model.close)

    # The pages for OpenAPI of FastAPI load scripts from other hosts; /openapi.json has the description itself.
    app = FastAPI(title="fewtags", version=version("fewtags"), docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(Guard, limit=limits.bytes)
    pages = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = pages.get_template("page.html.j2").render(info=model.info, limits=limits)

    @app.exception_handler(FewtagsError)
    async def refuse(_: Request, error: FewtagsError) -> JSONResponse:
        busy = isinstance(error, BusyError | ClosedError)
        headers = {"Retry-After": "1"} if busy else None
        return JSONResponse({"detail": str(error)}, 503 if busy else 422, headers=headers)

    async def scored(content: bytes, name: str, *, maps: bool = False) -> Maps:
        loop = asyncio.get_running_loop()
        future = await loop.run_in_executor(decoders, lambda: model.ask(content, name, maps=maps))
        return await asyncio.wrap_future(future)

    async def answered(upload: UploadFile, most: int | None, threshold: float | None, every: bool) -> PhotoAnswer:
        name = _name(upload)
        try:
            found = await scored(await upload.read(), name)
        except DataError as error:
            return PhotoAnswer(photo=name, error=str(error))
        tags = [TagAnswer(**vars(tag)) for tag in model.tags(found.prob, most, threshold)]
        whole = dict(zip(model.info.class_ids, found.prob.tolist(), strict=True)) if every else None
        return PhotoAnswer(photo=name, tags=tags, probabilities=whole)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def home() -> str:
        return page

    @app.get("/page.js", include_in_schema=False)
    async def script() -> Response:
        return Response((HERE / "templates" / "page.js").read_bytes(), media_type="text/javascript")

    @app.get("/page.css", include_in_schema=False)
    async def style() -> Response:
        return Response((HERE / "templates" / "page.css").read_bytes(), media_type="text/css")

    @app.get("/health", summary="Whether the service takes photos")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/model", summary="Classes, thresholds and limits")
    async def describe() -> ModelAnswer:
        info = model.info
        rows = zip(info.class_ids, info.classes.display, info.thresholds, strict=True)
        return ModelAnswer(
            backbone=info.backbone,
            size=info.size,
            classes=[ClassAnswer(id=i, name=n, threshold=t) for i, n, t in rows],
            selection=info.selection,
            version=info.version,
            limits={key: getattr(limits, key) for key in ("bytes", "pixels", "photos")},
        )

    @app.post("/predict", summary="Tags of photos")
    async def predict(
        photos: Photos,
        max_tags: Most = None,
        threshold: Threshold = None,
        probabilities: Annotated[bool, Query(description="Also the probabilities of all classes.")] = False,
    ) -> list[PhotoAnswer]:
        if len(photos) > limits.photos:
            raise HTTPException(413, f"{len(photos)} photos, more than the limit of {limits.photos}; send fewer.")
        asked = [answered(photo, max_tags, threshold, probabilities) for photo in photos]
        return list(await asyncio.gather(*asked))

    @app.post("/heatmaps", summary="Heatmaps of one photo")
    async def heatmaps(
        photo: OnePhoto,
        classes: Annotated[list[str] | None, Query(alias="class", description="Classes; default: the tags.")] = None,
        threshold: Threshold = None,
        maps: Annotated[bool, Query(description="Also the maps as numbers.")] = False,
    ) -> HeatmapsAnswer:
        refuse_without_maps(model.info.head, "a heatmap")
        name, content = _name(photo), await photo.read()
        wanted = [class_position(model.info.classes, word, "class") for word in classes or []]
        found = await scored(content, name, maps=True)
        if not wanted:
            tags = model.tags(found.prob, MOST_MAPS, threshold)
            wanted = [model.info.classes.index(tag.id) for tag in tags]
        wanted = wanted[:MOST_MAPS]
        loop = asyncio.get_running_loop()
        drawn = await loop.run_in_executor(decoders, lambda: model.pictures(content, name, found, wanted))
        return HeatmapsAnswer(
            photo=name,
            heatmaps=[
                HeatmapAnswer(
                    **vars(model.tag(found.prob, c)),
                    picture=picture,
                    scale=scale,
                    map=found.maps[c].round(6).tolist() if maps else None,
                )
                for c, (picture, scale) in zip(wanted, drawn, strict=True)
            ],
        )

    return app


def _name(upload: UploadFile) -> str:
    """Return the name of a photo as its sender gave it, for answers only."""
    return printable(upload.filename or "photo")[:LONGEST_NAME]
