"""Serve the page of a review."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from fewtags.errors import ConfigError

if TYPE_CHECKING:
    from fewtags.review.review import Review

PORT = 8765
"""The port that is tried first."""
LOCAL = "127.0.0.1"


def listen(host: str = LOCAL, port: int | None = None) -> socket.socket:
    """Return a bound socket; without a `port`, `PORT` if it is free, else any.

    Raises:
        ConfigError: the port is taken, or the host is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (PORT, 0) if port is None else (port,):
        # Without the protocol, asyncio leaves Nagle's algorithm on: the second packet of a reply then waits 40 ms.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, wanted))
        except OSError as error:
            bound.close()
            problem = error
        else:
            bound.listen(128)
            return bound
    of_port = problem.errno in (errno.EADDRINUSE, errno.EACCES)  # anything else is said of the address
    what = f"--port {port}" if port is not None and of_port else f"--host {host}"
    raise ConfigError(f"{what} cannot be used: {problem.strerror or problem}; choose another one.")


def address(bound: socket.socket, host: str, token: str) -> str:
    """Return the address of the page, with its token."""
    shown = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        shown = socket.gethostname()
    return f"http://{shown}:{bound.getsockname()[1]}/?token={token}"


def serve(review: Review, bound: socket.socket, *, ready: Callable[[], None] = lambda: None) -> None:
    """Serve the page until the process is interrupted; `ready` is called before the first request.

    Raises:
        ConfigError: FastAPI or uvicorn is not installed.
    """
    try:
        import uvicorn

        from fewtags.review.app import make_app
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    config = uvicorn.Config(
        make_app(review), log_level="warning", access_log=False, lifespan="off", server_header=False
    )
    ready()
    uvicorn.Server(config).run(sockets=[bound])


def needs_extra(error: ModuleNotFoundError, what: str = "the review page") -> ConfigError:
    """Return the error for a missing package of the extra `review`."""
    return ConfigError(f"{what} needs {error.name}: pip install 'fewtags[review]'.")
