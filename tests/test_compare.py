"""The comparison with peers: its relay counts what the server counts, its shortest times are those of the emulator's arithmetic."""

from __future__ import annotations

import http.client
import json
import re
import xml.etree.ElementTree as ET

import pytest
from benchmarks import compare, gateway, page
from benchmarks.servers import SPEC, Counts, rate_config
from benchmarks.tap import Tap
from benchmarks.traffic import CHAT, RESPONSES, body
from benchmarks.worlds import WORLDS, Job, Limit, World, charged

from paceline.emulator import Emulator
from paceline.emulator.rules import BucketRule, SlidingRule, WindowRule

RULES = {"bucket": BucketRule, "sliding": SlidingRule, "window": WindowRule}


def post(port, path, value):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(value), {"authorization": "Bearer none"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize(("rule", "others"), [*((rule, 0.0) for rule in RULES), ("bucket", 1 / 3)])
def test_the_shortest_time_is_that_of_a_client_that_sends_as_soon_as_a_request_fits(rule, others):
    start_s, costs = 1_003.0, [{"requests": 1, "tokens": 20 + 7 * (n % 11)} for n in range(60)]
    limits = {"requests": Limit(20, 10, rule), "tokens": Limit(2_000, 60)}
    world = World("", "", {}, limits, others=others)
    accounts = {unit: RULES[limit.rule](limit.amount, limit.period_s, start_s) for unit, limit in limits.items()}
    for account in accounts.values():
        account.share_with(start_s, others)
    now, times = start_s, []
    for cost in costs:
        while not all(account.fits(now, cost[unit]) for unit, account in accounts.items()):
            now += 0.005
        for unit, account in accounts.items():
            account.charge(now, cost[unit])
        times.append(now - start_s)
    assert world.earliest(costs, start_s) == pytest.approx(times, abs=0.02)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_each_world_needs_most_of_the_time_that_it_is_made_for(world):
    for server in world.servers:
        for ideal_s in (compare.QUICK_S, compare.IDEAL_S):
            best = world.best(server, ideal_s)
            assert 0.95 * ideal_s < best[-1] <= ideal_s
            assert world.outage[1] * ideal_s < best[-1]


def test_the_relay_counts_what_the_server_counts():
    texts = [f"request {number}: hello" for number in range(5)]
    with Emulator({"*": "3 requests/min,100k tokens/min"}, output_share=1.0, output_spread=0.0) as emulator:
        with Tap(int(emulator.base_url.rpartition(":")[2])) as tap:
            statuses = [post(tap.port, CHAT, body(text))[0] for text in texts]
            tap.settle()
            seen = list(tap.seen)
        tally = emulator.tally()
    assert statuses == [200, 200, 200, 429, 429]
    assert [(one.number, one.status) for one in seen] == list(enumerate(statuses))
    costs = [charged("emulator", CHAT, text, 0) for text in texts]
    assert tally["charges"]["tokens"] == sum(cost["tokens"] for cost in costs[:3])
    world = World("", "", {}, {"requests": Limit(3)})
    jobs = [Job(text, cost) for text, cost in zip(texts, costs, strict=True)]
    counts = Counts(tally["admitted"], tally["refused_total"])
    result = compare.measured(seen, jobs, world, "emulator", counts, {"stopped": False, "cpu_s": 0.0})
    assert page.agree(result)
    assert (result["refused"], result["missing"], result["overtaking"]) == (2, 2, 0)
    assert not page.agree(compare.measured(seen[:-1], jobs, world, "emulator", counts, {}))


def test_the_relay_answers_itself_in_an_outage_and_counts_it_apart():
    with Emulator({"*": "100 requests/min"}) as emulator:
        with Tap(int(emulator.base_url.rpartition(":")[2]), (0.0, 60.0)) as tap:
            statuses = [post(tap.port, CHAT, body(f"request {number}: hello"))[0] for number in range(3)]
            seen = list(tap.seen)
        tally = emulator.tally()
    assert statuses == [200, 503, 503]
    assert [one.outage for one in seen] == [False, True, True]
    assert (tally["admitted"], tally["refused_total"]) == (1, 0)


def test_overtaking_is_the_most_that_one_request_was_overtaken_by():
    assert compare.overtaking({}) == 0
    assert compare.overtaking({0: 1.0, 1: 2.0, 2: 3.0}) == 0
    assert compare.overtaking({0: 9.0, 1: 2.0, 2: 3.0, 3: 1.0}) == 3
    assert compare.overtaking({1: 2.0, 2: 3.0}) == 2  # the first one was not admitted


def test_mocklimit_states_the_usage_that_it_charges():
    """Its ``usage`` has the names of its resources: they are those of OpenAI's two APIs."""
    config = rate_config({"requests": Limit(100, 10, "sliding"), "tokens": Limit(900_000)})
    assert {limit["dimension"] for limit in config["policies"]["openai"]["limits"]} == {"requests", "total_tokens"}
    names = {path: set(endpoint["resources"]) - {"requests"} for path, endpoint in config["endpoints"].items()}
    assert names == {
        CHAT: {"prompt_tokens", "completion_tokens", "total_tokens"},
        RESPONSES: {"input_tokens", "output_tokens", "total_tokens"},
    }
    assert set(SPEC["paths"]) == set(names)


def made_up(**changes):
    results = []
    for number, (world, server, peer) in enumerate(compare.plan({})):
        results.append({
            "peer": peer, "world": world.name, "server": server, "date": "2026-11-24", "load": 0.5, "others": 0.01, "took_s": 30.0, "cpu_s": 1.0,
            "stopped": False, "requests": 900, "refused": number, "failed": 0, "counts": [900, number],
            "counts_of_the_server": [900, number], "missing": 0, "unfinished": False, "elapsed_s": 30.5, "ideal_s": 30.0,
            "share": 0.98, "overtaking": 3, "admitted": [15 * (step + 1) for step in range(60)], "refusals": [0],
        })  # fmt: skip
    return {
        "command": "python -m benchmarks --report docs", "quick": False, "ideal_s": 30.0, "step_s": 0.5,
        "machine": "2 CPUs", "minutes": 60, "versions": {"paceline": "0.1.0 on Python 3.11.7", "aiolimiter": "1.3.0 on Python 3.13.0"}, "results": results,
    } | changes  # fmt: skip


def test_the_page_has_a_table_for_each_server_and_a_picture_for_each_world(tmp_path):
    report = made_up()
    report["results"][1] |= {"counts_of_the_server": [899, 1]}
    report["results"][2] |= {"missing": 450, "unfinished": True}
    known = {key: report["results"][3][key] for key in ("peer", "world", "server", "date")}
    report["results"][3] = known | {"why": "killed"}
    page.write(tmp_path, report)
    text = (tmp_path / page.PAGE).read_text()
    assert "1 · 0.98 †" in text
    assert "not to be trusted" in text
    assert "50 % done" in text
    assert "n/a: killed" in text
    pictures = re.findall(r"\]\((images/peers/[^)]+\.svg)\)", text)
    assert len(pictures) == len({one["world"] for one in report["results"]})
    for name in pictures:
        assert ET.fromstring((tmp_path / name).read_text()).tag.endswith("svg")
        assert (tmp_path / name).stat().st_size < 40_000
    assert json.loads((tmp_path / page.RAW).read_text()) == report


def test_the_days_of_the_runs_are_said(tmp_path):
    report = made_up()
    for one in report["results"]:
        if one["world"] in page.FRONT and one["server"] == "mocklimit":
            one["date"] = "2026-11-26"
    page.write(tmp_path, report)
    assert "docs` on 2026-11-24 to 2026-11-26: 143 runs" in (tmp_path / page.PAGE).read_text()
    readme = tmp_path / "README.md"
    readme.write_text(f"{page.START}{page.END}")
    page.write_summary(readme, report)
    assert "is told. 2026-11-26: [method" in readme.read_text()
    for one in report["results"]:
        one["date"] = "2026-11-27" if one["peer"] == "paceline" else "2026-11-24"
    page.write(tmp_path, report)
    assert "docs` on 2026-11-24, and 2026-11-27 for paceline: 143" in (tmp_path / page.PAGE).read_text()


def test_the_page_has_the_gateways_that_were_measured(tmp_path):
    cost = {"us": 300, "ratio": 1.0, "least": 1.0, "most": 1.0}
    gateways = {
        "paceline": {"request": cost, "stream": cost, "mb": [56, 60]},
        "Other 1.2": {"request": {"us": 900, "ratio": 3.1, "least": 2.8, "most": 3.4}, "stream": cost, "mb": [90, 200]},
    }
    measured = {"command": "python -m benchmarks", "date": "2026-11-24", "rounds": 9, "load": [0.4, 2.0]}
    measured |= {"missing": {"Third": "needs Node"}}
    page.write(tmp_path, made_up(gateways=measured | {"gateways": gateways}))
    text = (tmp_path / page.PAGE).read_text()
    assert "| **paceline** | 300 us | 300 us | 56 to 60 MB |" in text
    assert "| Other 1.2 | 900 us, 3.1 times (2.8 to 3.4) | 300 us, 1 times (1 to 1) | 90 to 200 MB |" in text
    assert "Third: needs Node." in text


def test_the_ratio_of_two_gateways_is_of_the_same_round():
    beside = gateway._beside([200.0, 900.0, 330.0], [100.0, 300.0, 110.0])
    assert beside == {"us": 330, "ratio": 3.0, "least": 2.0, "most": 3.0}


def test_the_summary_replaces_what_stands_between_the_markers_and_nothing_else(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n\n{page.START}\n\nstale\n\n{page.END}\n\nafter\n")
    page.write_summary(readme, made_up())
    text = readme.read_text()
    assert text.startswith(f"before\n\n{page.START}\n500 workers send ")
    assert text.endswith(f"{page.END}\n\nafter\n")
    assert "stale" not in text
    assert text.count("| **paceline** |") == 1
    page.write_summary(readme, made_up())
    assert readme.read_text() == text
