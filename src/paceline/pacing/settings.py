"""The settings of a limiter, each declared once: type, default, unit and bounds, text.

From a declaration follow the argument of :class:`~paceline.limiter.limiter.Limiter` and its documentation, the setting
of a file with its check, the variable ``PACELINE_...``, and the lines of the help, the JSON schema and docs/config.md.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import update_wrapper
from os import PathLike
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar, cast, get_args

from paceline.core.capacity import Learns
from paceline.core.checked import check, check_names, within
from paceline.core.plan import PlanPolicy
from paceline.core.pool import WAITING_MAX
from paceline.core.queue import LaneSpec
from paceline.core.quota import Quota, parse_quotas
from paceline.core.results import QuotaError, SettingsError
from paceline.pacing.breaker import BreakerPolicy
from paceline.pacing.clock import SYSTEM_CLOCK, Clock
from paceline.pacing.events import Event
from paceline.pacing.retry import RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT_MAX_S: Final = 10 * 366 * 86_400.0
"""Ten years, the longest timeout."""

QuotaLike = str | Quota | Iterable[str | Quota]
Unpriced = Literal["count", "refuse"]
OnStoreFailure = Literal["fail_safe", "fail_closed", "fail_open"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a declaration says beside the type and the default.

    Attributes:
        text: A sentence for tables and helps, and after it what else there is to know.
        within: What a number counts, its least and its most.
        choices: The values, where they are few.
    """

    text: str
    within: tuple[str, float, float] | None = None
    choices: tuple[Any, ...] = ()

    @property
    def expected(self) -> str:
        """What is right, in words; empty where the type alone says it."""
        if self.choices:
            *others, last = (str(one).lower() if isinstance(one, bool) else repr(one) for one in self.choices)
            return f"{', '.join(others)} or {last}"
        return within(self.within) if self.within else ""

    def accepts(self, value: Any) -> bool:
        """Whether ``value`` is a choice, or a number within the bounds."""
        if self.within is None:
            return not self.choices or value in self.choices
        _, least, most = self.within
        return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most

    @property
    def brief(self) -> str:
        """The first sentence."""
        return self.text.partition(". ")[0].removesuffix(".")


def _told(*declaration: Any) -> dict[str, Setting]:
    return {"setting": Setting(*declaration)}


def setting(
    default: T,
    text: str,
    within: tuple[str, float, float] | None = None,
    *,
    choices: tuple[Any, ...] = (),
    repr: bool = True,  # noqa: A002  (as of dataclasses.field)
) -> T:
    """Declare a setting as a field of a dataclass; ``repr``: whether its value is shown."""
    told = _told(text, within, choices)
    if isinstance(default, dict):
        return cast("T", field(default_factory=dict, metadata=told))
    return field(default=default, metadata=told, repr=repr)


