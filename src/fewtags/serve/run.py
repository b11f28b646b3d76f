"""Run the service until a signal ends it."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from fewtags.review.serve import needs_extra
from fewtags.serve.model import ServedModel

GRACE = 30
"""Seconds that open requests have to end after a signal."""
CONNECTIONS = 512
"""Open connections; more are refused with status 503."""


def serve(model: ServedModel, bound: socket.socket) -> None:
    """Serve a model until SIGINT or SIGTERM; requests that have begun are answered.

    Raises:
        ConfigError: a package of the extra `review` is missing.
    """
    try:
        import multipart  # noqa: F401 (FastAPI reads uploads with it)
        import uvicorn

        from fewtags.serve.app import make_app
    except ModuleNotFoundError as error:
        raise needs_extra(error, "the service") from error
    config = uvicorn.Config(
        make_app(model),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        limit_concurrency=CONNECTIONS,
    )
    with _quiet_end():
        uvicorn.Server(config).run(sockets=[bound])


@contextmanager
def _quiet_end() -> Iterator[None]:
    """Let the process go on after uvicorn, which raises the signal again that ended it."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
