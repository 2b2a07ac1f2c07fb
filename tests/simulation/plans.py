"""Agents and a person with one plan, in virtual time, before a provider whose windows are used up. Whole answers pass, over attached clients.

``Row`` names a world. ``run`` returns what its windows have given, with the limiter (``paced``), or with clients that know the provider.
"""

import asyncio
import json
import random
from bisect import bisect_left
from dataclasses import dataclass, field
from email.utils import formatdate
from math import floor

import httpx

import paceline
from paceline import RetryPolicy
from paceline.testing.clock import ManualClock, run_virtual

HOUR, DAY = 3_600.0, 86_400.0
AGENTS = 50
SEED = 20_261_128


@dataclass
class Window:
    """``cap`` is in units that no client is told: a request costs 1 on average."""

    name: str
    length_s: float
    cap: float
    first: bool = True  # begins with the first request after the last end; else by the clock
    models: tuple[str, ...] = ()  # none: all
    begun_s: float | None = None
    used: float = 0.0
    opened_s: list[float] = field(default_factory=list)  # when it ended after it was used up

    @property
    def ends_s(self):
        return (self.begun_s or 0.0) + self.length_s

    def roll(self, now_s):
        if not self.first and self.begun_s is None:
            self.begun_s = 0.0
        if self.begun_s is not None and now_s >= self.ends_s:
            if self.used >= self.cap:
                self.opened_s.append(self.ends_s)
            self.begun_s = None if self.first else now_s - now_s % self.length_s
            self.used = 0.0

    def renew(self, now_s):
        """The provider gives everybody a new window."""
        self.roll(now_s)
        if self.used >= self.cap:
            self.opened_s.append(now_s)
        self.used, self.begun_s = 0.0, None if self.first else self.begun_s


@dataclass(frozen=True)
class Row:
    """``says_s``: the wait that a refusal states, by the true one. ``windows`` hold so many times the ``cap``."""

    windows: tuple = (("5h", 5 * HOUR, 1.0, ()),)
    says_s: object = None
    form: str = "claude"
    first: bool = True
    days: float = 1.0
    cap: float = 300.0
    agents: int = AGENTS
    burst: bool = False  # all agents come each 6 hours, with 12 requests each
    others: float = 0.0  # the part that another device uses
    step: float = 0.01
    ahead_s: float = 0.0  # the clock of the provider
    early: tuple[float, ...] = ()  # when everybody gets a new window, in days
    scoped: float = 0.0  # the part of the agents with a model that has a window of its own
    rate: str = ""  # another limit of the provider, beside the windows
    person: bool = True
    plans: dict = field(default_factory=lambda: {"keep": 0.0})


FAST, LARGE = "claude-opus-4-5", "claude-fable-5"


class Provider:
    """A plan at a provider. It knows nothing of who paces."""

    def __init__(self, row, clock):
        self.row, self._clock, self._zero_ns = row, clock, clock.now_ns()
        self.windows = [Window(name, length_s, row.cap * cap, row.first, of) for name, length_s, cap, of in row.windows]
        self.refused, self.served, self.charged, self.rate_refused = 0, 0, 0.0, 0
        self.asked_s = []
        self._tokens, self._at_s = 0.0, 0.0

    @property
    def now_s(self):
        return (self._clock.now_ns() - self._zero_ns) / 1e9

    def of(self, model):
        return [one for one in self.windows if not one.models or model in one.models]

    def opens_s(self, model):
        """When a request is admitted: for clients that know it."""
        self._roll()
        return max((one.ends_s for one in self.of(model) if one.used >= one.cap), default=self.now_s)

    def ask(self, model):
        """The headers, and the wait of a refusal, by the window (``None``: for a rate); 0: admitted."""
        now_s = self.now_s
        self.asked_s.append(now_s)
        self._roll()
        full = [one for one in self.of(model) if one.used >= one.cap]
        if full:
            self.refused += 1
            wait_s = max(one.ends_s for one in full) - now_s
            says_s = wait_s if self.row.says_s is None else self.row.says_s(wait_s)
            return self._headers(model, full, says_s), max(1, floor(says_s) + 1), max(full, key=lambda one: one.ends_s)
        if self.row.rate and not self._rate_admits(now_s):
            self.rate_refused += 1
            return self._headers(model, [], None), 5, None
        for one in self.of(model):
            if one.begun_s is None:
                one.begun_s, one.used = now_s, 0.0
        self.served += 1
        return self._headers(model, [], None), 0, None

    def charge(self, model, cost, *, ours=True):
        self._roll()
        for one in self.of(model):
            if one.begun_s is not None:
                one.used += cost
        self.charged += cost * ours

    def _roll(self):
        """Begin new windows; one that opens while another one is shut lets nothing go."""
        for one in self.windows:
            count = len(one.opened_s)
            one.roll(self.now_s)
            if len(one.opened_s) > count and any(
                other.used >= other.cap for other in self.windows if other is not one and not other.models
            ):
                one.opened_s.pop()

    def _rate_admits(self, now_s):
        """A bucket of as many as the limit has in a minute."""
        limit = float(self.row.rate.split()[0])
        self._tokens = min(limit, self._tokens + (now_s - self._at_s) * limit / 60) if self._at_s else limit
        self._at_s = now_s or 1e-9
        self._tokens -= admitted if (admitted := self._tokens >= 1) else 0
        return admitted

    def _headers(self, model, full, says_s):
        now_s = self._clock.now_ns() / 1e9 + self.row.ahead_s
        found = {"date": formatdate(now_s, usegmt=True)}
        if self.row.form == "unnamed":
            return found
        for number, one in enumerate(one for one in self.of(model) if one.begun_s is not None):
            left_s = one.ends_s - self.now_s if one not in full or self.row.says_s is None else says_s
            step = self.row.step
            used = 1.0 if one in full else min(floor(one.used / one.cap / step) * step, 1 - step)
            if self.row.form == "claude":
                begin = f"anthropic-ratelimit-unified-{one.name}-"
                found[f"{begin}utilization"] = f"{used:.3f}"
                found[f"{begin}reset"] = str(floor(now_s + left_s) + 1)
                found[f"{begin}status"] = "rejected" if one in full else "allowed"
            else:
                begin = f"x-codex-{('primary', 'secondary')[number]}-"
                found[f"{begin}used-percent"] = f"{100 * used:.1f}"
                found[f"{begin}window-minutes"] = str(round(one.length_s / 60))
                found[f"{begin}reset-after-seconds"] = str(floor(left_s) + 1)
        return found


MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
USED = {"input_tokens": 100, "output_tokens": 20}


def events(*values):
    return b"".join(b"event: %s\ndata: %s\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in values)


CLAUDE = (
    events(
        {"type": "message_start", "message": MESSAGE | {"usage": USED | {"output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
    ),
    events(
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ),
)
CODEX = (
    events(
        {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
        {"type": "response.output_text.delta", "delta": "hi"},
    ),
    events({"type": "response.completed", "response": {"id": "r", "status": "completed", "usage": USED}}),
)
CLAUDE_LOGIN = {"authorization": "Bearer sk-ant-oat01-abc", "anthropic-version": "2023-06-01"}
CODEX_LOGIN = {"authorization": "Bearer x", "chatgpt-account-id": "a"}
SAID = "This request would exceed your account's rate limit. Please try again later."


def refusal_of(row, wait_s, of_window):
    headers = {"retry-after": str(wait_s)}
    if row.form != "codex":
        return headers, {"type": "error", "error": {"type": "rate_limit_error", "message": SAID}}
    if not of_window:
        return headers, {"error": {"type": "rate_limit_exceeded", "message": "Rate limit reached"}}
    error = {"type": "usage_limit_reached", "message": "The usage limit has been reached", "plan_type": "plus"}
    return {}, {"error": error | {"resets_in_seconds": wait_s}}


class Body(httpx.AsyncByteStream):
    """A stream whose first events come with its head, and whose last ones at its end."""

    def __init__(self, begin, seconds, end, then):
        self._parts, self._seconds, self._then = (begin, end), seconds, then

    async def __aiter__(self):
        yield self._parts[0]
        await asyncio.sleep(self._seconds)
        self._then()
        yield self._parts[1]


@dataclass
class Outcome:
    provider: Provider
    limiter: object
    person_s: list[float]
    days: float

    @property
    def refused_a_week(self):
        return self.provider.refused / self.days * 7

    def resumed(self):
        """The longest time from an opening to the tenth request after it, and the most requests in a second then."""
        asked, late_s, herd = self.provider.asked_s, 0.0, 0
        for opened_s in sorted(at_s for one in self.provider.windows for at_s in one.opened_s):
            first = bisect_left(asked, opened_s)
            if first + 10 < len(asked):
                late_s = max(late_s, asked[first + 9] - opened_s)
                seconds = (
                    bisect_left(asked, at_s + 1.0) - bisect_left(asked, at_s) for at_s in asked[first : first + 150]
                )
                herd = max(herd, *seconds)
        return late_s, herd


def run(row, *, paced=True, looks=()):
    """The world of ``row``. ``looks``: pairs of an instant in seconds, and what is called then with the limiter and the provider."""
    clock = ManualClock()
    agents = Agents(row, clock, paced=paced)
    run_virtual(lambda _: agents.live(looks), clock)
    assert not agents.lost, agents.lost[:3]
    return Outcome(agents.provider, agents.limiter, agents.person_s, row.days)


class Agents:
    """What asks the provider of ``row``: through a limiter, or (``paced`` false) as one that knows it."""

    def __init__(self, row, clock, *, paced):
        self.row, self.clock, self.paced = row, clock, paced
        self.provider, self.rng = Provider(row, clock), random.Random(SEED)
        self.person_s, self.lost, self.tasks = [], [], []
        provider, address, headers = "anthropic", "https://api.anthropic.com/v1/messages", CLAUDE_LOGIN
        if row.form == "codex":
            provider, address, headers = "openai", "https://api.openai.com/v1/responses", CODEX_LOGIN
        retry, plans = RetryPolicy(max_retry_after_s=1e7), paceline.PlanPolicy(**row.plans)
        self.limiter = paceline.Limiter(provider=provider, clock=clock, retry=retry, plans=plans)
        self.limiter.pacer.health.luck = self.rng.random
        client = httpx.AsyncClient(transport=httpx.MockTransport(self.answer), timeout=None, headers=headers)
        self.client, self.address = self.limiter.attach(client), address

    async def live(self, looks):
        """Go through all days."""
        row = self.row
        for at_s, look in looks:
            self.start(self.at(at_s, lambda look=look: look(self.limiter, self.provider)))
        for days in row.early:
            self.start(self.at(days * DAY, lambda: [one.renew(self.provider.now_s) for one in self.provider.windows]))
        if row.person:
            self.start(self.person())
        if row.others:
            self.start(self.others())
        if row.burst:
            self.start(self.bursts())
        else:
            for n in range(row.agents):
                self.start(self.agent(10**9, LARGE if n < round(row.agents * row.scoped) else FAST))
        await asyncio.sleep(row.days * DAY)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def start(self, task):
        self.tasks.append(asyncio.create_task(task))

    async def at(self, at_s, call):
        await asyncio.sleep(at_s)
        call()

    async def answer(self, request):
        """The provider's side of a request."""
        request.extensions["sent"]()
        model, head_s, whole_s, cost = request.extensions["of"]
        headers, wait_s, window = self.provider.ask(model)
        if wait_s:
            await asyncio.sleep(0.3)
            more, body = refusal_of(self.row, wait_s, window)
            return httpx.Response(429, headers=headers | more, json=body)
        await asyncio.sleep(head_s)
        begin, end = CODEX if self.row.form == "codex" else CLAUDE
        body = Body(begin, whole_s - head_s, end, lambda: self.provider.charge(model, cost))
        return httpx.Response(200, headers={"content-type": "text/event-stream"} | headers, stream=body)

    async def known(self, model, _, whole_s, cost):
        """As one that knows the provider: no window refuses it. It sees early ends within a minute."""
        while (at_s := self.provider.opens_s(model)) > self.provider.now_s or self.provider.ask(model)[1]:
            wait_s = at_s - self.provider.now_s
            await asyncio.sleep(max(0.001, min(wait_s, 60.0 if self.row.early else 1e9)) if wait_s > 0 else 0.5)
        sent_s = self.provider.now_s
        await asyncio.sleep(whole_s)
        self.provider.charge(model, cost)
        return sent_s

    async def call(self, own, model):
        """Send a request, and wait for its answer; when its last attempt was sent."""
        size = own.lognormvariate(-0.32, 0.8) * (5 if model == LARGE else 1)
        about = model, own.uniform(1, 3), 4 + 14 * own.lognormvariate(-0.32, 0.8), size
        if not self.paced:
            return await self.known(*about)
        body = {"model": model, "max_tokens": 50, "stream": True, "messages": [{"role": "user", "content": "x"}]}
        if self.row.form == "codex":
            body = {"model": "gpt-5", "max_output_tokens": 50, "stream": True, "input": "x"}
        sent = []
        extensions = {"of": about, "sent": lambda: sent.append(self.provider.now_s)}
        got = await self.client.post(self.address, json=body, extensions=extensions)
        if got.status_code != 200:
            self.lost.append(got.text)
        return sent[-1] if sent else self.provider.now_s

    async def agent(self, requests, model):
        own = random.Random(self.rng.random())
        await asyncio.sleep(own.uniform(0, 20))
        for _ in range(requests):
            await self.call(own, model)
            await asyncio.sleep(own.lognormvariate(1.8, 0.8))

    async def person(self):
        """Asks from 8 to 17, each three minutes."""
        own = random.Random(7)
        while True:
            hour = self.provider.now_s % DAY / HOUR
            if not 8 <= hour < 17:
                await asyncio.sleep((8 - hour) % 24 * HOUR)
                continue
            began_s = self.provider.now_s
            with paceline.lane("interactive", priority=1):
                self.person_s.append(await self.call(own, FAST) - began_s)
            await asyncio.sleep(own.expovariate(1 / 180))

    async def others(self):
        """Another device, with a part of each window."""
        own, windows = random.Random(9), self.provider.windows
        while True:
            await asyncio.sleep(own.expovariate(self.row.others * min(one.cap / one.length_s for one in windows)))
            if self.provider.opens_s(FAST) <= self.provider.now_s:
                for one in windows:
                    one.begun_s = self.provider.now_s if one.begun_s is None else one.begun_s
                self.provider.charge(FAST, 1.0, ours=False)

    async def bursts(self):
        while True:
            for _ in range(self.row.agents):
                self.start(self.agent(12, FAST))
            await asyncio.sleep(6 * HOUR)
