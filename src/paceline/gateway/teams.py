"""Whose a request is: the lane of its key, a part of its team's, or of one user of a front end; and the name under which it is counted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from paceline.core.hints import did_you_mean
from paceline.core.queue import DEFAULT_LANE, LANES_MAX, LaneSpec, line_of
from paceline.core.results import SettingsError
from paceline.core.waits import OTHER
from paceline.gateway.keys import ClientKey
from paceline.limiter.limiter import Limiter
from paceline.limiter.tally import counted_name

log = logging.getLogger("paceline.gateway")

TEAM: Final = "team/"
"""What the lane of a team begins with. No key can have such a name, and the settings of the lane are the team's."""

UNNAMED: Final = "-"
"""The user of a request that names none, where the key is for the users of a front end."""


class ClientLanes:
    """The lanes of client keys, with the limits of these.

    Args:
        limiter: The limiter.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._of_key: dict[str, tuple[ClientKey, LaneSpec]] = {}  # the keys whose limits the limiter has
        self._of_user: dict[str, LaneSpec] = {}
        self._limits = {one.name: one.limits for one in limiter.pacer.settings.lanes}
        self._teams = [name for name in self._limits if name.startswith(TEAM)]

    def of(self, key: ClientKey, user: str) -> LaneSpec:
        """The lane of a request.

        Args:
            key: Its key.
            user: The user whom it names, if the key is for users; empty for none.

        Raises:
            SettingsError: The limits of the key cannot be counted here.
        """
        lane = self._lane(key)
        return self._user(lane, user or UNNAMED) if key.users else lane

    def read_again(self, keys: Iterable[ClientKey]) -> None:
        """Give the keys that have sent requests the limits that were read: some of these requests may wait."""
        for key in keys:
            if key.name in self._of_key:
                with suppress(SettingsError):  # the next request of this key is told
                    self._lane(key)

    def _lane(self, key: ClientKey) -> LaneSpec:
        known, lane = self._of_key.get(key.name, (None, None))
        if lane is None or known is not key:  # new, or read again
            lane = self._of(key)
            self._limiter.limit_lane(key.name, key.limits or self._limits.get(key.name, ()))
            self._of_key[key.name] = key, lane
        return lane

    def _of(self, key: ClientKey) -> LaneSpec:
        """The lane of a key; what the key does not set is as in the settings."""
        own = self._limiter.pacer.lanes.of(lane=key.name)
        weight = own.weight if key.weight == DEFAULT_LANE.weight else key.weight
        return LaneSpec(key.name, weight, key.priority or own.priority, parent=self._team(key) if key.team else None)

    def _team(self, key: ClientKey) -> LaneSpec:
        """The lane of the team of a key; a slip in its name would end its limits in silence."""
        name = TEAM + key.team
        if self._teams and name not in self._teams:
            hint = did_you_mean(name, self._teams)
            log.warning(
                'key %s: its team has no limit, because [lanes."%s"] is not in the settings%s', key.name, name, hint
            )
        return self._limiter.pacer.lanes.of(lane=name)

    def _user(self, parent: LaneSpec, user: str) -> LaneSpec:
        """The lane of a user of a front end. Their number has a bound, because their names come from it."""
        name = f"{parent.name}/{user}"
        if name not in self._of_user and len(self._of_user) >= LANES_MAX:
            name = f"{parent.name}/{OTHER}"
        lane = self._of_user.get(name)
        if lane is None or lane.parent is not parent:
            own = self._limiter.pacer.lanes.of(lane=name)
            lane = self._of_user[name] = replace(own, priority=parent.priority, limits=(), parent=parent)
        return lane


def unheeded(lanes: Mapping[str, LaneSpec], keys: Sequence[ClientKey]) -> Iterator[str]:
    """What to say of each lane of the settings that holds for no key; clients without keys may name lanes, but are in no team."""
    known = {name for key in keys for name in (key.name, TEAM + key.team)}
    for name, lane in lanes.items():
        team = name.removeprefix(TEAM) if name.startswith(TEAM) else ""
        if name in known or not (team or (keys and lane.limits and name.partition("/")[0] not in known)):
            continue
        who, options = (f"is in the team {team}", f"NAME --team {team}") if team else ("has this name", name)
        hint = did_you_mean(name, known)
        yield f'[lanes."{name}"] has no effect, because no key {who}: mend the name, or `paceline keys add {options}`{hint}'


def counted_as(lane: LaneSpec) -> str:
    """The name under which the requests of a lane are counted: its key, the team of that, and the user."""
    key, _, user = lane.name.partition("/")
    top = line_of(lane)[-1].name
    return counted_name(key, top.removeprefix(TEAM) if top.startswith(TEAM) else "", user)
