"""What a gateway has and does beside passing requests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def nothing() -> None:
    """What is called by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What a gateway has and does beside passing requests on.

    Attributes:
        folder: Where the processes of the gateway have their files, by which they find each other; ``None`` for the only process.
        access_log: The file of the access log; ``None`` for none.
        takes_over: Whether it serves only when the store has answered: the process before does until then.
        tallies: Whether it is counted what each client key uses.
        tells_quotas: Whether answers keep the headers that say what is left of the provider's quotas.
        names_account: Whether clients may name the account that pays, beside the gateway's own key: they are its owner's.
        key_in_path: Whether the key of a client may be the first part of a path.
        begun: Called when it serves.
    """

    folder: Path | None = None
    access_log: Path | None = None
    takes_over: bool = False
    tallies: bool = True
    tells_quotas: bool = True
    names_account: bool = False
    key_in_path: bool = False
    begun: Callable[[], None] = nothing
