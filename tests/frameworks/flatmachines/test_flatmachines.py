"""flatmachines against the emulator: the state's name becomes the lane, wherever the state's calls are made."""

import asyncio
from itertools import pairwise

import pytest
from flatmachines import FlatMachine, HooksRegistry, MachineHooks

import paceline
from paceline.integrations.flatmachines import PacelineHooks
from waits import gone, soon

MODELS = ("openai/arcee", "openai/pony")

pytestmark = pytest.mark.filterwarnings("ignore::flatmachines.validation.ValidationWarning")


class Watched(paceline.Limiter):
    """Remembers the lane of every request, by model."""

    def __init__(self, **options):
        super().__init__(dict.fromkeys(MODELS, "6000 requests/min"), **options)
        self.lanes = []
        self._acquire_call, self.pacer.acquire_call = self.pacer.acquire_call, self.acquire_call

    def acquire_call(self, scheduler, estimate, **options):
        acquisition = self._acquire_call(scheduler, estimate, **options)
        self.lanes.append((scheduler.pool.name.removeprefix("openai/"), acquisition._waiter.lane))
        return acquisition

    @property
    def names(self):
        return [(model, lane.name) for model, lane in self.lanes]


@pytest.fixture
def limiter():
    limiter = Watched()
    with paceline.instrument(limiter):
        yield limiter


def agent(model):
    model = {"provider": "openai", "name": model, "max_tokens": 10, "max_retries": 0}
    return {"spec": "flatagent", "spec_version": "4.2.1", "data": {"name": "a", "model": model, "user": "Hi"}}


def machine(states, machines=None):
    agents = {"arcee": agent("arcee"), "pony": agent("pony")}
    data = {"name": "m", "context": {}, "agents": agents, "machines": machines or {}, "states": states}
    return {"spec": "flatmachine", "spec_version": "4.2.1", "data": data}


def chain(*states):
    """States one after the other; then the end."""
    named = {}
    for (name, state), (after, _) in pairwise([*states, ("end", {})]):
        named[name] = {**state, "transitions": [{"to": after}]}
    return {**named, "end": {"type": "final", "output": {"done": "yes"}}}


def asks(model, **more):
    return {"agent": model, **more}


async def execute(config, hooks=None, max_steps=20):
    registry = HooksRegistry()
    for name in ("lanes", "planned"):
        registry.register(name, lambda: hooks)
    registry.register("plain", MachineHooks)
    return await FlatMachine(config_dict=config, hooks_registry=registry).execute({}, max_steps=max_steps)


async def test_a_state_has_its_lane_and_the_others_none(world, limiter):
    states = chain(
        ("prep", asks("arcee", hooks="lanes")), ("wrap", asks("arcee", hooks="lanes")), ("other", asks("arcee", hooks="lanes")), ("plain", asks("arcee"))
    )  # fmt: skip
    hooks = PacelineHooks({"prep": "prep", "wrap": paceline.LaneSpec("late", 4, 1)})
    assert await execute(machine(states), hooks) == {"done": "yes"}
    assert limiter.names == [("arcee", "prep"), ("arcee", "late"), ("arcee", "default"), ("arcee", "default")]
    assert limiter.lanes[1][1] == paceline.LaneSpec("late", 4, 1)
    assert world.tally()["admitted"] == 4


async def test_a_name_alone_means_what_the_limiter_knows_of_it(world):
    limiter = Watched(lanes=[paceline.LaneSpec("wrap", 4, 2)])
    with paceline.instrument(limiter):
        await execute(machine(chain(("s", asks("arcee", hooks="lanes")))), PacelineHooks({"s": "wrap"}))
    assert [lane for _, lane in limiter.lanes] == [paceline.LaneSpec("wrap", 4, 2)]


async def test_other_hooks_beside_ours(world, limiter):
    states = chain(("prep", asks("arcee", hooks=["plain", "lanes"])))
    await execute(machine(states), PacelineHooks({"prep": "prep"}))
    assert limiter.names == [("arcee", "prep")]


