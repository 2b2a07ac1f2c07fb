"""Attempts over HTTP, for httpx2 and httpx, sync and async, from one source."""

from paceline.http.transport import pace_transport

__all__ = ["pace_transport"]
