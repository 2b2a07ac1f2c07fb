"""Stores that come and go, processes that start late, are idle, are cut off or die: nothing is overspent, nothing lost."""

import random

import pytest
from tests.simulation.fleet import BLIND, Fleet

from grids import WORLD, sampled

pytestmark = WORLD

QUOTA = "600 requests/min"
RULES = {"bucket": "", "window": " window utc", "sliding": " sliding"}
FOR_GOOD_S = 9_999


def hub_of(rule, settings, **options):
    settings = {"limits": {"m": QUOTA}, "rule": rule, "latency_s": 0.5, "jitter": 0.3, **settings}
    options = {"hosts": 8, "workers": 100, "jobs": 1_600, "output": 10, **options}
    store = {"away": options.pop("away", ()), **options.pop("store", {})}
    return Fleet(QUOTA + RULES[rule], settings, capacity=options.pop("capacity", {}), store=store, **options)


def cut(hub, *numbers):
    """Some processes do not reach the store from 20 s to 80 s."""
    for number in numbers:
        hub.sim.store.cut[f"p{number}"] = ((20, 80),)
    return hub


def one_after_another(*args):
    hub = hub_of(*args, away=[(4, 60)])
    for n, host in enumerate(hub.hosts):
        host.active = ((n * 0.05, n * 0.05 + 0.051), (5, FOR_GOOD_S))
    return hub


def each_used_alone(*args):
    hub = hub_of(*args, hosts=4, away=[(65, 140)])
    for n, host in enumerate(hub.hosts):
        host.active = ((16 * n, 16 * n + 2), (66, FOR_GOOD_S))
    return hub


def joining_while_it_comes_and_goes(*args):
    hub = hub_of(*args, away=[(3.3 * n + 1.3, 3.3 * n + 3.3) for n in range(40)])
    for n, host in enumerate(hub.hosts):
        host.active = ((3.3 * n + 0.2, FOR_GOOD_S),)
    return hub


def most_are_cut_off(*args):
    return cut(hub_of(*args), *range(1, 8))


def one_is_cut_off(*args):
    return cut(hub_of(*args), 0)


def most_are_cut_off_from_a_blind_provider(rule, _):
    return most_are_cut_off(rule, BLIND)


TROUBLES = {
    one_after_another: 0.01,
    each_used_alone: 0.01,
    joining_while_it_comes_and_goes: 0.01,
    most_are_cut_off: 0.01,
    one_is_cut_off: 0.01,
    most_are_cut_off_from_a_blind_provider: 0.015,  # the store misses them after 7 s
}


@pytest.mark.parametrize(
    ("trouble", "rule"), sampled([*TROUBLES], [*RULES], quick=[]), ids=lambda it: getattr(it, "__name__", it)
)
def test_it_is_not_overspent(trouble, rule):
    hub = trouble(rule, {}).run()
    assert hub.lost == 0
    sent = hub.sent()
    assert sent - len(hub.refused) == 1_600
    assert len(hub.refused) <= TROUBLES[trouble] * sent, sorted(hub.refused)


@pytest.mark.parametrize("settings", [{}, BLIND], ids=["headers", "blind"])
def test_processes_that_come_back_are_charged_once(settings):
    hub = most_are_cut_off("bucket", settings).run()
    assert hub.silence_s(since_s=2) < 2
    assert hub.speed >= 0.92


MODES = pytest.mark.parametrize("mode", ["fail_safe", "fail_closed"])


def rolling_deploy(mode, **store):
    """Twelve processes are replaced one by one, one each 3 s from 20 s on, by a plain SIGTERM: they say nothing."""
    hub = hub_of("bucket", BLIND, hosts=24, workers=10, jobs=None, capacity={"on_store_failure": mode}, store=store)
    for n in range(12):
        hub.kill_at(20 + 3 * n, n)
        hub.hosts[12 + n].active = ((20.5 + 3 * n, FOR_GOOD_S),)
    return hub.run(limit_s=90)


def killed_at_once(mode, **store):
    """Of fifty processes ten come late, and twelve of the others are killed."""
    hub = hub_of("bucket", BLIND, hosts=50, workers=2, jobs=None, capacity={"on_store_failure": mode}, store=store)
    for n in range(10):
        hub.hosts[n].active = ((10, FOR_GOOD_S),)
    for n in range(12):
        hub.kill_at(30, 20 + n)
    return hub.run(limit_s=70)


