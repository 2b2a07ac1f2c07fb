"""The accounts of a limiter: one for each credential at a provider, which is known by a keyed digest of it alone."""

from __future__ import annotations

import hmac
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from paceline.core.pool import Pool
from paceline.core.queue import LaneName
from paceline.core.quota import NS
from paceline.core.results import QuotaError
from paceline.pacing.forks import reentrant_lock
from paceline.pacing.plan_use import UNNAMED, Client
from paceline.pacing.pools import Pools
from paceline.providers.base import Provider
from paceline.providers.registry import changed

DIGEST_BYTES: Final = 16
"""The bytes of a digest that are kept: two credentials never have the same one."""

SHOWN: Final = 6
"""The digits of a digest that are shown; more where another account has the same ones."""

NAME_SHOWN: Final = 8
"""The digits of a digest that stand for a session or a subagent."""

ACCOUNTS_MAX: Final = 2_000
"""The accounts of one limiter; for a further one, one is forgotten that was never served, or not used for
``IDLE_S``."""

IDLE_S: Final = 600.0
"""The time without a request after which an account that was served may be forgotten, if nothing of it would be
lost."""

CREDENTIALS_MAX: Final = 16
"""The credentials of one account that are remembered; the oldest is dropped first, and is another account if it is used
again."""

CLAIMS_MAX: Final = 4 * ACCOUNTS_MAX
"""The claims of clients that are remembered; the oldest is dropped first."""

SHUT_NS: Final = 60 * NS
"""A longer pause is about what one credential has left. A shorter one is about a rate."""


class Account:
    """One account at a provider.

    Attributes:
        provider: The provider under the name of the account.
        is_login: Whether its credential is a login to a plan, for which no published limits hold.
        served: Whether a request of it was answered.
        used_s: When it was used last, on the monotonic clock.
        refused: The credential that was refused last.
        sessions: Whether its requests name no person, but their session.
    """

    __slots__ = ("__weakref__", "credentials", "is_login", "provider", "refused", "served", "sessions", "used_s")

    def __init__(self, provider: Provider, *, is_login: bool) -> None:
        self.provider, self.is_login = provider, is_login
        # Their digests, the oldest first: a login has a new one every few hours.
        self.credentials: dict[bytes, None] = {}
        self.served, self.used_s = False, 0.0
        self.refused: bytes | None = None
        self.sessions = False

    @property
    def name(self) -> str:
        """The name of its provider, with the account: ``anthropic@7f3a91``."""
        return self.provider.name


class Payer(NamedTuple):
    """Who pays for a request, and what its credential claims of its client.

    That is the account, and the digest of the credential that it was sent with.

    ``lane``: where its requests stand that the user has put into no lane.
    """

    account: Account
    credential: bytes
    client: Client = UNNAMED
    lane: LaneName | None = None

    def refused(self) -> None:
        """The provider has refused this credential."""
        self.account.refused = self.credential


SALT: Final = "accounts"
"""The pool in whose place in a store the key of the digests is, so that an account has one name in all processes."""


