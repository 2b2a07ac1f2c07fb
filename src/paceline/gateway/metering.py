"""What a request costs, who pays, and whether its client may ask for so much."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from paceline.core.results import SettingsError
from paceline.gateway.errors import RequestError
from paceline.gateway.incoming import Incoming
from paceline.gateway.keys import ClientKey
from paceline.gateway.models import IDLE_S, MODELS_MAX, NamedModels
from paceline.gateway.reading import Seen
from paceline.gateway.shares import fits
from paceline.gateway.teams import ClientLanes
from paceline.gateway.upstreams import Upstream
from paceline.http.account import payer_of, sends_login
from paceline.http.describe import Metered, at_account, body_of, is_metered, metered
from paceline.limiter.limiter import Limiter
from paceline.pacing.accounts import Payer
from paceline.pacing.pacer import current_lane
from paceline.pacing.scheduler import Scheduler


class Metering:
    """Meters the requests of clients.

    Args:
        limiter: The limiter.

    Attributes:
        lanes: The lanes of clients with a key.
        models: The models that were named recently.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._pacer = limiter.pacer
        self.lanes, self.models = ClientLanes(limiter), NamedModels(limiter.pacer.pools)

    def of(self, request: Incoming, seen: Seen) -> list[Metered]:
        """The request as each member of its place meters it; nothing for one that costs nothing."""
        key = request.key
        try:
            if key is not None:
                current_lane.set(self.lanes.of(key, request.user))
            return list(self._metered(request, seen))
        except SettingsError as error:
            raise RequestError(429, "quota", str(error)) from None

    def admit(self, request: Incoming, found: list[Metered], seen: Seen) -> None:
        """Refuse a metered request for more than its client may ask for."""
        key = request.key
        if request.place.choice is not None:
            _refuse_login(request)
        for one in found:
            owner = request.owner if one.payer is None else one.payer.account.name
            if not self.models.use(owner, one.scheduler, time.monotonic()):
                message = (
                    f"more than {MODELS_MAX} models were named recently: one that is unused for {IDLE_S:g} s makes room"
                )
                raise RequestError(429, "models", message)
        if seen.refusal is not None:
            raise RequestError(*seen.refusal)
        if key is not None and not any(self._has_room(key, one.scheduler) for one in found):
            raise RequestError(429, "queue_full", "too many requests of this key wait already: send this one later")

    def _metered(self, request: Incoming, seen: Seen) -> Iterator[Metered]:
        """The request as each member of its place meters it; nothing for one that costs nothing."""
        pacer, fields = self._pacer, seen.fields if seen.content else None
        known = dict[int, Metered]()  # by the call, which is the same one at another account
        for upstream, call in zip(request.place.members, seen.calls, strict=False):
            payer = self._payer(request, upstream, seen.fields)
            found = known.get(id(call))
            one = None if found is None else at_account(pacer, found, upstream.provider, payer)
            if one is None:
                one = metered(pacer, upstream.provider, call, fields, partial(body_of, seen.content), payer)
            known[id(call)] = one
            yield one

    def _has_room(self, key: ClientKey, scheduler: Scheduler) -> bool:
        """Whether one more request of ``key`` may wait in a pool."""
        queue, most = scheduler.pool.queue, self._pacer.settings.waiting_max
        if fits(key.identity, queue.length, queue.length, 1, most):  # even if all are its own
            return True
        waiting = scheduler.read(lambda _: queue.waiting())
        own = sum(number for lane, number in waiting.items() if lane.partition("/")[0] == key.name)
        return fits(key.identity, own, queue.length, 1, most)

    def _payer(self, request: Incoming, upstream: Upstream, fields: Mapping[str, Any]) -> Payer | None:
        """Who pays for a request with these fields that is sent with its client's own credential; ``None`` for another one."""
        provider: Any = upstream.provider
        if upstream.key or request.open_path or not is_metered(provider, request.decoded_path):
            return None
        return payer_of(self._pacer, provider, request.head.header, fields, request.head.query)


def _refuse_login(request: Incoming) -> None:
    """Refuse a login to a plan at a group: a group would choose between plans, or send the login where it does not belong."""
    place = request.place
    if any(not one.key and sends_login(one.provider.name, request.head.header) for one in place.members):
        message = f"{place.name} is a group, and a group takes no login to a plan: send it to /{place.members[0].name}"
        raise RequestError(400, "plan", message)
