"""The web page of a review: addresses, and what they return."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fewtags.errors import FewtagsError
from fewtags.review.pictures import SIDES, Box, PhotoId
from fewtags.review.requests import (
    MOST_CELLS,
    Answers,
    ClassQuery,
    OneAnswer,
    OneCell,
    OneClass,
    Only,
    People,
    Person,
    Skip,
    Text,
    Who,
)
from fewtags.review.review import LONGEST_NAME, Review
from fewtags.review.store import CellKey, Given

HERE = Path(__file__).parent
WALL = 30
"""Crops on a wall."""
AHEAD = 8
"""Questions that a page of single photos gets at once; their pictures load while a person looks at the first."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
T = TypeVar("T")


def _box(text: str | None) -> Box | None:
    if text is None:
        return None
    try:
        x0, y0, x1, y1 = (float(word) for word in text.split(","))
    except ValueError:
        raise HTTPException(400, "box is x0,y0,x1,y1") from None
    if not (0 <= x0 <= x1 <= 1 and 0 <= y0 <= y1 <= 1):
        raise HTTPException(400, "box is x0,y0,x1,y1 in 0..1")
    return x0, y0, x1, y1


def _kept(file: Path) -> Response:
    return FileResponse(file, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


def make_app(review: Review) -> FastAPI:
    """Make the application of a review. Every address needs the token, in a cookie or in the address."""
    app = FastAPI(title="fewtags review", docs_url=None, redoc_url=None, openapi_url=None)
    pages = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    people = People.of(review.token, review.store.people)
    app.state.people = people
    # Few threads, so that pictures do not delay answers.
    drawing, thinking = ThreadPoolExecutor(2, "pictures"), ThreadPoolExecutor(1, "heatmaps")

    async def apart(pool: ThreadPoolExecutor, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, partial(function, *arguments))

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.query_params.get("token")
        if given is not None and secrets.compare_digest(given.encode(), review.token.encode()):
            answer: Response = RedirectResponse(request.url.path, status_code=303)
            people.set_cookie(answer, "token", review.token)
        elif not secrets.compare_digest(people.cookie(request, "token").encode(), review.token.encode()):
            answer = HTMLResponse(pages.get_template("locked.html.j2").render(), status_code=403)
        else:
            answer = await call_next(request)
        for name, value in HEADERS.items():
            answer.headers[name] = value
        return answer

    @app.exception_handler(FewtagsError)
    async def refused(_: Request, error: FewtagsError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=400)

    def photo_of(id: str) -> PhotoId:
        if (found := review.photos.find(id)) is None:
            raise HTTPException(404, "there is no such photo")
        return found

    def cell_of(given: OneAnswer | OneCell) -> CellKey:
        photo = photo_of(given.photo)
        if not review.knows_class(given.class_):
            raise HTTPException(404, "there is no such class")
        return CellKey(photo.folder, photo.image, given.class_)

    def page(name: str, response: Response, who: Person, **content: Any) -> HTMLResponse:
        text = pages.get_template(name).render(
            run=review.run.name, who=who.who, progress=review.progress(who.who), **content
        )
        made = HTMLResponse(text)
        for key, value in response.headers.items():
            if key == "set-cookie":
                made.headers.append(key, value)
        made.headers["Cache-Control"] = "no-store"
        return made

    def history(who: Person, limit: int = 20) -> list[dict[str, Any]]:
        """Return the last single answers of a person, oldest first: where "back" goes to."""
        steps = [step for step in review.store.history(who.who, limit=limit) if len(step.cells) == 1]
        return [review.about(PhotoId(*step.cells[0][0][:2]), step.cells[0][0].class_, who.who) for step in steps[::-1]]

    # --- pages

    @app.get("/")
    async def home(response: Response, who: Who) -> HTMLResponse:
        content = {
            "classes": review.classes(),
            "labels": review.label_counts(),
            "obstacle": review.retraining.obstacle(),
            "photos": len(review.photos),
        }
        return page("home.html.j2", response, who, **content)

    @app.get("/photo")
    async def photo_page(
        response: Response, who: Who, class_: ClassQuery = None, photo: str | None = None
    ) -> HTMLResponse:
        one = None if photo is None or class_ is None else review.about(photo_of(photo), class_, who.who)
        return single(response, who, None if one else class_, one)

    @app.get("/labels")
    async def labels_page(response: Response, who: Who, class_: ClassQuery = None) -> HTMLResponse:
        return single(response, who, class_, labels=True)

    def single(
        response: Response, who: Person, class_: str | None, one: dict[str, Any] | None = None, *, labels: bool = False
    ) -> HTMLResponse:
        """Return the page of single photos: for questions, or for suspicious labels."""
        content = {
            "one": one,
            "labels": labels,
            "questions": review.next(who.who, who.session, AHEAD, class_, labels=labels),
            "history": history(who),
            "class": class_,
            "class_name": None if class_ is None else review.name_of(class_),
            "classes": [{"id": row.id, "name": row.name} for row in review.classes()],
        }
        return page("photo.html.j2", response, who, content=content)

    @app.get("/wall")
    async def wall_page(response: Response, who: Who, class_: ClassQuery = None) -> HTMLResponse:
        return page("wall.html.j2", response, who, content={**wall(who, class_), "tour": class_ is None})

    def wall(who: Person, class_: str | None, after: str | None = None) -> dict[str, Any]:
        """Return the questions of a wall, and its class; without a class, that of the first open question."""
        found, questions = review.wall(who.who, who.session, WALL, class_, after)
        return {"questions": questions, "class": found, "name": None if found is None else review.name_of(found)}

    @app.get("/answers")
    async def answers_page(response: Response, who: Who) -> HTMLResponse:
        return page("answers.html.j2", response, who, disputed=review.disputed_rows(), steps=review.last_rows())

    # --- what the pages ask for

    @app.get("/api/next")
    async def next_questions(
        who: Who, class_: ClassQuery = None, count: int = AHEAD, labels: bool = False
    ) -> dict[str, Any]:
        found = review.next(who.who, who.session, max(1, min(count, MOST_CELLS)), class_, labels=labels)
        return {"questions": found, "progress": review.progress(who.who)}

    @app.get("/api/wall")
    async def next_wall(who: Who, class_: ClassQuery = None, after: str | None = None) -> dict[str, Any]:
        return {**wall(who, class_, after), "progress": review.progress(who.who)}

    @app.get("/api/status")
    async def status(who: Who) -> dict[str, Any]:
        changed = await apart(drawing, review.use_new_model)
        return {"progress": review.progress(who.who), "training": review.retraining.status(), "new_model": changed}

    @app.post("/api/answer")
    async def answer(given: Answers, who: Who) -> dict[str, Any]:
        rows = [Given(cell_of(one), one.answer, one.seconds, one.shown) for one in given.answers]
        step = review.store.answer(who.who, rows, request=given.request, regions=given.regions)
        review.refresh([row.cell for row in rows])
        return {"step": step, "progress": review.progress(who.who)}

    @app.post("/api/undo")
    async def undo(given: Only, who: Who) -> dict[str, Any]:
        step = review.store.undo(who.who, request=given.request)
        cells = [] if step is None else [cell for cell, _ in step.cells]
        review.refresh(cells)
        said = [] if step is None else [answer for _, answer in step.cells]
        shown = [
            {**review.about(PhotoId(cell.folder, cell.image), cell.class_, who.who), "said": answer}
            for cell, answer in zip(cells, said, strict=True)
        ]
        return {"undone": shown, "step": None if step is None else step.id, "progress": review.progress(who.who)}

    @app.post("/api/skip")
    async def skip(given: Skip, who: Who) -> dict[str, Any]:
        for cell in map(cell_of, given.cells):
            review.skip(who.session, cell)
        return {}

    @app.post("/api/note")
    async def note(given: Text, who: Who) -> dict[str, Any]:
        photo = photo_of(given.photo)
        return {
            "step": review.store.note(who.who, photo.folder, photo.image, given.text.strip(), request=given.request)
        }

    @app.post("/api/class")
    async def new_class(given: Text, who: Who) -> dict[str, Any]:
        made = review.add_class(who.who, given.text, given.request)
        return {"class": made, "name": review.name_of(made)}

    @app.post("/api/name")
    async def rename(given: Text, who: Who, response: Response) -> dict[str, Any]:
        name = " ".join(given.text.split())[:LONGEST_NAME]
        if not name:
            raise HTTPException(400, "a name has at least one letter")
        people.rename(response, who.session, name)
        return {"who": name}

    @app.get("/api/about/{photo}")
    async def about(photo: str, who: Who, class_: OneClass) -> dict[str, Any]:
        return review.about(photo_of(photo), class_, who.who)

    @app.post("/api/retrain")
    async def retrain(_: Only, who: Who) -> dict[str, Any]:  # noqa: ARG001 (a cookie is needed)
        await apart(drawing, review.retraining.start)
        return {"training": review.retraining.status()}

    # --- pictures

    @app.get("/picture/{photo}")
    async def picture(photo: str, side: int = 1600) -> Response:
        if side not in SIDES:
            raise HTTPException(400, f"side is one of {SIDES}")
        return _kept(await apart(drawing, review.pictures.photo, photo_of(photo).path, side))

    @app.get("/crop/{photo}")
    async def crop(photo: str, box: str | None = None) -> Response:
        return _kept(await apart(drawing, review.pictures.crop, photo_of(photo).path, _box(box)))

    @app.get("/heat/{photo}")
    async def heat(photo: str, class_: OneClass) -> Response:
        drawn = await apart(thinking, review.heat, photo_of(photo), class_)
        return Response(drawn, media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})

    app.mount("/static", StaticFiles(directory=HERE / "static"))
    return app
