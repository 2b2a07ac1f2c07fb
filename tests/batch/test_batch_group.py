"""A run whose requests any of several servers can answer."""

import re

import pytest
from batch_helpers import GOOD, chats, read_answers, run_job, write_lines

from odd_server import JSON, OddServer
from paceline.batch.progress import LineView
from paceline.core.results import SettingsError

SERVED = "3k requests/min"


@pytest.fixture
def regions(paceline_emulator):
    def start(*names, **settings):
        return {name: paceline_emulator(limits={"*": SERVED}, latency_s=0.0, **settings) for name in names}

    return start


def run(tmp_path, servers, *, count=60, view=None, system="", **given):
    """Run ``count`` requests at servers, given by name as their URLs or their tables of settings."""
    rows = chats(count)
    for row in rows if system else ():
        row["body"]["messages"].insert(0, {"role": "system", "content": system})
    source = write_lines(tmp_path / "in.jsonl", rows)
    upstreams = {
        name: {"provider": "openai", "key_env": f"KEY_{name.upper()}"}
        | (one if isinstance(one, dict) else {"base_url": one})
        for name, one in servers.items()
    }
    settings = {
        "upstreams": upstreams, "groups": {"gpt": {"members": list(servers)}}, "group": "gpt", "workers": 50,
        "limits": {"openai/*": SERVED}, "base_url": None, **given,
    }  # fmt: skip
    environ = {f"KEY_{name.upper()}": f"sk-of-{name}" for name in servers}
    code, report = run_job(source, view=view, environ=environ, **settings)
    return code, report, read_answers(source.with_name("in.results.jsonl"))


def urls(worlds):
    return {name: world.base_url for name, world in worlds.items()}


def test_all_members_answer_and_each_request_once(tmp_path, regions, capsys):
    worlds = regions("eu", "us", "asia")
    code, report, answers = run(tmp_path, urls(worlds), count=120, view=LineView())
    assert (code, report["ok"], report["attempts"], report["refused"]) == (0, 120, 120, 0)
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"r{i}" for i in range(120))
    admitted = {name: world.tally()["admitted"] for name, world in worlds.items()}
    assert sum(admitted.values()) == 120
    assert min(admitted.values()) >= 24
    said = capsys.readouterr().err
    assert all(f"openai@{name}/gpt-5: 3k requests/min (given)" in said for name in worlds)


@pytest.mark.parametrize("models", [{}, {"gpt-5": "mine"}], ids=["one name", "a name of its own"])
def test_all_members_answer_requests_that_begin_alike(tmp_path, regions, models):
    worlds = regions("eu", "us", cache=True)
    servers = {name: {"base_url": world.base_url, "models": models} for name, world in worlds.items()}
    code, report, _ = run(tmp_path, servers, count=200, workers=20, system="You are a careful judge. " * 300)
    admitted = {name: world.tally()["admitted"] for name, world in worlds.items()}
    assert (code, report["ok"], sum(admitted.values())) == (0, 200, 200)
    assert min(admitted.values()) >= 60


def test_the_time_that_is_left_is_that_of_all_members(tmp_path, regions, capsys):
    slow = {"limits": {"openai@eu/*": "60 requests/min", "openai@us/*": "120 requests/min"}, "max_attempts": 1}
    worlds = regions("eu", "us")
    for world in worlds.values():
        world.reset(valid_key="no such key")
    code, _, _ = run(tmp_path, urls(worlds), count=900, view=LineView(), **slow)
    assert code == 2
    said = re.search(r"900 to send: about (\d+) min", capsys.readouterr().err)
    assert said, "the slower one alone would need 15 minutes, the faster one 7"
    assert said[1] in ("4", "5")


def test_its_speed_is_compared_with_the_ideal(tmp_path, regions):
    slow = {"limits": {"openai/*": "600 requests/min burst 5"}, "workers": 10}
    code, report, _ = run(tmp_path, urls(regions("eu", "us")), count=30, **slow)
    assert code == 0
    assert 0.3 < report["ideal_share"] <= 1