CHILDREN = {
    "single": {"machine": "child"},
    "parallel": {"machine": ["child", "twin"]},
    "foreach": {"foreach": "context.items", "as": "item", "machine": "child"},
}


@pytest.mark.parametrize("how", CHILDREN)
@pytest.mark.parametrize("inner", ["plain", "named", "not named"])
async def test_machines_inside(world, limiter, how, inner):
    child_states = chain(("ask", asks("pony", **({} if inner == "plain" else {"hooks": "lanes"}))))
    child = machine(child_states)
    states = chain(
        ("expensive", {"hooks": "lanes", **CHILDREN[how]}),
        ("after", asks("arcee")),
        ("wrap", asks("arcee", hooks="lanes")),
    )
    config = machine(states, {"child": child, "twin": child})
    config["data"]["context"] = {"items": [1, 2, 3]}
    lanes = {"expensive": "expensive", "wrap": "wrap", **({"ask": "inner"} if inner == "named" else {})}
    with paceline.lane("around"):
        assert await execute(config, PacelineHooks(lanes)) == {"done": "yes"}
    count = {"single": 1, "parallel": 2, "foreach": 3}[how]
    expected = "inner" if inner == "named" else "expensive"
    assert limiter.names == [("pony", expected)] * count + [("arcee", "around"), ("arcee", "wrap")]


async def test_a_machine_inside_that_fails_leaves_nothing_behind(world, limiter):
    child = machine(chain(("ask", asks("unknown", hooks="lanes"))))
    states = {
        "start": {"machine": "child", "on_error": "after", "transitions": [{"to": "end"}]},
        **chain(("after", asks("arcee"))),
    }
    assert await execute(machine(states, {"child": child}), PacelineHooks({"ask": "inner"})) == {"done": "yes"}
    assert limiter.names == [("arcee", "default")]


async def test_a_state_that_failed_is_entered_again_in_its_lane_and_then_left(world):
    world.reset(faults={"503": 1.0})
    limiter = Watched(retry=paceline.RetryPolicy(max_attempts=1), breaker=None)
    states = {
        "prep": asks("arcee", hooks="lanes", on_error={"RetryableError": "again"}, transitions=[{"to": "end"}]),
        "again": asks("arcee", hooks="lanes", on_error={"RetryableError": "other"}, transitions=[{"to": "end"}]),
        **chain(("other", asks("arcee", hooks="lanes", on_error="end"))),
    }
    with paceline.instrument(limiter):
        await execute(machine(states), PacelineHooks({"prep": "prep", "again": "prep"}))
    assert limiter.names == [("arcee", "prep"), ("arcee", "prep"), ("arcee", "default")]


async def test_many_machines_at_once_do_not_mix(world, limiter):
    hooks = PacelineHooks({"prep": "prep", "expensive": "expensive"})
    states = chain(("prep", asks("arcee", hooks="lanes")), ("expensive", asks("pony", hooks="lanes")))
    config = machine(states)
    await asyncio.gather(*[execute(config, hooks) for _ in range(40)])
    assert sorted(limiter.names) == [("arcee", "prep")] * 40 + [("pony", "expensive")] * 40


async def test_a_machine_that_is_cancelled_leaves_its_callers_lane_alone(world, limiter):
    world.reset(latency_s=5)
    task = asyncio.create_task(
        execute(machine(chain(("prep", asks("arcee", hooks="lanes")))), PacelineHooks({"prep": "prep"}))
    )
    await soon(lambda: world.tally()["admitted"])
    await gone([task])
    assert task.cancelled()
    world.reset(latency_s=0)
    await execute(machine(chain(("plain", asks("arcee")))))
    assert limiter.names[-1] == ("arcee", "default")


# --- buffers -----------------------------------------------------------------------------------------------------------

PIPELINE = chain(
    ("prep", asks("arcee", hooks="lanes")), ("expensive", {"machine": ["child", "twin"], "hooks": "lanes"}), ("wrap", asks("arcee", hooks="lanes"))
)  # fmt: skip
CHILD = machine(chain(("prep", asks("pony", hooks="lanes"))))  # with a state of the same name


