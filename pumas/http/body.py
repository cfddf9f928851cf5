"""A request's body as bytes."""

from __future__ import annotations

from pumas.contract.errors import over_limit
from pumas.contract.limits import MAX_REQUEST_BYTES
from pumas.http.exchange import ClientGone, Receive


async def read_body(receive: Receive, limit: int = MAX_REQUEST_BYTES) -> bytes:
    """Read the whole body.

    Args:
        limit: bytes; a body that grows beyond is refused while it arrives.
    Raises: ContractError (request_limit), ClientGone.
    Blocks: until it is complete; a client that stalls is cut off by the server. Cancel: what was read is lost.
    """
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client has left before its request was complete")
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise over_limit("request body", size, limit, "bytes")
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
