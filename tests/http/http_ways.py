"""A request by each HTTP library, and each way to read its answer: ``send(url, body)`` gives the status and the bytes."""

import asyncio

import aiohttp
import httpx
import httpx2
import requests
import urllib3

KEY = {"authorization": "Bearer k"}


def by_httpx(library):
    def send(url, body):
        with library.Client() as client, client.stream("POST", url, json=body, headers=KEY) as response:
            return response.status_code, b"".join(response.iter_raw())

    return send


def by_httpx_async(url, body):
    async def ask():
        async with httpx2.AsyncClient() as client, client.stream("POST", url, json=body, headers=KEY) as response:
            return response.status_code, b"".join([part async for part in response.aiter_raw()])

    return asyncio.run(ask())


async def ask_by_aiohttp(url, body, *, read="read", **options):
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=KEY, **options) as response:
        if read == "lines":
            return response.status, b"".join([line async for line in response.content])
        if read == "chunks":
            return response.status, b"".join([chunk async for chunk, _ in response.content.iter_chunks()])
        return response.status, await response.read()


def by_aiohttp(read):
    return lambda url, body: asyncio.run(ask_by_aiohttp(url, body, read=read))


def by_requests(url, body):
    response = requests.post(url, json=body, headers=KEY, timeout=20)
    return response.status_code, response.content


def by_requests_streamed(url, body):
    with requests.post(url, json=body, headers=KEY, timeout=20, stream=True) as response:
        return response.status_code, b"".join(response.iter_content(None))


def by_requests_lines(url, body):
    with requests.post(url, json=body, headers=KEY, timeout=20, stream=True) as response:
        return response.status_code, b"\n".join(response.iter_lines())


def by_urllib3(url, body):
    response = urllib3.request("POST", url, json=body, headers=KEY)
    return response.status, response.data


def by_urllib3_streamed(url, body):
    with urllib3.PoolManager() as http:
        response = http.request("POST", url, json=body, headers=KEY, preload_content=False)
        text = b"".join(response.stream(decode_content=True))
        response.release_conn()
        return response.status, text


WAYS = {
    "aiohttp": by_aiohttp("read"),
    "aiohttp lines": by_aiohttp("lines"),
    "aiohttp chunks": by_aiohttp("chunks"),
    "requests": by_requests,
    "requests streamed": by_requests_streamed,
    "requests lines": by_requests_lines,
    "urllib3": by_urllib3,
    "urllib3 streamed": by_urllib3_streamed,
    "httpx": by_httpx(httpx),
    "httpx2": by_httpx(httpx2),
    "httpx2 async": by_httpx_async,
}
