"""The evaluation program's limiter: what its file says, and what it does about it, in virtual time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime

import httpx2
import pytest
from acm_example import LIMITS, clients, plan, program, table

import paceline
from paceline.config import load_arguments
from paceline.core.quota import NS
from paceline.testing import ManualClock, run_virtual

NOON = datetime(2027, 3, 20, 12, tzinfo=UTC).timestamp()
PROVIDERS = {"openai": 10, "anthropic": 5, "google": 10, "azure": 10, "groq": 5, "acme": 3}
"""With how many may be in flight at each by the file; of the last it says nothing."""


def limiter_of(clock=None, **given):
    return paceline.Limiter(**load_arguments(LIMITS, {}, clock=clock or ManualClock(), **given))


def quotas(limiter, name):
    return [str(quota) for quota in limiter.limits.resolve(name).quotas]


class TestFile:
    @pytest.mark.parametrize(
        ("name", "rates"),
        [
            ("openai/gpt-6.1-sol", ["500 requests/min", "500k tokens/min", "90M tokens/day window utc", "90M tokens/86401s"]),
            ("openai/anything-else", ["500 requests/min", "30k tokens/min"]),
            ("anthropic/claude-haiku-5-5", ["50 requests/min", "50k input_tokens/min", "10k output_tokens/min"]),
            ("google/gemini-3.8-flash", ["300 requests/min", "1M tokens/min", "10k requests/day window America/Los_Angeles"]),
            ("azure/another-deployment", ["60 requests/min", "10k tokens/min"]),
            ("groq/openai/gpt-oss-120b",
             ["30 requests/min", "24k tokens/min", "14.4k requests/day window utc", "14.4k requests/86401s",
              "1M tokens/day window utc", "1M tokens/86401s"]),
            ("acme/a-model", ["10 requests/min", "10k tokens/min"]),
        ],
    )  # fmt: skip
    def test_a_model_s_limits_else_its_provider_s_else_10_rpm_and_10k_tpm(self, name, rates):
        most = PROVIDERS[name.partition("/")[0]]
        assert quotas(limiter_of(), name) == [*rates, f"{most} concurrency"]

    def test_its_three_sections_alone_are_enough(self, tmp_path):
        text = LIMITS.read_text()
        assert text.index("\ndefaults:") < text.index("\nconcurrency:") < text.index("\nsettings:")
        plain = tmp_path / "limits.yaml"
        plain.write_text(text.partition("\n# Two settings")[0])
        limiter = paceline.Limiter(**load_arguments(plain, {}))
        assert quotas(limiter, "groq/x") == quotas(limiter_of(), "groq/x")
        assert limiter.pacer.settings.acquire_timeout_s == 300

    def test_a_day_stays_a_day_where_the_limits_of_a_minute_are_multiplied(self):
        limiter = program.limiter_of(program.parse(["--speed", "10"]))
        assert quotas(limiter, "google/gemini-3.8-flash")[:3] == [
            "3k requests/min", "10M tokens/min", "10k requests/day window America/Los_Angeles",
        ]  # fmt: skip


AS_ASKED = """
defaults:
  openai:
    gpt-6.1-sol:   {rpm: 500, tpm: 30000}
    default: {rpm: 500, tpm: 30000}
  anthropic:
    default: {rpm: 50, tpm: 30000}
  google:
    default: {rpm: 60, tpm: 60000, rpd: 1500}
  azure:
    default: {rpm: 60, tpm: 60000}
  groq:
    default: {rpm: 30, tpm: 6000, rpd: 14400, tpd: 500000}
  default:   {rpm: 10, tpm: 10000}
concurrency:
  openai: 10
  anthropic: 5
  google: 10
  azure: 10
  groq: 5
  default: 3
settings:
  acquire_timeout: 300
  token_estimate_buffer: 1.1
  min_request_interval_ms: 50
  update_from_headers: true
