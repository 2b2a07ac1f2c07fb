"""The paper pipeline, every promise of it: real machines, real litellm, over HTTP to the emulator."""

import asyncio
import subprocess
import sys

import pytest
import yaml
from flatmachines import FlatMachine, HooksRegistry
from pipeline import PHASES
from report import Waits, seen_by_limiter, table
from run import HIGH, LANES, LIMITS, LOW, limiter, parse, run

import paceline
from conftest import EXAMPLE, WIDE
from paceline.integrations.flatmachines import PacelineHooks

pytestmark = pytest.mark.filterwarnings("ignore::flatmachines.validation.ValidationWarning", "ignore::RuntimeWarning")

PAPER = {"title": "T", "abstract": "a few words", "revisions": 1}
CALLS = {"arcee": 5, "pony": 3}
"""Of a paper with one revision."""


def wide(**options):
    return paceline.Limiter(WIDE, lanes=LANES, **options)


class Visits(PacelineHooks):
    """Counts the states that are entered, and the names of the errors that led to them."""

    def __init__(self, **options):
        super().__init__(PHASES, **options)
        self.states, self.errors = [], []

    async def on_state_enter(self, state_name, context):
        self.states.append(state_name)
        if "last_error_type" in context:
            self.errors.append(context.pop("last_error_type"))
        return await super().on_state_enter(state_name, context)


async def one_paper(pace, hooks=None, max_steps=30):
    registry = HooksRegistry()
    hooks = hooks or PacelineHooks(PHASES)
    registry.register("lanes", lambda: hooks)
    machine = FlatMachine(config_file=str(EXAMPLE / "paper.yml"), hooks_registry=registry)
    with paceline.instrument(pace):
        return await machine.execute(PAPER, max_steps=max_steps)


def admitted(world):
    return {model: pool["admitted"] for model, pool in world.tally()["pools"].items()}


# --- the target ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcome():
    """A minute of 20 seconds, in real time, so bounds are wide; exact rates: in virtual time, ``test_paper_pipeline_phases.py``."""
    waits = Waits()
    pipeline, meter = asyncio.run(run(parse(["--minutes", "4", "--speed", "3", "--workers", "150"]), waits))
    return pipeline, meter, waits.by_lane


def test_zero_429s(outcome):
    pipeline, meter, _ = outcome
    assert meter.refused() == {"rate": 0, "capacity": 0}
    assert pipeline.lost == {}


def test_the_buffer_of_prepared_papers_stays_between_its_watermarks(outcome):
    _, meter, _ = outcome
    least, most = meter.buffered(meter.running_s(2))
    assert LOW - 2 <= least <= most <= HIGH  # those that leave while the next ones enter


def test_the_table_says_so(outcome):
    pipeline, meter, waits = outcome
    text = table(pipeline, meter, waits)
    for word in (
        "refused (rate, 429)",
        "refused (capacity, 503)",
        "papers in buffer",
        "pony  calls/min",
        "of 100",
        "arcee calls/min",
        "papers/min",
        "mean wait",
        "longest",
    ):
        assert word in text


# --- one bucket for all, and the order -----------------------------------------------------------------------


async def test_one_paper_and_its_lanes(world):
    waits = Waits()
    result = await one_paper(wide(events=waits))
    assert result["text"]
    assert admitted(world) == CALLS
    assert {lane: len(them) for lane, them in waits.by_lane.items()} == {"prep": 1, "expensive": 3, "wrap": 4}


@pytest.mark.parametrize("revisions", [0, 1, 2])
async def test_wrap_is_about_four_calls(world, revisions, monkeypatch):
    monkeypatch.setitem(PAPER, "revisions", revisions)
    await one_paper(wide())
    assert admitted(world) == {"arcee": 1 + 3 + revisions, "pony": 3}


# --- errors ------------------------------------------------------------------------------------------------------------

NEVER_AGAIN = paceline.RetryPolicy(max_attempts=1)


ERRORS = {
    "503": "ServiceUnavailableError",
    "529": "ServiceUnavailableError",
    "growth": "RateLimitError",
    "500": "InternalServerError",
    "drop": "InternalServerError",
}


@pytest.mark.parametrize("fault", ERRORS)
async def test_one_attempt_per_call_when_the_limiter_does_not_retry(world, fault):
    world.reset(faults={fault: 1.0})
    hooks, pace = Visits(), wide(retry=NEVER_AGAIN, breaker=None)
    await one_paper(pace, hooks, max_steps=4)
    assert hooks.states == ["prep"] * 4
    assert hooks.errors == [ERRORS[fault]] * 3
    assert pace.status()["pools"]["127.0.0.1/arcee"]["counts"]["granted"] == 4


