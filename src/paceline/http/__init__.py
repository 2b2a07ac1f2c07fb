"""The exchange of one request with a provider over HTTP: one life of a request, one binding per HTTP library."""

from paceline.http.httpx import pace_transport

__all__ = ["pace_transport"]
