"""Pools of one process whose quotas other processes share, without a worker."""

from paceline.core.ledger import Ledger
from paceline.core.pool import Pool
from paceline.core.queue import Queue
from paceline.shared.capacity import SharedCapacity


def shared_pool(name, quotas, now_ns, *, who, headroom_s=1.0, learns=False, sources=(), **options):
    """A shared pool, as the process ``who`` has it."""
    ledger = Ledger(quotas, now_ns, sources=sources, headroom_s=headroom_s, gentle=bool(learns))
    queue = Queue()
    return Pool(name, SharedCapacity(ledger, queue, now_ns, who=who, learns=learns, **options), queue)
