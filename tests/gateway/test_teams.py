"""Keys of a team: what they share, what is summed, and the users of a front end."""

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from gateway_helpers import CHAT, bearer, chat, samples_in
from test_gateway import Odd

from paceline.cli.app import app as cli
from paceline.config import Config
from paceline.core.queue import LANES_MAX
from paceline.core.results import SettingsError
from paceline.gateway.keys import KeyFile
from paceline.gateway.server import ProcessSettings
from waits import until

USAGE = "/api/v1/usage"
USER = "X-OpenWebUI-User-Id"
PRICES = {"openai/gpt-5": {"input": 100.0, "output": 100.0}}
FAST = {"*": "100k requests/min"}
USED = {"prompt_tokens": 1, "completion_tokens": 999}
DIME = json.dumps({"choices": [{"message": {"content": "Hi."}}], "usage": USED}).encode()


def used(client, running, key, query=""):
    reply = client.get(running.url + USAGE + query, headers=bearer(key))
    assert reply.status_code == 200, reply.text
    return reply.json()


class TestBounds:
    @pytest.mark.parametrize("store", [None, "sqlite"])
    def test_a_budget_bounds_all_keys_of_a_team_and_no_other(self, serve, keys, client, tmp_path, store):
        team = {"team/search": {"limits": ["1 usd/day"]}}
        own = [keys.add(f"dev-{n}", team="search", limits=("0.5 usd/day",) if n == 0 else ()) for n in range(4)]
        other = keys.add("other")
        store = store and f"sqlite:{tmp_path / 'quotas.db'}"
        odd, settings = Odd([DIME]), {"limits": FAST, "prices": PRICES, "lanes": team, "store": store}
        gateways = [serve(odd, **settings) for _ in range(2 if store else 1)]

        def ask(n):
            gateway = gateways[n % len(gateways)]
            return client.post(gateway.url + CHAT, json=chat(max_tokens=999), headers=bearer(own[n % 4]))

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(40)))
        sent = len(odd.seen)  # each costs 0.1
        # At most the budget and one request; and all of it, as far as nothing of another process's was in flight.
        assert sum(answer.status_code == 200 for answer in answers) == sent
        assert (10 if store is None else 1) <= sent <= 11
        refused = next(answer.json()["error"] for answer in answers if answer.status_code == 429)
        assert refused["code"] == "paceline_budget"
        assert client.post(gateways[0].url + CHAT, json=chat(), headers=bearer(other)).status_code == 200
        until(lambda: gateways[0].pool("budget/team/search")["in_flight"] == 0)
        (budget,) = gateways[0].pool("budget/team/search")["quotas"]
        if store is None:
            assert budget["remaining"] == pytest.approx(1 - sent / 10)

    def test_a_limit_is_shared_fairly_by_the_keys_of_a_team(self, serve, keys, client):
        greedy, modest = keys.add("greedy", team="search"), keys.add("modest", team="search")
        running = serve(Odd(), limits=FAST, lanes={"team/search": {"limits": ["1 requests/day"]}})
        assert client.post(running.url + CHAT, json=chat(), headers=bearer(greedy)).status_code == 200
        with ThreadPoolExecutor(4) as pool:
            for number, key in enumerate((greedy, greedy, modest), 1):
                pool.submit(client.post, running.url + CHAT, json=chat(), headers=bearer(key))
                until(lambda: running.pool("lane/team/search")["waiting"] == number)  # noqa: B023
            assert running.pool("lane/team/search")["lanes"] == {"greedy": 2, "modest": 1}
            queue = running.limiter.pacer.allowances.schedulers[0].pool.queue
            assert [one.lane.name for one in queue.peek(3)] == ["greedy", "modest", "greedy"]
            running.limiter.limit_lane("team/search", "100k requests/min")
            running.server.should_exit = True

    def test_what_a_key_does_not_set_is_as_in_the_settings(self, serve, keys, client):
        plain, own = keys.add("plain"), keys.add("own", limits=("2 requests/day",), weight=2.0)
        lane = {"limits": ["1 requests/day"], "weight": 3.0, "priority": 4}
        running = serve(Odd(), limits=FAST, lanes={"plain": lane, "own": lane})

        def served(key):
            headers = bearer(key, **{"x-paceline-timeout": "0"})
            answers = [client.post(running.url + CHAT, json=chat(), headers=headers) for _ in range(3)]
            return sum(answer.status_code == 200 for answer in answers)

        assert [served(plain), served(own)] == [1, 2]
        lanes, found = running.dispatch._metering.lanes, running.gateway._admission._keys.find
        assert [(one.weight, one.priority) for one in (lanes.of(found(key), "") for key in (plain, own))] == [
            (3.0, 4), (2.0, 4)
        ]  # fmt: skip

    @pytest.mark.parametrize(("lane", "said"), [
        ("team/serach", "no key is in the team serach: mend the name, or `paceline keys add NAME --team serach`; did you mean 'team/search'?"),
        ("team/search", ""),
        ("alcie", "no key has this name: mend the name, or `paceline keys add alcie`; did you mean 'alice'?"),
        ("alice/a person", ""),
    ])  # fmt: skip
    def test_a_budget_for_nobody_is_told_at_the_start(self, keys, caplog, lane, said):
        keys.add("alice", team="search")
        given = {"lanes": {lane: {"limits": ["1 usd/day"]}}, "upstreams": {"openai": {}}}
        config = Config.load(environ={}, given=given)
        settings = ProcessSettings(config=config, keys=keys.file, host="127.0.0.1")
        settings.warn()
        assert [one.message.partition("because ")[2] for one in caplog.records] == [said] * bool(said)

    def test_a_slip_in_the_name_of_a_team_is_told(self, serve, keys, client, emulator, caplog):
        secrets = [keys.add(name, team=team) for name, team in (("alice", "search"), ("bob", "serach"))]
        running = serve(emulator.base_url, lanes={"team/search": {"limits": ["1 usd/day"]}})
        for key in secrets:
            assert client.post(running.url + CHAT, json=chat(), headers=bearer(key)).status_code == 200
        assert [one.args[0] for one in caplog.records if "has no limit" in one.message] == ["bob"]
        assert "did you mean 'team/search'" in caplog.text


