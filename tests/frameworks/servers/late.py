"""A program that gevent patches after its imports, before its first request or (``waited``) after requests that have waited."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import app
import requests

session = app.attach(requests.Session())
session.headers.update(app.HEADERS)


def by_requests():
    return session.post(os.environ["PROVIDER"] + app.PATH, json=app.ASK, timeout=30).status_code


ask = {"httpx": app.ask, "requests": by_requests}[sys.argv[1]]
statuses = []
if "waited" in sys.argv:
    with ThreadPoolExecutor(6) as threads:
        statuses += threads.map(lambda _: ask(), range(6))

from gevent import monkey  # noqa: E402

monkey.patch_all()

import gevent  # noqa: E402

greenlets = [gevent.spawn(ask) for _ in range(12 - len(statuses))]
gevent.joinall(greenlets)
statuses += [one.value for one in greenlets]
sys.exit(0 if statuses == [200] * 12 else f"{statuses}")
