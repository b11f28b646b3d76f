"""The sockets of the review page and the service."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fewtags.errors import ConfigError
from fewtags.review.serve import listen


async def _accepted_without_delay(bound: socket.socket) -> bool:
    seen: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(bool(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        writer.close()

    server = await asyncio.start_server(accepted, sock=bound)
    async with server:
        _, writer = await asyncio.open_connection(*bound.getsockname())
        try:
            return await seen
        finally:
            writer.close()
            await writer.wait_closed()


def test_replies_do_not_wait_for_acknowledgements() -> None:
    """With Nagle's algorithm, the second packet of a reply waits for the client's delayed acknowledgement (40 ms)."""
    assert asyncio.run(_accepted_without_delay(listen(port=0)))


def test_a_taken_port_is_named() -> None:
    with listen(port=0) as first, pytest.raises(ConfigError, match=f"--port {first.getsockname()[1]} cannot be used"):
        listen(port=first.getsockname()[1])


@pytest.mark.parametrize("port", [None, 8799])
def test_a_host_that_is_not_of_this_machine_is_named(port: int | None) -> None:
    with pytest.raises(ConfigError, match=r"--host 192\.0\.2\.1 cannot be used"):  # an address for documentation
        listen("192.0.2.1", port)
