"""A request by each HTTP library, and each way to read its answer: ``send(url, body)`` gives the status and the bytes.

Where an answer is read in parts, ``opened`` is called when its head is there, and ``begun`` when its first part is the
caller's. What they raise leaves the answer. The header of the key is spelled as people spell it.
"""

import asyncio
import socket
from contextlib import closing

import aiohttp
import httpx
import httpx2
import requests
import urllib3
from aiohttp.abc import AbstractResolver

KEY = {"authorization": "Bearer k"}


class Loopback(AbstractResolver):
    """Every host is this machine."""

    async def resolve(self, host, port=0, family=socket.AF_INET):
        flags = {"proto": 0, "flags": socket.AI_NUMERICHOST}
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": family, **flags}]

    async def close(self):
        pass


def chat_at(server):
    """The address of chat completions."""
    return f"{server.base_url}/v1/chat/completions"


def nothing():
    """What is done by default."""


def joined(parts, opened, begun, between=b""):
    opened()
    with closing(parts):
        found = [next(parts, b"")]
        begun()
        return between.join([*found, *parts])


async def joined_async(parts, opened, begun):
    opened()
    parts = aiter(parts)
    found = [await anext(parts, b"")]
    begun()
    return b"".join(found + [part async for part in parts])


def by_httpx(library):
    def send(url, body, key="k", opened=nothing, begun=nothing):
        headers = {"authorization": f"Bearer {key}"}
        with library.Client() as client, client.stream("POST", url, json=body, headers=headers) as response:
            return response.status_code, joined(response.iter_raw(), opened, begun)

    return send


def ask_by_httpx(library):
    async def ask(url, body, opened=nothing, begun=nothing):
        async with library.AsyncClient() as client, client.stream("POST", url, json=body, headers=KEY) as response:
            return response.status_code, await joined_async(response.aiter_raw(), opened, begun)

    return ask


def by_httpx_async(library):
    return lambda url, body, **options: asyncio.run(ask_by_httpx(library)(url, body, **options))


READS = {
    "lines": lambda content: content,
    "chunks": lambda content: (chunk async for chunk, _ in content.iter_chunks()),
    "parts": lambda content: content.iter_any(),
}


async def ask_by_aiohttp(url, body, *, read="", key="k", opened=nothing, begun=nothing, **options):
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers, **options) as response:
        if not read:
            return response.status, await response.read()
        return response.status, await joined_async(READS[read](response.content), opened, begun)


def by_aiohttp(read):
    return lambda url, body, **options: asyncio.run(ask_by_aiohttp(url, body, read=read, **options))


def by_requests(url, body, key="k"):
    response = requests.post(url, json=body, headers={b"Authorization": f"Bearer {key}".encode()}, timeout=20)
    return response.status_code, response.content


def by_requests_streamed(url, body, opened=nothing, begun=nothing):
    with requests.post(url, json=body, headers=KEY, timeout=20, stream=True) as response:
        return response.status_code, joined(response.iter_content(None), opened, begun)


def by_requests_lines(url, body, opened=nothing, begun=nothing):
    with requests.post(url, json=body, headers=KEY, timeout=20, stream=True) as response:
        return response.status_code, joined(response.iter_lines(chunk_size=1_000), opened, begun, b"\n")


def by_urllib3(url, body, key="k"):
    response = urllib3.request("POST", url, json=body, headers={"Authorization": f"Bearer {key}"})
    return response.status, response.data


def by_urllib3_streamed(url, body, opened=nothing, begun=nothing):
    with urllib3.PoolManager() as http:
        response = http.request("POST", url, json=body, headers=KEY, preload_content=False)
        try:
            return response.status, joined(response.stream(decode_content=True), opened, begun)
        finally:
            response.close()


WAYS = {
    "aiohttp": by_aiohttp(""),
    "aiohttp lines": by_aiohttp("lines"),
    "aiohttp chunks": by_aiohttp("chunks"),
    "aiohttp parts": by_aiohttp("parts"),
    "requests": by_requests,
    "requests streamed": by_requests_streamed,
    "requests lines": by_requests_lines,
    "urllib3": by_urllib3,
    "urllib3 streamed": by_urllib3_streamed,
    "httpx": by_httpx(httpx),
    "httpx2": by_httpx(httpx2),
    "httpx async": by_httpx_async(httpx),
    "httpx2 async": by_httpx_async(httpx2),
}
IN_PARTS = {
    name: WAYS[name] for name in WAYS if name.endswith(("parts", "streamed", "lines", "async", "httpx", "httpx2"))
}
"""The ways that read an answer in parts."""
