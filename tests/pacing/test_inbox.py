"""A queue between threads whose reader waits no longer than it says."""

import queue

import pytest

from paceline.pacing.inbox import Inbox
from waits import join, started


def test_items_come_in_their_order():
    inbox = Inbox()
    for item in (1, 2, 3):
        inbox.put(item)
    assert [inbox.get(), inbox.get(0.0), inbox.get(-1.0)] == [1, 2, 3]
    with pytest.raises(queue.Empty):  # it was woken for an item that is read
        inbox.get(60.0)
    with pytest.raises(queue.Empty):
        inbox.get(0.001)


def test_no_wait_is_longer_than_it_says():
    inbox, rounds = Inbox(), 3_000

    def read():
        for _ in range(rounds):
            inbox.put(None)
            assert inbox.get() is None
            for timeout_s in (1e-6, 1e-7):
                with pytest.raises(queue.Empty):
                    inbox.get(timeout_s)

    join(started(read))
