"""What the pages send, and who sends it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, final

from fastapi import Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_CELLS = 200
"""Most answers of one action."""
LONGEST_NOTE = 4000
YEAR = 365 * 24 * 3600

Fraction = Annotated[float, Field(ge=0, le=1)]
ClassQuery = Annotated[str | None, Query(alias="class")]
OneClass = Annotated[str, Query(alias="class")]
RequestId = Annotated[str, Field(min_length=8, max_length=64)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class OneAnswer(_Body):
    """An answer to one question."""

    photo: str
    class_: Annotated[str, Field(alias="class")]
    answer: Literal["yes", "no", "unsure"]
    seconds: Annotated[float, Field(ge=0)] = 0.0
    shown: dict[str, Any] = {}


class Answers(_Body):
    """One action: answers, and the points and boxes of a single one. `request` is unique to the action."""

    request: RequestId
    answers: Annotated[list[OneAnswer], Field(min_length=1, max_length=MOST_CELLS)]
    regions: list[tuple[Fraction, Fraction, Fraction, Fraction]] = []

    @model_validator(mode="after")
    def _check(self) -> Answers:
        if self.regions and len(self.answers) != 1:
            raise ValueError("regions belong to one answer")
        if any((x0 == x1) != (y0 == y1) for x0, y0, x1, y1 in self.regions):
            raise ValueError("a box needs an area, and a point has none")
        if any(x0 > x1 or y0 > y1 for x0, y0, x1, y1 in self.regions):
            raise ValueError("a region is x0, y0, x1, y1 with x0 <= x1 and y0 <= y1")
        return self


class OneCell(_Body):
    """One class of one photo."""

    photo: str
    class_: Annotated[str, Field(alias="class")]


class Skip(_Body):
    """Questions that a person does not want to answer now."""

    request: RequestId
    cells: Annotated[list[OneCell], Field(min_length=1, max_length=MOST_CELLS)]


class Text(_Body):
    """A note about a photo, the name of a class, or the name of a person."""

    request: RequestId
    text: Annotated[str, Field(max_length=LONGEST_NOTE)]
    photo: str = ""


class Only(_Body):
    """A request without content."""

    request: RequestId


@final
@dataclass(frozen=True)
class Person:
    """Who sends a request: the name, and the session of the browser."""

    who: str
    session: str


@final
@dataclass
class People:
    """Names of the people at the page. Cookies keep them, so a restarted server knows them again.

    Attributes:
        mark: part of the names of the cookies, which differ between runs: all ports of a host share cookies.
        known: returns everybody who ever answered.
        names: the name of each session.
    """

    mark: str
    known: Callable[[], list[str]]
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, token: str, known: Callable[[], list[str]]) -> People:
        """Make the people of a page with a token."""
        return cls(hashlib.sha256(token.encode()).hexdigest()[:8], known)

    def cookie(self, request: Request, kind: str) -> str:
        """Return the cookie of a kind; "" if there is none."""
        return request.cookies.get(f"fewtags_{kind}_{self.mark}", "")

    def set_cookie(self, response: Response, kind: str, value: str) -> None:
        """Set a cookie that scripts cannot read and other sites cannot use to send anything."""
        response.set_cookie(f"fewtags_{kind}_{self.mark}", value, max_age=YEAR, httponly=True, samesite="lax")

    def find(self, request: Request, response: Response) -> Person:
        """Return who sends a request; a new session gets a name that nobody has."""
        session = self.cookie(request, "session") or secrets.token_urlsafe(9)
        name = _decoded(self.cookie(request, "name")) or self.names.get(session)
        if name is None:
            name = _free_name({*self.names.values(), *self.known()})
            self.rename(response, session, name)
        self.names[session] = name
        self.set_cookie(response, "session", session)
        return Person(name, session)

    def rename(self, response: Response, session: str, name: str) -> None:
        """Give a session another name."""
        self.names[session] = name
        self.set_cookie(response, "name", name.encode().hex())


def _decoded(text: str) -> str | None:
    """Return the name in a cookie, which is written in hexadecimal digits: cookies are ASCII."""
    try:
        return bytes.fromhex(text).decode() or None
    except ValueError:
        return None


def _free_name(taken: Collection[str]) -> str:
    number = 1
    while f"reviewer {number}" in taken:
        number += 1
    return f"reviewer {number}"


def person(request: Request, response: Response) -> Person:
    """Return who sends a request, for FastAPI."""
    people: People = request.app.state.people
    return people.find(request, response)


Who = Annotated[Person, Depends(person)]