class Healed(Visits):
    """Opens the world when a state is entered again."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    async def on_state_enter(self, state_name, context):
        if self.states and self.states[-1] == state_name:
            self.world.reset(limits=WIDE)
        return await super().on_state_enter(state_name, context)


async def test_a_rate_limit_returns_the_work_to_its_state(world):
    """A refusal that the limiter does not try again itself, from a provider that says neither limit nor wait."""
    limits = {"arcee": "1 requests/20min", "pony": WIDE["pony"]}
    world.reset(limits=limits, headers=False, body_numbers=False)
    hooks, pace = Healed(world), wide(retry=NEVER_AGAIN, breaker=None)
    result = await one_paper(pace, hooks)
    assert hooks.states == ["prep", "expensive", "wrap", "wrap", "wrap_check", "wrap_revision", "wrap_title"]
    assert result["text"]
    assert hooks.errors == ["RateLimitError"]
    assert pace.status()["pools"]["127.0.0.1/arcee"]["counts"]["refused_rate"] == 1


async def test_a_timeout_returns_the_work_to_its_state(world, monkeypatch, tmp_path):
    for name in ("paper.yml", "review.yml", "profiles.yml"):
        text = (EXAMPLE / name).read_text().replace("max_retries: 0", "max_retries: 0, timeout: 0.2")
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys.modules[__name__], "EXAMPLE", tmp_path)
    world.reset(latency_s=1)
    hooks = Visits()
    await one_paper(wide(breaker=None), hooks, max_steps=3)
    assert hooks.states == ["prep"] * 3
    assert hooks.errors == ["Timeout"] * 2


@pytest.mark.parametrize(
    ("trouble", "states", "error"),
    [
        ({"valid_key": "another"}, ["prep"], "AuthenticationError"),
        # no such model: pony; the parent's ``on_error`` does not hear of it, and the machine looks into the results
        ({"limits": {"arcee": WIDE["arcee"]}}, ["prep", "expensive"], "pony"),
    ],
    ids=["at first", "in parallel"],
)
async def test_what_no_time_heals_is_given_up(world, trouble, states, error):
    world.reset(**trouble)
    hooks = Visits()
    result = await one_paper(wide(), hooks)
    assert hooks.states == states
    assert error in result["error"]


async def test_no_work_is_lost_when_the_provider_stumbles(world):
    world.reset(faults={"503": 0.1, "500": 0.05, "drop": 0.05}, seed=3)
    pace = wide(retry=paceline.RetryPolicy(faults=True, backoff_s=0.02, backoff_max_s=0.1))
    results = await asyncio.gather(*[one_paper(pace) for _ in range(20)])
    assert all(result.get("text") for result in results)


# --- the start, and the old way -----------------------------------------------------------------------------------------


async def test_a_conservative_start_until_an_answer_tells_the_rate(world):
    world.reset(limits={model: f"{limit} requests/min" for model, limit in LIMITS.items()})
    pace = limiter(1, first_speed=True)
    before = {model: pace.pacer.pools.scheduler(model).status()["quotas"][0]["limit"] for model in LIMITS}
    await one_paper(pace)
    after = {model: pace.status()["pools"][f"127.0.0.1/{model}"]["quotas"][0] for model in LIMITS}
    assert before == {"arcee": 180, "pony": 90}  # 3/s and 1.5/s
    assert {model: quota["limit"] for model, quota in after.items()} == LIMITS
    assert {quota["source"] for quota in after.values()} == {"learned"}


async def test_without_paceline_they_drown():
    """At a speed at which any machine asks for more than is allowed, and without the full bucket of the first minute."""
    options = parse(["--without", "--speed", "2", "--minutes", "0.4", "--workers", "40"])
    pipeline, meter = await run(options, start_level=0.05)
    assert pipeline.hooks is None
    assert meter.refused()["rate"] > 20
    assert all(
        isinstance(state.get("execution"), dict) for state in pipeline._changes["states"].values() if "agent" in state
    )


def test_the_command():
    command = [sys.executable, str(EXAMPLE / "run.py"), "--speed", "20", "--minutes", "1", "--workers", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "refused (rate, 429)              0\n" in done.stdout


def test_every_state_that_calls_has_a_lane():
    states = yaml.safe_load((EXAMPLE / "paper.yml").read_text())["data"]["states"]
    asking = {name for name, state in states.items() if "agent" in state or "machine" in state}
    assert asking == set(PHASES)
    assert all(states[name]["hooks"] == "lanes" for name in asking)


async def test_live_reads_the_limiters_own_books(world):
    pace = wide()
    await one_paper(pace)
    assert seen_by_limiter(pace) == CALLS


async def test_live_counts_each_kind_of_refusal_apart(world):
    world.reset(faults={"503": 1.0})
    pace = wide(retry=NEVER_AGAIN, breaker=None)
    await one_paper(pace, max_steps=2)
    world.reset(faults={"growth": 1.0})
    await one_paper(pace, max_steps=1)
    assert seen_by_limiter(pace) == {"refused_capacity": 2, "refused_growth": 1, "arcee": 0, "pony": 0}


@pytest.mark.parametrize("words", [["--speed", "7"], ["--live"], ["--live", "--without"], ["--live", "--speed", "2"]])
def test_options_that_cannot_be_meant(words, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(SystemExit):
        parse(words)
