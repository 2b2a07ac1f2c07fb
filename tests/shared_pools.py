"""Pools of one process whose quotas other processes share, without a worker, and messages of other processes."""

from dataclasses import fields

from paceline.core.ledger import Ledger
from paceline.core.pool import Pool
from paceline.core.queue import Queue
from paceline.shared.capacity import SharedCapacity
from paceline.shared.messages import Known, Message


def shared_pool(name, quotas, now_ns, *, who, headroom_s=1.0, learns=False, sources=(), **options):
    """A shared pool, as the process ``who`` has it."""
    ledger = Ledger(quotas, now_ns, sources=sources, headroom_s=headroom_s, gentle=bool(learns))
    queue = Queue()
    return Pool(name, SharedCapacity(ledger, queue, now_ns, who=who, learns=learns, **options), queue)


def message_of(who, number, quotas=(), versions=(), **options):
    """A message; ``options`` are its fields, and those of what the process knows of the quotas."""
    known = {each.name: options.pop(each.name) for each in fields(Known) if each.name in options}
    return Message(who, number, Known(tuple(quotas), list(versions), **known), **options)