class TestSums:
    def test_by_team_and_key_and_a_key_that_moves(self, serve, keys, client):
        alice, bob, lone = keys.add("alice", team="search"), keys.add("bob", team="search"), keys.add("lone")
        ops = keys.add("ops", may_read=True)
        running = serve(Odd([DIME]), limits=FAST, prices=PRICES)

        def ask(*who):
            for key in who:
                assert client.post(running.url + CHAT, json=chat(), headers=bearer(key)).status_code == 200

        ask(alice, alice, bob, lone)
        keys.change("alice", team="billing")
        running.gateway._admission._keys._read()  # it looks once a second
        ask(alice)
        until(lambda: used(client, running, ops)["keys"].get("alice", {}).get("requests") == 3)

        def requests(query, key=ops):
            by = query.partition("by=")[2]
            return {name: row["requests"] for name, row in used(client, running, key, query)[f"{by}s"].items()}

        assert requests("?by=key") == {"alice": 3, "bob": 1, "lone": 1}
        assert requests("?by=team") == {"search": 3, "billing": 1, "-": 1}  # what was used stays with the team
        assert requests("?by=team", alice) == {"search": 2, "billing": 1}  # of its own
        assert requests("?by=user") == requests("?by=key")
        assert client.get(f"{running.url}{USAGE}?by=model", headers=bearer(ops)).status_code == 400
        status = client.get(running.url + "/status", headers=bearer(ops)).json()
        assert status["teams"]["search"]["requests"] == 3
        samples = samples_in(client.get(running.url + "/metrics", headers=bearer(ops)).text)
        assert samples["paceline_team_requests_total", "search"] == 3
        assert samples["paceline_team_usd_total", "billing"] == pytest.approx(0.1)

    def test_as_a_table_and_csv(self, serve, keys, client):
        web, ops = keys.add("web", team="it", users=USER), keys.add("ops", may_read=True)
        running = serve(Odd([DIME]), limits=FAST, prices=PRICES)
        for user in ("=1+1", "ann", "ann"):
            client.post(running.url + CHAT, json=chat(), headers=bearer(web, **{USER: user}))
        until(lambda: used(client, running, ops)["keys"])
        month = used(client, running, ops)["to"][:7]

        def show(*arguments, key=ops):
            return CliRunner().invoke(cli, ["usage", *arguments, running.url], env={"PACELINE_KEY": key})

        found = list(csv.DictReader(io.StringIO(show("--by", "user", "--month", month, "--csv").stdout)))
        assert [(row["user"], row["requests"], row["usd"]) for row in found] == [
            ("web/=1+1", "1", "0.100000000"), ("web/ann", "2", "0.200000000")
        ]  # fmt: skip
        assert show("--by", "team").stdout.splitlines()[1].split("\t")[:3] == ["it", "3", "3"]
        assert list(csv.reader(io.StringIO(show("--month", "2020-02", "--csv").stdout)))[1:] == []
        assert "aren't stored any more" in show("--month", "2020-02").stderr
        assert "nothing was charged from 2099-02-01 to 2099-02-28" in show("--month", "2099-02", "--csv").stderr
        wrong = show("--month", "2026-13")
        assert (wrong.exit_code, "does not match the format '%Y-%m'" in wrong.output) == (2, True)
        denied = show(key="pk-wrong")
        assert (denied.exit_code, "401" in denied.stderr) == (1, True)
        assert CliRunner().invoke(cli, ["usage", running.url + "/nothing"]).exit_code == 1