def test_a_server_has_its_own_name_of_the_model(tmp_path, regions):
    worlds = regions("eu", "us")
    servers = {"eu": worlds["eu"].base_url, "us": {"base_url": worlds["us"].base_url, "models": {"gpt-5": "mine"}}}
    code, _, answers = run(tmp_path, servers)
    assert code == 0
    assert {answer["response"]["body"]["model"] for answer in answers} == {"gpt-5", "mine"}


def test_a_server_that_is_away_or_refuses_its_key_costs_no_request(tmp_path, regions):
    worlds = regions("us", "asia")
    worlds["asia"].reset(valid_key="sk-another")
    servers = {"eu": "http://127.0.0.1:9", **urls(worlds)}
    code, report, answers = run(tmp_path, servers)
    assert (code, report["ok"], len(answers)) == (0, 60, 60)
    assert worlds["us"].tally()["admitted"] == 60


@pytest.mark.parametrize("most", [1, 4])
def test_a_refused_key_ends_no_run_that_another_server_answers(tmp_path, regions, most):
    """Also if that one cannot answer for a moment, so that the server with the refused key has the last word."""
    (refusing,) = regions("asia", valid_key="sk-another").values()

    def answer(number, _):
        return (
            (500, JSON, {"error": {"message": "a moment"}})
            if number in range(0, 40, 2) and most > 1
            else (200, JSON, GOOD)
        )

    with OddServer(answer) as server:
        servers = {"us": server.base_url, "asia": refusing.base_url}
        models = {"models": {"gpt-5": "mine"}, "base_url": servers["us"], "provider": "openai"}
        code, report, _ = run(tmp_path, servers | {"us": models}, max_attempts=most, retry={"backoff_s": 0.01})
    failed = report["errors"].get("key_refused", 0)
    assert report["ok"] == 60 - failed
    assert (code, failed) == (0, 0) if most > 1 else code == 1 and 0 < failed < 60


def test_attempts_at_all_servers_count_together(tmp_path):
    with OddServer(lambda *_: (500, JSON, {"error": {"message": "always"}})) as us, OddServer(us.answer) as asia:
        servers = {"us": us.base_url, "asia": asia.base_url}
        code, _, _ = run(tmp_path, servers, count=1, max_attempts=3, retry={"backoff_s": 0.01})
        assert (code, len(us.asked) + len(asia.asked)) == (1, 3)


def test_keys_that_all_servers_refuse_end_the_run(tmp_path, regions, capsys):
    worlds = regions("eu", "us")
    for world in worlds.values():
        world.reset(valid_key="sk-another")
    code, report, _ = run(tmp_path, urls(worlds), view=LineView())
    assert code == 2
    assert "the servers of the group gpt refuse their keys, or the model: eu, us" in capsys.readouterr().err
    assert "sk-of" not in str(report)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"group": "gtp"}, "no group 'gtp'; did you mean 'gpt'?"),
        ({"base_url": "http://127.0.0.1:9"}, "group and base_url exclude each other"),
        ({"mode": "batch"}, "--mode batch: a group sends requests one by one"),
        ({"groups": {"gpt": {"members": ["eu", "uk"]}}}, "groups.gpt: 'uk' is no server in [upstreams]"),
        ({"upstreams": {"eu": {"provider": "openai", "key_env": "KEY_X"}}}, "upstreams.eu: the environment variable KEY_X is not set"),
        ({"upstreams": {"eu": {"provider": "openai"}}}, "no key for eu: set the environment variable OPENAI_API_KEY"),
    ],
)  # fmt: skip
def test_wrong_settings_are_errors_at_the_start(tmp_path, given, words):
    servers = {} if "upstreams" in given else {"eu": "http://127.0.0.1:9"}
    given = {"groups": {"gpt": {"members": ["eu"]}}, **given}
    with pytest.raises(SettingsError) as raised:
        run(tmp_path, servers, **given)
    assert words in str(raised.value)