class Accounts:
    """The accounts of a limiter by the digests of their credentials. No credential is kept.

    The first credential of a provider has the pools without an account, as if there were no other one: where a program
    uses one key, its pools have the names by which its dashboards and its limits know them.

    Args:
        pools: The pools of the limiter.

    Attributes:
        salt: Returns the key of the digests. It is asked for once, at the first credential.
        names_all: Whether the first credential has an account of its own name, too: other processes, and this one when
            it starts again, meet the credentials in another order, and share what is known of each through a store.
        forgotten: Called with the name of an account that is forgotten.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self.salt: Callable[[], bytes] = lambda: os.urandom(32)
        self.names_all = False
        self.forgotten: Callable[[str], None] = lambda _: None
        self._key = b""
        self._lock = reentrant_lock()
        self._by_credential: dict[bytes, Account] = {}
        self._first: dict[str, Account] = {}  # by provider: the account without a name of its own
        self._by_name: dict[str, Account] = {}
        self._by_claim: OrderedDict[bytes, Account] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_name)

    def of(
        self, provider: Provider, credential: str, *, is_login: bool, session: str, person: Callable[[], str]
    ) -> Payer:
        """The account of ``credential`` at ``provider``.

        What a client claims of itself gives it the account of an earlier credential only while that one is open. It is
        parted again when another credential of the account is refused for long: a client is shut by its own refusals
        alone.

        Args:
            provider: The provider.
            credential: The credential, with what else names who pays.
            is_login: Whether it is a login to a plan.
            session: The session that the request claims to belong to; empty for none.
            person: Returns the person whom it claims to be of; empty for none.

        Raises:
            QuotaError: There are too many.
        """
        if not self._key:
            with self._lock:
                self._key = self._key or self._shared(self.salt())  # another thread may have been first
        key = self._digest(provider.name, credential)
        account = self._by_credential.get(key)
        # Every request comes here, most of them without the lock.
        if account is None or account.sessions or len(account.credentials) > 1:
            with self._lock:
                account = self._found(provider, key, session, person, is_login=is_login)
        account.used_s = time.monotonic()
        return Payer(account, key)

    def _shared(self, salt: bytes) -> bytes:
        """The key of all processes of a store, the one of the first of them; without a store ``salt``."""
        worker = self._pools.worker
        return salt if worker is None else bytes.fromhex(worker.agreed(SALT, salt.hex()))

    def _found(
        self, provider: Provider, key: bytes, session: str, person: Callable[[], str], *, is_login: bool
    ) -> Account:
        """The account of a credential that is new, or one of several of its account."""
        account = self._by_credential.get(key)
        if account is not None:
            others = account.refused not in (None, key) and len(account.credentials) > 1
            if not (others and self._is_shut(account)):
                if account.sessions:
                    self._claim(provider.name, session, account)
                return account
            del account.credentials[key]  # parted: it finds an account as a new credential does
        who = person()
        claim = who or session  # a person has several sessions, and one account
        account = self._claimed(provider.name, claim, is_login=is_login) or self._new(provider, key, is_login=is_login)
        account.sessions = bool(session) and not who
        account.credentials[key] = None
        self._by_credential[key] = account
        if len(account.credentials) > CREDENTIALS_MAX:
            oldest = next(iter(account.credentials))
            del account.credentials[oldest], self._by_credential[oldest]
        self._claim(provider.name, claim, account)
        return account

    def known(self, provider: str, credential: str) -> Account | None:
        """The account of a credential that has been used; ``None`` for any other one."""
        return self._by_credential.get(self._digest(provider, credential)) if self._key else None

    def digits(self, claimed: str) -> str:
        """Some digits that stand for a name which a client claims; empty for none. To be called after :meth:`of`."""
        return self._digest("shown", claimed).hex()[:NAME_SHOWN] if claimed else ""

    def _digest(self, *parts: str) -> bytes:
        # What is claimed comes from JSON, which may have half of a surrogate pair.
        return hmac.digest(self._key, "\n".join(parts).encode("utf-8", "surrogatepass"), "sha256")[:DIGEST_BYTES]

    def _new(self, provider: Provider, key: bytes, *, is_login: bool) -> Account:
        if not (self.names_all or is_login or provider.name in self._first):
            account = self._first[provider.name] = Account(provider, is_login=False)
            return account
        if len(self._by_name) >= ACCOUNTS_MAX and not self._make_room():
            raise QuotaError(
                f"more than {ACCOUNTS_MAX:,} credentials were used recently: try again when one of them has been unused"
                f" for {IDLE_S:g} s"
            )

        digits, shown = key.hex(), SHOWN
        while (name := f"{provider.name}@{digits[:shown]}") in self._by_name:
            shown += 1
        account = self._by_name[name] = Account(changed(provider, name=name), is_login=is_login)
        if is_login:
            self._pools.limits.untabled.add(name)
        self._pools.stored_as[name] = f"{provider.name}@{digits}"
        return account

    def _claim(self, provider: str, claim: str, account: Account) -> None:
        """Remember what a client claims."""
        if claim:
            known = self._digest("claim", str(account.is_login), provider, claim)
            self._by_claim[known] = account
            self._by_claim.move_to_end(known)
            if len(self._by_claim) > CLAIMS_MAX:
                self._by_claim.popitem(last=False)

    def _claimed(self, provider: str, claim: str, *, is_login: bool) -> Account | None:
        """The account that a new credential claims, unless that one is shut."""
        account = self._by_claim.get(self._digest("claim", str(is_login), provider, claim)) if claim else None
        return None if account is None or self._is_shut(account) else account

    def _is_shut(self, account: Account) -> bool:
        pools = self._pools.of_account(account.name)
        schedulers = {id(one): one for pool in pools for one in (pool, *pool.beside)}  # they share the others
        return any(one.read(_is_shut, one.pool) for one in schedulers.values())

    def _make_room(self) -> bool:
        """Forget the accounts that nothing is known of, or else that are not used any more; whether there were any.

        None that waits, is shut or was served of late: a flood of unknown credentials pushes out unknown ones alone.
        """
        idle_s, before = time.monotonic() - IDLE_S, len(self._by_name)
        pools = self._pools.by_account()
        for name, account in list(self._by_name.items()):
            if account.served and account.used_s > idle_s:
                continue
            if self._pools.forget(*pools.get(name, ()), unserved=not account.served):
                self._forget(name, account)
        # In one pass, after the loop: an account has several claims, and does not know them.
        for claim in [one for one, of in self._by_claim.items() if not of.credentials]:
            del self._by_claim[claim]
        return len(self._by_name) < before

    def _forget(self, name: str, account: Account) -> None:
        del self._by_name[name]
        for key in account.credentials:
            self._by_credential.pop(key, None)
        account.credentials.clear()
        self._pools.limits.untabled.discard(name)
        self._pools.stored_as.pop(name, None)
        self._pools.plans.forget(name)
        self.forgotten(name)


def _is_shut(now_ns: int, pool: Pool) -> bool:
    return pool.stopped is not None or pool.cool_down_ns(now_ns) > SHUT_NS