class Buffered(PacelineHooks):
    """Hooks with a buffer around prep and expensive, which note its items at every exit of a state."""

    def __init__(self, **marks):
        self.buffer, self.seen = paceline.Buffer(**marks), []
        super().__init__({}, dict.fromkeys(("prep", "expensive"), self.buffer))

    def on_state_exit(self, state_name, context, output):
        self.seen.append((state_name, self.items))
        return super().on_state_exit(state_name, context, output)

    @property
    def items(self):
        return self.buffer.status()["items"]


async def test_a_buffer_bounds_the_machines_between_two_states(world, limiter):
    hooks = Buffered(low=1, high=2)
    config = machine(PIPELINE, {"child": CHILD, "twin": CHILD})
    results = await asyncio.gather(*[execute(config, hooks) for _ in range(8)])
    assert results == [{"done": "yes"}] * 8
    assert max(items for _, items in hooks.seen) == 2
    assert [items for state, items in hooks.seen if state == "wrap"][-1] == 0
    assert hooks.buffer.status() == {"items": 0, "waiting": 0, "filling": True, "low": 1, "high": 2}


@pytest.mark.parametrize("routed", [True, False])
async def test_a_machine_that_fails_leaves_the_buffer(world, limiter, routed):
    failing = {
        "prep": asks("unknown", hooks="lanes", transitions=[{"to": "end"}], **({"on_error": "end"} if routed else {})),
        "end": {"type": "final", "output": {}},
    }
    hooks = Buffered(low=1, high=1)

    async def worker():
        for _ in range(3):
            try:
                await execute(machine(failing), hooks)
            except ValueError:  # no such agent
                assert not routed
        return await execute(machine(chain(("prep", asks("arcee", hooks="lanes")))), hooks)

    assert await asyncio.gather(worker(), worker()) == [{"done": "yes"}] * 2
    assert hooks.items == 0


async def test_a_machine_that_is_cancelled_leaves_the_buffer(world, limiter):
    world.reset(latency_s=5)
    hooks = Buffered(low=1, high=1)
    config = machine(chain(("prep", asks("arcee", hooks="lanes"))))
    tasks = [asyncio.create_task(execute(config, hooks)) for _ in range(3)]
    await soon(lambda: world.tally()["admitted"])
    await gone(tasks)
    await asyncio.sleep(0)
    assert hooks.buffer.status()["items"] == hooks.buffer.status()["waiting"] == 0


async def test_the_end_of_a_machine_gives_its_place_back(world, limiter):
    hooks = Buffered(low=1, high=1)
    config = machine(PIPELINE, {"child": CHILD, "twin": CHILD})
    config["data"]["lifecycle_hooks"] = "lanes"
    await execute(config, hooks, max_steps=1)  # ends before expensive
    assert hooks.seen == [("prep", 1)]
    assert hooks.items == 0


# --- errors under their own names ----------------------------------------------------------------------------------------

ROUTES = {
    "RateLimitError": "limited",
    "ServiceUnavailableError": "overloaded",
    "Timeout": "slow",
    "AuthenticationError": "refused",
    "default": "other",
}


def routed():
    states = {name: {"type": "final", "output": {"to": name, "type": "{{ context.last_error_type }}"}} for name in ROUTES.values()}  # fmt: skip
    ask = asks("arcee", on_error=ROUTES, transitions=[{"to": "other"}], execution={"type": "typed"})
    return {"ask": ask, **states}


@pytest.mark.parametrize(
    ("trouble", "name", "state"),
    [
        ({"faults": {"growth": 1.0}}, "RateLimitError", "limited"),
        ({"limits": {"arcee": "1 requests/hour"}, "start_level": 0.0}, "RateLimitError", "limited"),
        ({"faults": {"503": 1.0}}, "ServiceUnavailableError", "overloaded"),
        ({"faults": {"529": 1.0}}, "ServiceUnavailableError", "overloaded"),
        ({"latency_s": 5.0}, "Timeout", "slow"),
        ({"valid_key": "another"}, "AuthenticationError", "refused"),
        ({"faults": {"500": 1.0}}, "InternalServerError", "other"),
    ],
)
async def test_errors_are_routed_by_their_type(world, trouble, name, state):
    world.reset(**trouble)
    limiter = Watched(retry=paceline.RetryPolicy(max_attempts=1), breaker=None)
    config = machine(routed())
    config["data"]["agents"]["arcee"]["data"]["model"]["timeout"] = 1
    with paceline.instrument(limiter):
        assert await execute(config) == {"to": state, "type": name}