@MODES
def test_a_process_that_goes_takes_nothing_along(mode):
    hub = rolling_deploy(mode)
    assert hub.sent(20, 90) >= 0.95 * 700
    assert not hub.refused


@MODES
def test_nor_do_many_at_once(mode):
    hub = killed_at_once(mode)
    assert hub.sent(30, 70) >= 0.95 * 400
    assert not hub.refused


def test_a_store_that_does_not_see_it_keeps_the_shares_for_two_minutes():
    """The price of a partition in which nobody may spend more than the quota; it also shows that the two above can fail."""
    hub = rolling_deploy("fail_safe", sees_ends=False)
    assert hub.sent(60, 90) < 0.6 * 300
    assert not hub.refused


def test_processes_that_infer_a_limit_need_a_store():
    """Each of four begins with four times the limit, and is not told of it."""

    def sent(capacity):
        settings = {"limits": {"m": "200 requests/min"}, "latency_s": 0.5, "jitter": 0.3, **BLIND}
        options = {"hosts": 4, "workers": 40, "jobs": None, "output": 10, "source": "assumed"}
        hub = Fleet("800 requests/min", settings, capacity=capacity, **options).run(limit_s=400)
        return sorted(sum(220 <= at_s < 400 for at_s in host.sent_at_s) for host in hub.hosts)

    alone, shared = sent(None), sent({})
    assert shared[0] > 0.75 * shared[-1]  # the rate is measured: each goes towards the mean of all
    assert alone[0] < 0.6 * alone[-1]


def troubled(seed):
    """A random world."""
    dice = random.Random(seed)
    hosts, rule = dice.randint(2, 8), dice.choice(list(RULES))
    limit = f"{dice.choice([300, 600, 1_200])} requests/min"
    settings = dice.choice([{}, BLIND]) | {"limits": {"m": limit}, "rule": rule, "jitter": 0.3}
    settings["latency_s"] = dice.choice([0.05, 0.5, 2.0])
    from_s, away = dice.uniform(3, 60), []
    match dice.choice(["well", "once", "flapping", "flapping"]):
        case "once":
            away = [(from_s, from_s + dice.choice([2, 20, 90]))]
        case "flapping":
            while from_s < 150:
                away.append((from_s, from_s + dice.uniform(0.3, 8)))
                from_s = away[-1][1] + dice.uniform(0.3, 8)
    size = {"workers": dice.choice([5, 40]), "jobs": hosts * dice.choice([40, 120])}
    hub = Fleet(
        limit + RULES[rule], settings, hosts=hosts, seed=seed, store={"away": away, "sees_ends": seed % 3 > 0}, output=10, capacity={}, **size
    )  # fmt: skip
    for n, host in enumerate(hub.hosts):
        from_s, active = dice.choice([0, n * 0.05, n * 16, dice.uniform(0, 60)]), []
        for _ in range(dice.choice([0, 3])):
            active.append((from_s, from_s + dice.uniform(0.5, 20)))
            from_s = active[-1][1] + dice.uniform(1, 70)
        host.active = (*active, (from_s, FOR_GOOD_S))
        if dice.random() < 0.4:
            from_s = dice.uniform(3, 90)
            hub.sim.store.cut[host.process.name] = ((from_s, from_s + dice.uniform(2, 60)),)
        if dice.random() < 0.1:
            hub.kill_at(dice.uniform(5, 90), n)
    return hub


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(2_000), marks=pytest.mark.soak)], ids=len)
def test_random_troubles(seeds):
    sent = refused = 0
    for seed in seeds:
        hub = troubled(seed).run()
        ours = hub.sent()
        assert len(hub.refused) <= max(0.02 * ours, 5), (seed, ours, sorted(hub.refused))
        alive = [host for host in hub.hosts if not host.dead]
        assert all(not host.todo and not host.lost for host in alive), seed
        sent, refused = sent + ours, refused + len(hub.refused)
    assert refused <= 0.002 * sent, (sent, refused)
