# pyright: reportMissingImports=false
"""The SuperLink's only access from outside, for SuperNodes alone.

    python gate.py --listen 0.0.0.0 --port 8443 --superlink 127.0.0.1:8000 --tls consortium/server/tls

A SuperLink serves three interfaces on one port. SuperNodes need the Fleet interface, whose requests they sign. The other two need
no key: through them anyone could register a SuperNode, start an app on the SuperLink and every SuperNode, or take a task. The
SuperLink therefore listens on the loopback interface, and this process forwards only requests to the Fleet interface. It runs in
Flower's environment without fkgsec.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn

ALLOWED = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
MOST_REQUESTS = 512
"""At a time; more are refused with 503, after which a SuperNode tries again."""
MOST_BODY = 16 << 20
"""Bytes of a request; Flower sends arrays in pieces of 5 MiB."""
_OF_A_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"host"}
)
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class Gate:
    """An ASGI application in front of a SuperLink."""

    def __init__(self, upstream: httpx.AsyncClient) -> None:
        self._upstream = upstream

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        # Flower's other interfaces need no key: anyone could start an app on every SuperNode through them.
        if scope["method"] != "POST" or scope["path"] not in ALLOWED or scope["query_string"]:
            await _answer(send, 403, b"this address is for SuperNodes")
            return
        # uvicorn has checked that the length is a number.
        if int(dict(scope["headers"]).get(b"content-length", b"0")) > MOST_BODY:
            await _answer(send, 413, b"too large")
            return
        headers = [(name, value) for name, value in scope["headers"] if name not in _OF_A_CONNECTION]
        request = self._upstream.build_request("POST", scope["path"], headers=headers, content=_body(receive))
        try:
            response = await self._upstream.send(request, stream=True)
        except httpx.HTTPError:
            await _answer(send, 503, b"the SuperLink does not answer")
            return
        try:
            headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _OF_A_CONNECTION]
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            async for piece in response.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            await response.aclose()


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    count = 0
    while True:
        event = await receive()
        count += len(event.get("body", b""))
        # A chunked request has no length in its header, so count what arrives.
        if event["type"] == "http.disconnect" or count > MOST_BODY:
            raise httpx.ReadError("the SuperNode went away, or sends without end")
        yield event.get("body", b"")
        if not event.get("more_body"):
            return


async def _answer(send: Send, status: int, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


async def serve(listen: str, port: int, superlink: str, tls: Path) -> None:
    """Forward requests until the process is stopped."""
    context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    limits = httpx.Limits(max_connections=MOST_REQUESTS, max_keepalive_connections=MOST_REQUESTS)
    async with httpx.AsyncClient(
        base_url=f"https://{superlink}", verify=context, limits=limits, timeout=300, trust_env=False
    ) as upstream:
        config = uvicorn.Config(
            Gate(upstream),
            host=listen,
            port=port,
            ssl_certfile=str(tls / "server.crt"),
            ssl_keyfile=str(tls / "server.key"),
            lifespan="off",
            access_log=False,
            log_level="warning",
            server_header=False,
            limit_concurrency=MOST_REQUESTS,
        )
        await uvicorn.Server(config).serve()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Forward SuperNodes' requests to a SuperLink, and nothing else.")
    parser.add_argument("--listen", required=True, help="address to listen on")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--superlink", required=True, help="host:port of the SuperLink, on the loopback interface")
    parser.add_argument("--tls", type=Path, required=True, help="folder with ca.crt, server.crt and server.key")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.listen, arguments.port, arguments.superlink, arguments.tls))


if __name__ == "__main__":
    main()
