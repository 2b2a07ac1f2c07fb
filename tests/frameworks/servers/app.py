"""What all servers and workers run: the client of a module, paced when the module is imported."""

import os

import httpx

import paceline

PATH, ASK = "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
# Without connections that are kept: their pool looks after them under a lock that is older than gevent's patch, and httpx stops by itself.
HEADERS = {"authorization": "Bearer k", "connection": "close"}
PROVIDER = {"base_url": os.environ["PROVIDER"], "headers": HEADERS, "timeout": 30}

limiter = paceline.Limiter({"openai/*": os.environ["LIMIT"].split(", ")}, store=os.environ.get("STORE"))


def attach(client):
    return client if "PACELINE_EXEC" in os.environ else limiter.attach(client, "openai")


client = attach(httpx.Client(**PROVIDER))
async_client = attach(httpx.AsyncClient(**PROVIDER))


def ask():
    return client.post(PATH, json=ASK).status_code


def ask_often(times):
    return [ask() for _ in range(times)]


async def ask_async():
    return (await async_client.post(PATH, json=ASK)).status_code


def wsgi(environ, start_response):
    start_response(f"{ask()} of the provider", [("content-length", "0")])
    return []


async def asgi(scope, receive, send):
    if scope["type"] == "http":
        status = await ask_async()
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
