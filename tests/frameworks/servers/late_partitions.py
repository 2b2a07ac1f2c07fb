"""The same for partitions, which share a journal."""

import os
import sys

import app

import paceline
import paceline.data.journal

STORE = {"store": os.environ["STORE"], "journal": os.environ["STORE"] + ".journal"}

from gevent import monkey  # noqa: E402

monkey.patch_all()

import gevent  # noqa: E402


def partition(first):
    rows = [{"number": number} for number in range(first, first + 4)]
    return paceline.partition(rows, lambda _: app.ask(), key="number", **STORE)


greenlets = [gevent.spawn(partition, first) for first in (0, 4, 8)]
gevent.joinall(greenlets)
statuses = [row["answer"] for one in greenlets for row in one.value or ()]
sys.exit(0 if statuses == [200] * 12 else f"{statuses}")