def declared(settings: type[Any]) -> dict[str, Setting]:
    """The settings that a dataclass declares, by name."""
    return {one.name: one.metadata["setting"] for one in fields(settings) if one.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSettings:
    """Settings with the same form in code and in files.

    A new one is a line here, and then ``python -m tests.public`` writes docs/config.md. Arguments, files, variables, help
    and schema follow by themselves: ``tests/config/test_declared.py`` tests that for all of them.

    Raises:
        SettingsError: A value is out of its range.
    """

    # fmt: off
    provider: str | None = setting(None,
        "The provider whose published limits apply where no others are set. ``None``: by the address or the format of "
        "a request.")
    tier: str | int | None = setting(None,
        "The tier of the account at that provider, or at the only one that the limits name.")
    rpm_override: float | None = setting(None,
        "Requests per minute for every model, in place of its own limit.", ("a number", 1e-3, 1e12))
    tpm_override: float | None = setting(None,
        "Tokens per minute, input and output together, for every model, in place of its own limit.",
        ("a number", 1e-3, 1e12))
    learn: Learns = setting(True,
        'Whether answers correct the limits. ``True``: they lower given limits and never raise them; ``"up"``: they '
        "raise them, too.", choices=(True, False, "up"))
    concurrency: Mapping[str, int] | None = setting(None,
        "The bound on requests in flight by provider, over all its models, ``*`` for every other provider.")
    joint_limits: Mapping[str, QuotaLike] | None = setting(None,
        'Quotas that several pools are charged to together, by the pattern of their names. ``{"openai/*": "2500 '
        'requests/min"}``; several patterns with commas. A request waits for its own pool, and then for each of '
        "these.")
    min_interval_s: float = setting(0.0,
        "The least time between two starts at one provider, over all its models, or in one pool of your own.",
        ("seconds", 0, 3_600))
    acquire_timeout_s: float | None = setting(None,
        "The default timeout of a request. ``None`` for none. Runs have none.", ("seconds", 0, TIMEOUT_MAX_S))
    max_tokens_per_call: float | None = setting(None,
        "A request that is estimated above it, input and output together, is not sent. ``TooLargeError``, and from an "
        "attached client the SDK's error. ``None``: no bound.", ("tokens", 1, 1e9))
    usable: float = setting(1.0,
        "The share of every limit that is used, also of learned ones. Requests in flight are not reduced. A request "
        "above it and within the limit goes when the quota is unused. With a store, the same in all processes.",
        ("a share", 0.001, 1))
    headroom_s: float | None = setting(None,
        "The part of every quota that stays unused, in seconds of its own refill, to absorb jitter on the way to the "
        "provider. ``None``: 1 s, which adapts to what is needed, from 0.25 s to 4 s, in the buckets of a provider's "
        "model (without a store), and none in a pool whose quotas are all ``exact`` or ``even``.",
        ("seconds", 0, 3_600))
    ttl_s: float = setting(900.0,
        "The age at which an open permit is closed, charged in full. For runs at least twice ``timeout_s``, unless it "
        "is set.", ("seconds", 0.001, TIMEOUT_MAX_S))
    waiting_max: int = setting(WAITING_MAX,
        "How many requests may wait in one pool.", ("a whole number", 1, 100_000_000))
    estimate_factor: float | None = setting(None,
        "The factor for estimates of input, on top of their learned ratio. ``None``: a margin that is learned from "
        "their spread.", ("a factor", 0.1, 10))
    prompt_cache: bool = setting(True,
        "Whether requests whose prompts the provider still has in its cache go first in their lanes, and reserve what "
        "they are expected to cost. ``False``: order of arrival, and whole prompts.")
    priorities: Mapping[str, int] | None = setting(None,
        "Priorities of waiters in no lane, by shell pattern of their names. The first that matches holds: "
        '``{"coordinator*": 10}``.')
    budget: QuotaLike = setting((),
        'Quotas in US dollars for all requests of clients together. ``"100 usd/day"``: they cost at most the budget '
        "and one request. When it is spent, requests get a :class:`~paceline.BudgetError`. A lane has budgets and "
        "limits in ``LaneSpec(limits=...)``.")
    prices: Mapping[str, Mapping[str, float]] | None = setting(None,
        "By ``provider/model`` the prices in US dollars for a million tokens, in place of the known ones of "
        "genai-prices. ``input``, ``output``, ``cached`` and ``cache_write``, ``hour_write`` (of input written to a "
        "cache that keeps it for an hour), ``audio`` and ``audio_output``, and ``request``, a fee for each request in "
        "US dollars. ``provider/model@tier`` is the price of a service tier.")
    unpriced: Unpriced = setting("count",
        "What a budget does with a request whose price is not known. ``count`` counts the highest price of the "
        "provider, or nothing at one without prices, and warns; ``refuse`` does not send it.",
        choices=get_args(Unpriced))
    on_store_failure: OnStoreFailure = setting("fail_safe",
        "What to do while the store does not answer. ``fail_safe`` continues with this process's share of the limits, "
        "``fail_closed`` grants nothing, and ``fail_open`` continues as if this process were alone.",
        choices=get_args(OnStoreFailure))
    lease_s: float | None = setting(None,
        "With a store: for how many seconds a process may lease a share of the rate, in place of one exchange per "
        "request. 0: never; ``None``: under high load.", ("seconds", 0, 60))
    shadow: str | PathLike[str] | None = setting(None,
        "A file in which requests are logged in place of being held. Each is sent at once, and a line about it is "
        "appended, for ``paceline replay``. The lines have no prompts, answers or keys. Permits by hand are granted "
        "at once, too, except after a refusal that the program reports. Not for runs.")
    traffic_log: str | PathLike[str] | None = setting(None,
        "A file for the same lines, of requests that are held as usual.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse values out of their range."""
        for name, its in declared(type(self)).items():
            value = getattr(self, name)
            endless = name == "acquire_timeout_s" and value == math.inf  # as in acquire(timeout=math.inf)
            if value is not None and not endless and not its.accepts(value):
                raise SettingsError(f"{name} is {value!r}: it must be {its.expected}")
        check(self)
        if self.shadow is not None and self.traffic_log is not None:
            raise SettingsError("shadow and traffic_log are both set: shadow writes the same lines, and holds nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class PacingSettings(PlainSettings):
    """The arguments of :class:`~paceline.limiter.limiter.Limiter`."""

    # fmt: off
    quotas: Mapping[str, QuotaLike] | None = field(default=None, kw_only=False, metadata=_told(
        'Quotas by name: ``{"openai/gpt-6-luna": ["500 requests/min", "500k tokens/min"]}``. A name may be a '
        "provider's model, a model, ``openai/*``, ``*``, or the user's own name for a pool."
    ))
    retry: RetryPolicy | None = setting(None, "The policy of attached clients and of :meth:`attempts` after refusals.")
    breaker: BreakerPolicy | None = setting(BreakerPolicy(), "The policy after failures of a host; ``None`` for none.")
    plans: PlanPolicy = setting(PlanPolicy(),
        "How the windows of plans are used (Claude Pro, Max and Team, ChatGPT with Codex).")
    lanes: Iterable[LaneSpec] = setting((), "Weights and priorities of lanes, for callers that give only the name.")
    store: object = setting(None,
        "Where processes share the quotas: a store, a Redis client, or a URL for :func:`~paceline.stores.open_store` "
        '(``sqlite:PATH``, ``redis://HOST:PORT/DB``, ...). ``None`` and ``"memory:"``: the quotas are in this '
        "process.")
    events: Callable[[Event], None] | None = setting(None,
        "Called with every :class:`~paceline.Event`, in the thread that causes it. It should be quick; its exceptions "
        "are logged.")
    clock: Clock = setting(SYSTEM_CLOCK, "The clock; tests use their own.")
    # fmt: on


def arguments_of(
    settings: Callable[P, T],
) -> Callable[[Callable[[Any, T], None]], Callable[Concatenate[Any, P], None]]:
    """Make an ``__init__`` that takes the fields of ``settings`` as its arguments, and is called with them as one object."""
    signature = inspect.signature(settings)

    def decorate(init: Callable[[Any, T], None]) -> Callable[Concatenate[Any, P], None]:
        def made(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            check_names(type(self).__name__, kwargs, signature.parameters)
            init(self, settings(*args, **kwargs))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        update_wrapper(made, init)
        made.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])  # type: ignore[attr-defined]
        return made

    return decorate


def documented(doc: str | None, settings: type[Any]) -> str:
    """A docstring with the arguments that ``settings`` declares; without indentation, as Python 3.13 has it already."""
    args = [f"    {name}: {its.text}" for name, its in declared(settings).items()]
    return "\n".join([inspect.cleandoc(doc or ""), "", "Args:", *args])


def checked_timeout(timeout: float | None) -> float | None:
    """The timeout.

    Raises:
        QuotaError: It is no number of seconds from 0 to ten years.
    """
    if timeout is None or timeout == math.inf:
        return timeout
    if not isinstance(timeout, int | float) or not 0 <= timeout <= TIMEOUT_MAX_S:
        raise QuotaError(f"timeout is {timeout!r}: it must be from 0 s to ten years, or None for none")
    return timeout


def parsed(quotas: QuotaLike) -> tuple[Quota, ...]:
    """Quotas in any notation.

    Raises:
        QuotaError: One of them is invalid.
    """
    if isinstance(quotas, Quota):
        return (quotas,)
    if isinstance(quotas, str):
        return parse_quotas(quotas)
    if isinstance(quotas, Mapping) or not isinstance(quotas, Iterable):
        example = f"{quotas} requests/min" if isinstance(quotas, int) else "500 requests/min"
        raise QuotaError(f"{quotas!r} is no quota: write it as a text, e.g. {example!r}, or as a list of texts")
    return tuple(quota for part in quotas for quota in parsed(part))
