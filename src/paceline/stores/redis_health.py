"""What makes quotas unsafe at a Redis: it evicts keys, it is a replica, or it has lost what it had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

LOST_US: Final = 86_400_000_000
"""How long after the loss of keys processes that join, and ``paceline doctor``, are told of it: a day, as the most common quotas last."""

KEPT_MS: Final = 90 * 86_400_000
"""How long a server is known to be the same without use: as long as a file keeps ledgers."""

LOOK: Final = f"""
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1e6 + time[2])
local made, lost = redis.call('HGET', KEYS[1], 'made'), redis.call('HGET', KEYS[1], 'lost')
if not lost and ARGV[1] ~= '' and made ~= ARGV[1] then
  lost = now
  redis.pcall('HSET', KEYS[1], 'lost', lost)
end
if not made and type(redis.pcall('HSET', KEYS[1], 'made', now)) == 'number' then made = now end
redis.pcall('PEXPIRE', KEYS[1], '{KEPT_MS}')
local function info(section)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end
return {{made or '', lost or '', now, info('memory'), info('replication')}}
"""
"""Returns when the key was made (nothing: it cannot be), when it was lost, the present, and what the server says of itself, or nothing where it may not be asked. ARGV[1]: when it was made,
as this process knows it, or nothing. Writes are tried only: a replica and a full server refuse them."""


def remarks(answer: list[Any]) -> Iterator[str]:
    """What is wrong, and what to do, by an answer of :data:`LOOK`."""
    _, lost, now, *infos = (part.decode() for part in answer)
    facts = dict(line.split(":", 1) for info in infos for line in info.splitlines() if ":" in line)
    policy, role = facts.get("maxmemory_policy", "noeviction"), facts.get("role", "master")
    if policy != "noeviction" and facts.get("maxmemory", "0") != "0":
        yield (
            f"it evicts keys when its memory is full (maxmemory-policy {policy}), and an evicted quota starts full again:"
            " set maxmemory-policy noeviction"
        )
    if role != "master":
        yield (
            f"it is a replica (role {role}), and processes at its master spend the same quotas again: give the address of the"
            " master, or let Sentinels find it with redis+sentinel://"
        )
    if lost and int(now) - int(lost) < LOST_US:
        yield (
            "it came back empty in the last 24 hours (FLUSHALL, a restart without persistence, or an eviction): running processes"
            " have restored their quotas; usage that only other processes knew is lost"
        )