"""


class TestTheFileThatWasAskedFor:
    """Its sections and keys, and nothing else."""

    @pytest.fixture
    def limiter(self, tmp_path):
        file = tmp_path / "rate_limits.yaml"
        file.write_text(AS_ASKED)
        return paceline.Limiter.load(file, clock=ManualClock())

    def test_settings(self, limiter):
        resolved = limiter.limits.resolve("openai/gpt-6.1-sol")
        assert (limiter.pacer.settings.acquire_timeout_s, resolved.interval_s, resolved.learns) == (300, 0.05, "up")
        asked = {"model": "gpt-6.1-sol", "input": "The committee asked for three reports, each with numbers. " * 40}
        plain = paceline.Limiter({"openai/gpt-6.1-sol": "9 requests/min"}, estimate_factor=1.0)
        own, other = (one.estimate("openai/gpt-6.1-sol", asked)["input_tokens"] for one in (limiter, plain))
        assert own == pytest.approx(1.1 * other, abs=2)

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("openai/gpt-6.1-sol", ["500 requests/min", "30k tokens/min", "10 concurrency"]),
            ("openai/gpt-6-luna", ["500 requests/min", "30k tokens/min", "10 concurrency"]),
            ("anthropic/claude-opus-4-1", ["50 requests/min", "30k tokens/min", "5 concurrency"]),
            ("google/gemini-3.5-flash-lite",
             ["60 requests/min", "60k tokens/min", "1.5k requests/day window America/Los_Angeles", "10 concurrency"]),
            ("groq/openai/gpt-oss-120b",
             ["30 requests/min", "6k tokens/min", "14.4k requests/day window utc", "14.4k requests/86401s",
              "500k tokens/day window utc", "500k tokens/86401s", "5 concurrency"]),
            ("newcomer/model-1", ["10 requests/min", "10k tokens/min", "3 concurrency"]),
        ],
    )  # fmt: skip
    def test_each_model_its_provider_s_default_or_the_default_of_all(self, limiter, name, expected):
        assert quotas(limiter, name) == expected

    def test_50_ms_between_two_requests_to_a_provider(self, limiter):
        assert limiter.try_acquire("openai/gpt-6.1-sol")
        later = limiter.try_acquire("openai/gpt-6-luna")
        assert (later.retry_after_s, later.quota) == (0.05, "1 requests/0.05s exact of openai/spacing")
        assert limiter.try_acquire("groq/x")


SAMPLES = {
    "openai/gpt-6.1-sol": (
        {
            "x-ratelimit-limit-requests": "500", "x-ratelimit-limit-tokens": "30000",
            "x-ratelimit-remaining-requests": "499", "x-ratelimit-remaining-tokens": "29500",
            "x-ratelimit-reset-requests": "120ms", "x-ratelimit-reset-tokens": "1s",
        },
        {"rpm": (500, 499), "tpm": (30_000, 29_500)},
    ),
    "anthropic/claude-haiku-5-5": (
        {
            "anthropic-ratelimit-requests-limit": "60", "anthropic-ratelimit-requests-remaining": "40",
            "anthropic-ratelimit-requests-reset": "2027-03-20T12:00:20Z",
            "anthropic-ratelimit-tokens-limit": "40000", "anthropic-ratelimit-tokens-remaining": "35000",
            "anthropic-ratelimit-tokens-reset": "2027-03-20T12:00:08Z",
        },
        {"rpm": (60, 40), "tpm": (40_000, 35_000)},
    ),
    "google/gemini-3.8-flash": (
        {"x-ratelimit-limit": "50", "x-ratelimit-remaining": "44", "x-ratelimit-reset": "7"},
        {"rpm": (50, 44)},
    ),
    "azure/gpt-6-astra": (
        {
            "x-ratelimit-limit-requests": "60", "x-ratelimit-limit-tokens": "60000",
            "x-ratelimit-remaining-requests": "59", "x-ratelimit-remaining-tokens": "51000",
        },
        {"rpm": (60, 59), "tpm": (60_000, 51_000)},
    ),
    "groq/openai/gpt-oss-120b": (
        {
            "x-ratelimit-limit-requests": "14400", "x-ratelimit-limit-tokens": "18000",
            "x-ratelimit-remaining-requests": "14370", "x-ratelimit-remaining-tokens": "17997",
            "x-ratelimit-reset-requests": "2m59.56s", "x-ratelimit-reset-tokens": "7.66ms",
        },
        {"rpd": (14_400, 14_370), "tpm": (18_000, 17_900)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("observed", [False, True], ids=["settle", "observe"])
@pytest.mark.parametrize("name", SAMPLES)
def test_headers_of_an_answer_that_are_handed_over_by_hand(tmp_path, name, observed):
    """``release(permit, response_headers)``: the limits and what remains follow the answer."""
    file = tmp_path / "rate_limits.yaml"
    file.write_text(AS_ASKED)
    limiter = paceline.Limiter.load(file, clock=ManualClock(NOON), headroom_s=0)
    headers, expected = SAMPLES[name]
    permit = limiter.try_acquire(name, input_tokens=80, output_tokens=20)
    if observed:
        limiter.observe(name, headers)
    permit.settle({"input_tokens": 75, "output_tokens": 20}, headers=None if observed else headers)
    metrics = limiter.status()["pools"][limiter.pacer.pools.scheduler(name).pool.name]["metrics"]
    held = {quota: (metrics[f"{quota}_limit"], metrics[f"{quota}_remaining"]) for quota in expected}
    assert {quota: limit for quota, (limit, _) in held.items()} == {
        quota: limit for quota, (limit, _) in expected.items()
    }
    for quota, (limit, remaining) in expected.items():
        least = remaining if not observed else 0  # without its permit, an answer only lowers a level
        assert least - 0.01 * limit <= held[quota][1] <= remaining + 0.01 * limit


@pytest.mark.parametrize(("provider", "most"), PROVIDERS.items())
def test_in_flight_at_a_provider_over_all_its_models(provider, most):
    async def main(clock):
        limiter = limiter_of(clock, limits={f"{provider}/*": "60k requests/min"})
        now, peak = 0, 0

        async def call(model):
            nonlocal now, peak
            async with limiter.acquire(f"{provider}/{model}"):
                now += 1
                peak = max(peak, now)
                await asyncio.sleep(1)
                now -= 1

        await asyncio.gather(*(call(f"model-{number % 3}") for number in range(60)))
        return peak

    assert run_virtual(main) == most


class TestTimeout:
    def test_after_300_s_a_typed_error(self):
        """Ten requests a minute for a hundred callers: those who cannot have their turn in 300 s are told."""

        async def main(clock):
            limiter, start_ns = limiter_of(clock), clock.now_ns()
            refused = []

            async def call():
                try:
                    async with limiter.acquire("acme/x", input_tokens=10) as permit:
                        permit.settle(input_tokens=10)
                except paceline.AcquireTimeoutError as error:
                    refused.append(error)
                return (clock.now_ns() - start_ns) / NS

            times = await asyncio.gather(*(call() for _ in range(100)))
            return times, refused

        times, refused = run_virtual(main)
        assert max(times) <= 300
        assert 30 < len(refused) < 50
        assert {(error.pool, error.quota) for error in refused} == {("acme/x", "10 requests/min")}
        assert all(isinstance(error, TimeoutError) and error.retry_after_s >= 0 for error in refused)

    def test_a_sdk_is_told_as_by_a_429(self):
        """The drop-in client: what was ours is in the header, and nothing was sent."""

        async def main(clock):
            limiter = limiter_of(clock, limits={"groq/x": "1 requests/hour"})
            sent = []

            def answer(request):
                sent.append(request)
                return httpx2.Response(200, json={"usage": {"prompt_tokens": 9, "completion_tokens": 1}})

            async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="http://groq") as http:
                limiter.attach(http, provider="groq")
                body = {"model": "x", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 5}
                said = [await http.post("/openai/v1/chat/completions", json=body) for _ in range(2)]
            return [(answer.status_code, answer.headers.get("x-paceline")) for answer in said], len(sent)

        assert run_virtual(main) == ([(200, None), (429, "timeout")], 1)


class Outage(httpx2.AsyncBaseTransport):
    """The host ``down`` answers 503 in the first 30 s; notes when each request came."""

    def __init__(self, clock):
        self.clock, self.start_ns, self.times = clock, clock.now_ns(), []

    async def handle_async_request(self, request):
        at_s = round((self.clock.now_ns() - self.start_ns) / NS, 1)
        self.times.append((request.url.host, at_s))
        await asyncio.sleep(0.1)
        return httpx2.Response(
            503 if request.url.host == "down" and at_s < 30 else 200, json={"choices": [{"text": "x"}]}
        )


@pytest.mark.parametrize(
    ("first_s", "expected", "end_s"),
    [(60, [], 60.5), (1, [1.3, 3.4, 7.5, 15.6], 31.7)],
    ids=["as asked for", "default"],
)
def test_a_breaker_for_each_host_five_failures_then_one_probe_at_a_time(first_s, expected, end_s):
    """60 s, then one probe; by default after 1, 2, 4 and 8 s."""

    async def main(clock):
        breaker = {"first_pause_s": first_s}
        limiter = limiter_of(clock, concurrency={"openai": 20}, retry={"jitter": 0}, breaker=breaker)
        transport = Outage(clock)
        body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 5}

        async def call(provider, model):
            host = "down" if provider == "openai" else "up"
            async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
                limiter.attach(http, provider=provider)
                return (await http.post("/v1/chat/completions", json=body | {"model": model})).status_code

        calls = [call("openai", "gpt-6.1-sol") for _ in range(8)]
        calls += [call("groq", "x") for _ in range(3)]
        answers = await asyncio.gather(*calls)
        return answers, transport.times

    answers, times = run_virtual(main)
    assert answers == [200] * 11
    down = [at_s for host, at_s in times if host == "down"]
    before, probes, after = ([at for at in down if low <= at < high] for low, high in ((0, 1), (1, 30), (30, 100)))
    assert 5 <= len(before) <= 8  # the five, and those that were on the way
    assert probes == pytest.approx(expected, abs=0.3)  # each one alone
    assert after[0] == pytest.approx(end_s, abs=0.3)
    assert after[1] >= after[0] + 0.1
    assert max(at_s for host, at_s in times if host == "up") < 1  # no other host waits


class TestStatus:
    def test_the_table_at_the_end(self):
        status = {
            "pools": {
                "openai/gpt-6.1-sol": {
                    "counts": {"settled": 3, "refused_rate": 2, "refused_capacity": 1},
                    "wait_s": {"mean": 1.25, "longest": 9.0},
                    "estimates": {"input_tokens": {"ratio": 1.0625}, "tokens": {"ratio": 1.5}},
                },
                "openai/in flight": {"counts": {"settled": 3}, "wait_s": {}, "estimates": {}},
            }
        }
        _, row = table.table(
            status, {"openai/gpt-6.1-sol": 12.0}, {"openai/gpt-6.1-sol": "10 concurrency"}
        ).splitlines()
        assert row.split() == [
            "openai/gpt-6.1-sol",
            "3",
            "2",
            "1.2",
            "s",
            "9.0",
            "s",
            "1.062",
            "12",
            "s",
            "10",
            "concurrency",
        ]


# --- a day's use over a restart --------------------------------------------------------------------------------------

SPEND = f"""
import paceline, sys, time
from paceline.config import load_arguments
limiter = paceline.Limiter(**load_arguments({str(LIMITS)!r}, {{}}, store="sqlite:" + sys.argv[1]))
for _ in range(10):
    permit = limiter.acquire("groq/openai/gpt-oss-120b", input_tokens=400, output_tokens=100).wait()
    permit.settle(input_tokens=400, output_tokens=50)
