"""A program that gevent patches after its imports, before its first request."""

import os
import sys

import app
import requests

session = app.attach(requests.Session())
session.headers.update(app.HEADERS)


def by_requests():
    return session.post(os.environ["PROVIDER"] + app.PATH, json=app.ASK, timeout=30).status_code


from gevent import monkey  # noqa: E402

monkey.patch_all()

import gevent  # noqa: E402

ask = {"httpx": app.ask, "requests": by_requests}[sys.argv[1]]
greenlets = [gevent.spawn(ask) for _ in range(12)]
gevent.joinall(greenlets)
statuses = [one.value for one in greenlets]
sys.exit(0 if statuses == [200] * 12 else f"{statuses}")
