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

    @property
    def brief(self) -> str:
        """The first sentence."""
        return self.text.partition(". ")[0].removesuffix(".")


def setting(
    default: T,
    text: str,
    within: tuple[str, float, float] | None = None,
    *,
    choices: tuple[Any, ...] = (),
    repr: bool = True,  # noqa: A002  (as of dataclasses.field)
) -> T:
    """Declare a setting as a field of a dataclass; ``repr``: whether its value is shown."""
    told = {"setting": Setting(text, within, choices)}
    if isinstance(default, dict):
        return cast("T", field(default_factory=dict, metadata=told))
    return field(default=default, metadata=told, repr=repr)


def declared(settings: type[Any]) -> dict[str, Setting]:
    """The settings that a dataclass declares, by name."""
    return {one.name: one.metadata["setting"] for one in fields(settings) if one.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSettings:
    """Settings with the same form in code and in files.

    A new one is a line here, and then ``python -m tests.public`` writes docs/config.md. Arguments, files, variables,
    help and schema follow by themselves: ``tests/config/test_declared.py`` tests that for all of them.

    Raises:
        SettingsError: A value is out of its range.
    """

    # fmt: off
    provider: str | None = setting(None,
        "The provider whose published limits apply if you set none. ``None``: by the address or the format of a "
        "request.")
    tier: str | int | None = setting(None,
        "Your tier at this provider, or at the only provider that your limits name.")
    rpm_override: float | None = setting(None,
        "Requests per minute for every model, instead of its own limit.", ("a number", 1e-3, 1e12))
    tpm_override: float | None = setting(None,
        "Tokens per minute (input plus output) for every model, instead of its own limit.",
        ("a number", 1e-3, 1e12))
    learn: Learns = setting(True,
        "Whether responses correct the limits. ``True``: they lower the limits that you set, and never raise "
        'them. ``"up"``: they also raise them.', choices=(True, False, "up"))
    concurrency: Mapping[str, int] | None = setting(None,
        "The most requests in flight by provider, over all its models. ``*``: every other provider.")
    joint_limits: Mapping[str, QuotaLike] | None = setting(None,
        'Quotas that several pools share, by a pattern of their names. ``{"openai/*": "2500 requests/min"}``, '
        "several patterns with commas. A request waits for its own pool, then for these quotas.")
    min_interval_s: float = setting(0.0,
        "The least time between two starts at one provider, over all its models, or in one of your own pools.",
        ("seconds", 0, 3_600))
    acquire_timeout_s: float | None = setting(None,
        "The longest wait of a request. ``None``: no bound. Runs have no bound.", ("seconds", 0, TIMEOUT_MAX_S))
    max_tokens_per_call: float | None = setting(None,
        "The largest request to send, in estimated tokens (input plus output). A larger one raises "
        "``TooLargeError``, in an attached client the SDK's error. ``None``: no bound.", ("tokens", 1, 1e9))
    usable: float = setting(1.0,
        "The share of every limit to use, also of learned limits. Limits of requests in flight aren't reduced. A "
        "request above the share and within the limit goes when the quota is unused. With a store, the same in "
        "all processes.",
        ("a share", 0.001, 1))
    headroom_s: float | None = setting(None,
        "The part of every quota to leave unused, in seconds of its refill, because requests can arrive closer "
        "together than they were sent. ``None``: 1 s, which adapts from 0.25 s to 4 s in the buckets of a "
        "provider's model (without a store), and 0 s in a pool whose quotas are all ``exact`` or ``even``.",
        ("seconds", 0, 3_600))
    ttl_s: float = setting(900.0,
        "The age at which paceline closes an open permit and charges it in full. Runs: at least twice "
        "``timeout_s``, unless you set it.", ("seconds", 0.001, TIMEOUT_MAX_S))
    waiting_max: int = setting(WAITING_MAX,
        "The most requests that can wait in one pool.", ("a whole number", 1, 100_000_000))
    estimate_factor: float | None = setting(None,
        "The factor on estimates of input, on top of their learned ratio. ``None``: a margin learned from their "
        "spread.", ("a factor", 0.1, 10))
    prompt_cache: bool = setting(True,
        "Whether a request whose prompt is in the provider's cache goes first in its lane, and reserves its "
        "expected cost only. ``False``: order of arrival, and whole prompts.")
    priorities: Mapping[str, int] | None = setting(None,
        "Priorities of waiters without a lane, by a shell pattern of their names. The first match applies: "
        '``{"coordinator*": 10}``.')
    budget: QuotaLike = setting((),
        'The budget in US dollars for all requests of clients together. ``"100 usd/day"``: you spend at most the '
        "budget and one request. When it is spent, requests get a :class:`~paceline.BudgetError`. For budgets of "
        "a lane, see ``LaneSpec(limits=...)``.")
    prices: Mapping[str, Mapping[str, float]] | None = setting(None,
        "Prices in US dollars per million tokens, by ``provider/model``, instead of the prices of genai-prices. "
        "``input``, ``output``, ``cached``, ``cache_write``, ``hour_write`` (input written to a cache for an "
        "hour), ``audio``, ``audio_output``, and ``request``, a fee per request in US dollars. "
        "``provider/model@tier``: the price of a service tier.")
    unpriced: Unpriced = setting("count",
        "How a budget treats a request without a known price. ``count``: charge the highest price of the provider "
        "(nothing, if none is known), and warn. ``refuse``: don't send it.",
        choices=get_args(Unpriced))
    on_store_failure: OnStoreFailure = setting("fail_safe",
        "What to do while the store doesn't respond. ``fail_safe``: use this process's share of the limits. "
        "``fail_closed``: send nothing. ``fail_open``: use the full limits, as if this process were alone.",
        choices=get_args(OnStoreFailure))
    lease_s: float | None = setting(None,
        "With a store: how long a process can lease a share of the rate, instead of asking the store for every "
        "request. 0: never. ``None``: under high load.", ("seconds", 0, 60))
    shadow: str | PathLike[str] | None = setting(None,
        "A file that records requests instead of pacing them. paceline sends every request at once, and appends a "
        "line for ``paceline replay``, without prompts, answers or keys. Permits by hand are granted at once too, "
        "except after a refusal that your program reports. Not for runs.")
    traffic_log: str | PathLike[str] | None = setting(None,
        "A file for the same lines, while paceline paces requests as usual.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse values out of their range."""
        ranges = {name: its.within for name, its in declared(type(self)).items() if its.within}
        if self.acquire_timeout_s == math.inf:  # as in acquire(timeout=math.inf)
            del ranges["acquire_timeout_s"]
        check(self, **ranges)
        if self.shadow is not None and self.traffic_log is not None:
            raise SettingsError(
                "shadow and traffic_log are both set: leave out one of them. shadow writes the same lines, and"
                " delays no request"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PacingSettings(PlainSettings):
    """The arguments of :class:`~paceline.limiter.limiter.Limiter`."""

    # fmt: off
    quotas: Mapping[str, QuotaLike] | None = field(default=None, kw_only=False, metadata={"setting": Setting(
        'Quotas by name: ``{"openai/gpt-6-luna": ["500 requests/min", "500k tokens/min"]}``. A name is a '
        "provider's model, a model, ``openai/*``, ``*``, or the name of your own pool."
    )})
    retry: RetryPolicy | None = setting(None, "When attached clients and :meth:`attempts` retry after a refusal.")
    breaker: BreakerPolicy | None = setting(BreakerPolicy(),
        "When to pause after failures of a host. ``None``: never.")
    plans: PlanPolicy = setting(PlanPolicy(),
        "How to use the windows of plans (Claude Pro, Max and Team, ChatGPT with Codex).")
    lanes: Iterable[LaneSpec] = setting((), "Weights and priorities of lanes that callers only name.")
    store: object = setting(None,
        "Where processes share the quotas: a store, a Redis client, or a URL for :func:`~paceline.stores.open_store` "
        '(``sqlite:PATH``, ``redis://HOST:PORT/DB``, ...). ``None`` and ``"memory:"``: the quotas are in this '
        "process.")
    events: Callable[[Event], None] | None = setting(None,
        "Called with every :class:`~paceline.Event`, in the thread that causes it. Keep it quick. paceline logs "
        "its exceptions.")
    clock: Clock = setting(SYSTEM_CLOCK, "The clock. Set it in tests only.")
    # fmt: on


def arguments_of(
    settings: Callable[P, T],
) -> Callable[[Callable[[Any, T], None]], Callable[Concatenate[Any, P], None]]:
    """Make an ``__init__`` that takes the fields of ``settings``, and is called with them as one object."""
    signature = inspect.signature(settings)

    def decorate(init: Callable[[Any, T], None]) -> Callable[Concatenate[Any, P], None]:
        def made(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            if "limits" in kwargs:  # their name in a file, and in paceline.run
                raise TypeError(f"{type(self).__name__}() has no argument 'limits': pass them first, or as quotas=")
            check_names(type(self).__name__, kwargs, signature.parameters)
            init(self, settings(*args, **kwargs))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        update_wrapper(made, init)
        parameters = [own, *signature.parameters.values()]
        made.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return made

    return decorate


def documented(doc: str | None, settings: type[Any]) -> str:
    """A docstring with the arguments that ``settings`` declares; without indentation, as Python 3.13 has it already."""
    args = [f"    {name}: {its.text}" for name, its in declared(settings).items()]
    return "\n".join([inspect.cleandoc(doc or ""), "", "Args:", *args])


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
