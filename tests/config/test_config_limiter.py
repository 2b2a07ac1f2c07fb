"""What settings do to a limiter, in virtual time."""

import asyncio
from pathlib import Path

import pytest
from config_helpers import load_limiter

import paceline
from paceline import Limiter
from paceline.config import Config
from paceline.core.quota import NS
from paceline.core.results import AcquireTimeoutError, Reading, SettingsError
from paceline.stores import open_store
from paceline.testing import ManualClock
from virtual_time import virtual

MODEL = ("openai", "gpt-5", "chat")


def limiter_of(clock, patient=False, **said):
    return Limiter(**Config().having(said, "test").arguments(patient=patient), clock=clock)


def seconds(clock, since_ns):
    return (clock.now_ns() - since_ns) / NS


class TestTimeout:
    @virtual
    async def test_it_is_the_default_and_no_more(self, clock):
        limiter = limiter_of(clock, limits={"jobs": "1 requests/hour"}, acquire_timeout_s=300)
        await limiter.acquire("jobs")
        with pytest.raises(AcquireTimeoutError):
            await limiter.acquire("jobs", requests=0.5)
        start_ns = clock.now_ns()
        await limiter.acquire("jobs", timeout=float("inf"))
        assert 300 < seconds(clock, start_ns) <= 3_601

    @virtual
    async def test_a_batch_has_time(self, clock):
        limiter = limiter_of(clock, patient=True, limits={"jobs": "1 requests/hour"}, acquire_timeout_s=300)
        for _ in range(3):
            await limiter.acquire("jobs")


@pytest.mark.parametrize(("settings", "period_s", "limit"), [
    ({"learn": "up"}, 60.0, 700),
    ({"learn": True}, 60.0, 500),
    ({"learn": False}, 60.0, 500),
    ({"learn": "up", "min_interval_s": 0.05}, None, 700),  # it leaves clear which quota a header without a period means
])  # fmt: skip
def test_headers_change_limits_only_if_they_may(settings, period_s, limit):
    limiter = limiter_of(ManualClock(), limits={"openai/gpt-5": {"rpm": 500}}, **settings)
    permit = limiter.acquire("openai/gpt-5").wait()
    stated = Reading("requests", 700.0, 699.0, None, period_s)
    limiter.pacer.pools.scheduler("openai/gpt-5").observe([stated], permit.reservation)
    (quota,) = limiter.status()["pools"]["openai/gpt-5"]["quotas"]
    assert quota["limit"] == limit


def test_the_factor_of_estimates_is_the_margin_until_and_after_learning():
    limiter = limiter_of(ManualClock(), estimate_factor=1.5)
    lessons = limiter.pacer.calibrations.of(*MODEL)
    assert lessons.input.apply(1_000) == 1_500
    for _ in range(200):
        lessons.learn(input_estimate=1_000, input_tokens=500, max_output_tokens=100, output_tokens=10)
    assert limiter.pacer.calibrations.of(*MODEL) is lessons
    assert lessons.input.apply(1_000) == pytest.approx(750, rel=0.01)


def test_a_batch_is_patient_unless_told_otherwise():
    said = {"retry": {"backoff_s": 2, "max_elapsed_s": 50}, "max_attempts": 3}
    retry = limiter_of(ManualClock(), patient=True, **said).pacer.retry
    assert (retry.max_attempts, retry.backoff_s, retry.max_elapsed_s, retry.faults) == (3, 2, 50, True)
    retry = limiter_of(ManualClock(), **said).pacer.retry
    assert (retry.max_attempts, retry.faults, retry.max_retry_after_s) == (3, False, 300)


def test_a_breaker_is_off_or_as_it_is_set():
    assert limiter_of(ManualClock(), breaker=False).pacer.health.policy is None
    assert limiter_of(ManualClock(), breaker={"failures": 2}).pacer.health.policy == paceline.BreakerPolicy(2, 60.0)


def test_a_store_is_opened_for_a_program_and_chosen_by_a_batch(tmp_path):
    said = {"store": f"sqlite:{tmp_path}/s.db", "limits": {"jobs": "1 requests/day"}}
    program = limiter_of(paceline.limiter.limiter.SYSTEM_CLOCK, **said)
    assert program.acquire("jobs").wait()
    assert program.status()["pools"]["jobs"]["store"]["state"] == "joined"
    program.close()
    assert "store" not in limiter_of(ManualClock(), patient=True, **said).pacer.pools.scheduler("jobs").status()


