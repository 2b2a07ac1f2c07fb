"""The HEALTHCHECK of the Dockerfile: exit code 0 if the gateway of this container is ready, over HTTP or HTTPS.

The certificate is not verified: it names the address that clients use, and this never leaves the container. No proxy is asked either.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection


def connections(port: int) -> Iterator[HTTPConnection]:
    """Without and with TLS."""
    yield HTTPConnection("127.0.0.1", port, timeout=2)
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    yield HTTPSConnection("127.0.0.1", port, timeout=2, context=unverified)


def ready(port: int) -> bool:
    """Whether ``/readyz`` answers 200, to one of the two. With TLS the gateway answers 400 to plain HTTP."""
    return any(status(connection) == 200 for connection in connections(port))


def status(connection: HTTPConnection) -> int | None:
    """The status of ``/readyz``; ``None`` without an answer."""
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(not ready(int(sys.argv[1]) if sys.argv[1:] else 8080))