# --- the plan as its author wrote it


def as_planned(back="{{ context._retry_state }}", error="RateLimitError", execution="default"):
    """A state with one attempt, a wait for a rate limit, and the way back."""
    plain = agent("arcee")
    if execution == "default":
        del plain["data"]["model"]["max_retries"]  # the plan does not name it
    states = {
        "write": {
            "agent": "arcee",
            "execution": {"type": execution},
            "on_error": {"default": "write_failed", error: "rate_limit_wait"},
            "transitions": [{"to": "done"}],
        },
        "rate_limit_wait": {"action": "wait_for_rate_limit", "hooks": "planned", "transitions": [{"to": back}]},
        "write_failed": {"type": "final", "output": {"to": "failed", "kept": "{{ context.last_error_type }}"}},
        "done": {"type": "final", "output": {"to": "done"}},
    }
    config = machine(states)
    config["data"]["agents"]["arcee"] = plain
    return config


class Planned(MachineHooks):
    """The plan's hook: it looks for what the error kept, and waits."""

    def __init__(self, world=None):
        self.world, self.seen = world, []

    def on_action(self, action_name, context):
        self.seen.append((action_name, str(context.get("last_error")), "rate_limit" in context))
        if self.world is not None:
            self.world.reset(faults={})
        return context


async def test_type_default_is_three_requests_and_the_plans_route_is_never_taken(world):
    world.reset(faults={"429": 1.0})
    hooks = Planned()
    assert await execute(as_planned(), hooks) == {"to": "failed", "kept": "RetryableError"}
    assert hooks.seen == []
    assert world.tally()["refused_total"] == 3


async def test_of_the_limits_the_error_keeps_a_text_alone(world):
    """The plan's first question: its bucket cannot learn its rate from an error."""
    world.reset(faults={"429": 1.0})
    hooks = Planned()
    await execute(as_planned(error="RetryableError"), hooks)
    [(action, error, windows)] = hooks.seen
    assert (action, windows) == ("wait_for_rate_limit", False)
    assert error.startswith("RateLimitError: litellm.RateLimitError")


async def test_a_state_in_the_context_is_no_transition_and_the_paper_is_lost(world):
    """The plan's second question: the text is not rendered, and the machine ends without a result or an error."""
    world.reset(faults={"429": 1.0})
    assert await execute(as_planned(error="RetryableError"), Planned(world)) == {}


async def test_written_so_the_work_returns_to_its_state(world):
    """Typed errors, and the state's own name."""
    world.reset(faults={"growth": 1.0})
    hooks = Planned(world)
    pace = paceline.Limiter({"*": "6000 requests/min"}, retry=paceline.RetryPolicy(max_attempts=1, max_refused=1))
    with paceline.instrument(pace, provider="openai"):
        assert await execute(as_planned("write", execution="typed"), hooks) == {"to": "done"}
    assert len(hooks.seen) == 1


async def test_over_a_limiter_the_plan_as_it_is_meets_no_error(world):
    """One line, and not one in the machine."""
    world.reset(limits={"arcee": "40 requests/2s", "pony": "40 requests/2s"})
    hooks = Planned()
    with paceline.instrument(paceline.Limiter({"arcee": "40 requests/2s"}), provider="openai"):
        results = await asyncio.gather(*[execute(as_planned(), hooks) for _ in range(80)])
    assert results == [{"to": "done"}] * 80
    assert hooks.seen == []
    assert world.tally()["refused_total"] <= 1  # in real time, on a machine that may be busy