def test_a_tier_without_a_provider_is_that_of_the_only_one_the_limits_name(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("tier = 5\n[limits]\n'openai/gpt-5.1' = '100 requests/min'\n")
    tier_5 = paceline.Limiter.for_provider("openai", tier=5).limits.resolve("gpt-5-mini")
    resolved = paceline.Limiter.load(file).limits.resolve("openai/gpt-5-mini")
    assert (resolved.quotas, resolved.sources) == (tier_5.quotas, tier_5.sources)
    with pytest.raises(SettingsError, match="tier '99' of openai is unknown"):
        paceline.Limiter.load(file, tier=99)


@virtual
async def test_the_documentation_describes_the_pools_of_settings(clock):
    """Their names, and that who waits there is in flight in its model's pool."""
    text = (Path(__file__).parents[2] / "docs" / "status.md").read_text()
    limits = {"openai/*": "300 requests/min"}
    limiter = limiter_of(clock, limits=limits, concurrency={"openai": 2}, min_interval_s=5)
    async with limiter.acquire("openai/gpt-5"):
        waiting = asyncio.create_task(limiter.acquire("openai/gpt-5").__aenter__())
        await asyncio.sleep(1)
        pools = limiter.status()["pools"]
        (await waiting).settle()
    spacing = pools["openai/spacing"]
    assert (spacing["waiting"], pools["openai/gpt-5"]["waiting"], pools["openai/gpt-5"]["in_flight"]) == (1, 0, 2)
    assert set(pools) == {"openai/gpt-5", "openai/in flight", "openai/spacing"}
    assert [name for name in pools if f"`{name}`" not in text] == ["openai/gpt-5"]


@pytest.mark.parametrize("share", [0, -1, 1.01, "much", True, float("nan")])
def test_what_is_no_share(share):
    with pytest.raises(SettingsError, match=r"usable: .*: it must be a share from 0.001 to 1"):
        limiter_of(ManualClock(), usable=share)
    with pytest.raises(SettingsError, match=r"usable is .*: it must be a share from 0.001 to 1"):
        Limiter(usable=share)


def test_a_usable_share_is_in_the_status_beside_the_part_of_the_limit():
    limiter = limiter_of(ManualClock(), limits={"openai/m": "30k tokens/min"}, usable=0.85)
    (quota,) = limiter.status()["pools"]["openai/m"]["quotas"]
    assert (quota["quota"], quota["limit"], quota["usable"]) == ("25.5k tokens/min", 25_500, 0.85)


FILE = """
provider = "openai"
acquire_timeout_s = 300
[limits]
"gpt-5" = "500 requests/min"
"gpt-5-mini" = "500 requests/min"
[concurrency]
openai = 10
default = 3
"""


def quotas(limiter, name):
    return [str(quota) for quota in limiter.limits.resolve(name).quotas]


class TestGiven:
    """What a program passes when it loads its limiter beats the environment and the file."""

    def test_limits_and_slots_are_added_entry_by_entry(self, write):
        given = {"limits": {"gpt-5": "7 requests/min"}, "concurrency": {"openai": 2}}
        limiter = load_limiter(write(FILE), {}, **given)
        assert quotas(limiter, "gpt-5") == ["7 requests/min", "2 concurrency"]
        assert quotas(limiter, "gpt-5-mini") == ["500 requests/min", "2 concurrency"]

    def test_a_store_itself(self, write, tmp_path):
        limiter = load_limiter(write(FILE), {}, store=open_store(f"sqlite:{tmp_path}/quotas.db"))
        limiter.acquire("gpt-5").wait().settle()
        assert limiter.status()["pools"]["openai/gpt-5"]["store"]["state"] == "joined"
        limiter.close()
        assert (tmp_path / "quotas.db").exists()

    def test_a_clock_and_a_listener(self, write):
        told = []
        clock = ManualClock()
        limiter = load_limiter(write(FILE), {}, clock=clock, events=told.append)
        assert limiter.pacer.clock is clock
        limiter.acquire("gpt-5").wait().settle()
        assert [(event.kind, event.pool) for event in told] == [
            ("acquired", "openai/gpt-5"),
            ("settled", "openai/gpt-5"),
        ]

    def test_without_a_file_they_are_the_configuration(self):
        assert quotas(load_limiter(None, {}, limits={"jobs": "5 requests/min"}), "jobs") == ["5 requests/min"]

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"teir": 2}, "the arguments: teir: no such setting; did you mean 'tier'?"),
            ({"store": "mysql://host"}, "the arguments: store: no store is called 'mysql'"),
        ],
    )
    def test_what_cannot_be_meant_is_said(self, write, given, said):
        with pytest.raises(SettingsError) as error:
            load_limiter(write(FILE), {}, **given)
        assert said in str(error.value)