class TestUsers:
    def test_each_user_of_a_front_end_is_a_part_of_its_key(self, serve, keys, client):
        web, plain, ops = keys.add("web", users=USER, team="it"), keys.add("plain"), keys.add("ops", may_read=True)
        running = serve(odd := Odd(), limits=FAST, lanes={"web/bob": {"limits": ["1 requests/day"]}})

        def ask(key, user=None):
            headers = bearer(key, **({} if user is None else {USER: user}), **{"x-paceline-timeout": "0"})
            return client.post(running.url + CHAT, json=chat(), headers=headers).status_code

        assert [ask(web, "ann"), ask(web, "bob"), ask(web, "bob"), ask(web), ask(plain, "mallory")] == [
            200, 200, 429, 200, 200
        ]  # fmt: skip
        assert ask(web, "u" * 201) == 400
        assert all(USER.lower().encode() not in headers for _, _, _, headers, _ in odd.seen)
        users = {"web/ann", "web/bob", "web/-", "plain"}
        until(lambda: used(client, running, ops, "?by=user")["users"].keys() == users)
        assert used(client, running, ops, "?by=team")["teams"].keys() == {"it", "-"}
        lanes = running.dispatch._metering.lanes
        key = running.gateway._admission._keys.find(web)
        names = {lanes.of(key, f"user-{n}").name for n in range(LANES_MAX + 9)}
        assert names >= {"web/user-0", "web/other"}
        assert len(names) <= LANES_MAX

    def test_one_user_gets_no_answer_of_another(self, serve, keys, client):
        web = keys.add("web", users=USER)
        running = serve(odd := Odd(), limits=FAST)
        replies = [
            client.post(running.url + CHAT, json=chat(), headers=bearer(web, **{USER: user, "idempotency-key": "1"}))
            for user in ("ann", "ann", "bob")
        ]
        assert [reply.status_code for reply in replies] == [200, 200, 200]
        assert ["idempotent-replayed" in reply.headers for reply in replies] == [False, True, False]
        assert len(odd.seen) == 2


class TestKeys:
    def test_the_commands(self, tmp_path):
        def run(*arguments):
            return CliRunner().invoke(cli, ["keys", *arguments, "--keys", str(tmp_path / "keys.json")])

        assert run("add", "web", "--team", "it", "--users", USER).exit_code == 0
        (row,) = (line.split("\t") for line in run("list").stdout.splitlines()[1:])
        assert (row[0], row[1], row[-2]) == ("web", "it", USER)
        assert run("change", "web", "--team", "none", "--users", "none").exit_code == 0
        (key,) = KeyFile(tmp_path / "keys.json").all()
        assert (key.team, key.users) == ("", "")

    @pytest.mark.parametrize(
        "given", [{"team": "a/b"}, {"users": "Authorization"}, {"users": "x-api-key"}, {"users": "x-paceline-lane"}]
    )
    def test_what_is_neither_a_team_nor_a_header(self, keys, given):
        with pytest.raises(SettingsError, match="invalid"):
            keys.add("web", **given)