permits = [limiter.acquire("groq/openai/gpt-oss-120b", input_tokens=1000).wait() for _ in range(3)]
print("spent", flush=True)
if sys.argv[2:]:
    time.sleep(60)
limiter.close()
"""


def spend(state, *, kill):
    command = [sys.executable, "-c", SPEND, str(state), *(["wait"] if kill else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        if kill:
            process.kill()
        said = line, process.stderr.read()
    assert said == ("spent\n", "")
    assert (process.returncode == 0) != kill


@pytest.mark.long("starts several processes")
@pytest.mark.parametrize("kill", [False, True], ids=["ended", "killed"])
def test_a_day_s_use_survives_a_restart(tmp_path, kill):
    """A whole process with 13 requests, three of them in flight when it ends; killed, it cannot even say goodbye."""
    state = tmp_path / "acm.db"
    spend(state, kill=kill)
    limiter = paceline.Limiter(**load_arguments(LIMITS, {}, store=f"sqlite:{state}"))
    plan.Plan(2, 0.5, 0.004).forecast(limiter, {})  # it asks how the books stand
    pools = limiter.status()["pools"]
    used = {
        quota["quota"]: quota["limit"] - quota["remaining"] for quota in pools["groq/openai/gpt-oss-120b"]["quotas"]
    }
    assert 10 < used["14.4k requests/day window utc"] <= 13  # one comes back each six seconds
    assert (
        7_000 < used["1M tokens/day window utc"] <= (8_000 if kill else 7_500)
    )  # killed, it may not have told all refunds
    assert any(line.startswith("groq/openai/gpt-oss-120b: 1") for line in table.used_today(limiter.status()))
    limiter.close()


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--documents", "0"], "--documents is 0: it must be from 1 to 10000"),
        (["--speed", "200"], "--speed is 200: it must be from 0.1 to 100"),
        (["--outsider", "1"], "--outsider is 1: it must be from 0 to below 1"),
        (["--enforce", "gpt-4=5 requests/min"], "--enforce gpt-4: write MODEL=LIMITS; models: claude-haiku-5-5, "),
        (["--live", "--speed", "2"], "--live cannot be combined with --speed"),
        (["--live"], "--live needs OPENAI_API_KEY, ANTHROPIC_API_KEY"),
    ],
)
def test_what_cannot_be_meant_is_said(words, said, capsys, monkeypatch):
    for key in clients.KEYS.values():
        monkeypatch.delenv(key, raising=False)
    with pytest.raises(SystemExit):
        program.parse(words)
    assert said in capsys.readouterr().err


def test_without_a_file_the_plan_s_defaults_hold(tmp_path, capsys):
    limiter = program.limiter_of(program.parse(["--limits", str(tmp_path / "limits.yml"), "--speed", "2"]))
    assert [str(quota) for quota in limiter.limits.given["openai/gpt-6.1-sol"]] == [
        "1k requests/min",
        "300k tokens/min",
    ]
    assert "limits.yml: no such file: the limits are those of defaults.yaml" in capsys.readouterr().err
    limiter = paceline.Limiter.load(program.DEFAULTS)
    metrics = {name: limiter.pacer.pools.scheduler(name).status()["metrics"] for name in ("groq/new", "mistral/new")}
    assert [(each["rpm_limit"], each["tpm_limit"]) for each in metrics.values()] == [(30, 6_000), (10, 10_000)]


def test_a_file_that_cannot_be_meant_ends_the_program(tmp_path, capsys, monkeypatch):
    bad = tmp_path / "limits.yaml"
    bad.write_text("defaults:\n  openai:\n    gpt-6.1-sol: {tmp: 5}\n")
    monkeypatch.setattr(sys, "argv", ["run.py", "--limits", str(bad)])
    assert program.main() == 2
    said = capsys.readouterr().err
    assert "limits.yaml:3: defaults: openai: gpt-6.1-sol: tmp: no such setting; did you mean 'tpm'?" in said
