"""Where a run keeps its quotas. Providers "elsewhere" are the emulator, behind what looks like a proxy."""

import json
import os
import signal
import sqlite3
from datetime import UTC, datetime

import pytest
from batch_helpers import FAST, call, chat, chats, finish, message, run_job, wait_for_lines, write_lines

from memory_store import MemoryStore
from paceline.batch.job import choose_store, state_file
from paceline.batch.progress import LineView
from paceline.config import Config
from paceline.config.servers import account
from paceline.core.quota import parse_quotas
from paceline.core.results import StoreError
from paceline.limiter.limiter import Limiter
from paceline.stores import open_store
from paceline.stores.base import Prefixed
from paceline.stores.sqlite import SQLiteStore
from shared_pools import message_of

ELSEWHERE = "http://provider.example"


def day(amount):
    """So many a day, and no midnight near."""
    return f"{amount} requests/day window {'utc' if 1 <= datetime.now(UTC).hour < 23 else 'Etc/GMT-12'}"


def spent(path):
    """By pool, what was ever spent by unit."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT name, state FROM pools").fetchall()
    connection.close()
    return {name: {a["quota"][0]: a["spent"] for a in json.loads(state)["accounts"]} for name, state in rows}


@pytest.fixture
def elsewhere(emulator, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", emulator.base_url)
    return emulator


@pytest.fixture
def source(tmp_path):
    return write_lines(tmp_path / "in.jsonl", chats(20))


def run(source, base_url, *, key="sk-secret", view=None, limits=FAST, environ=None, **given):
    environ = {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"], "OPENAI_API_KEY": key, **(environ or {})}
    return run_job(source, base_url, view, environ=environ, limits={"*": limits}, **given)


def test_the_state_folder_is_the_default(elsewhere, source, state_home, capsys):
    code, report = run(source, ELSEWHERE, view=LineView())
    file = state_home / "paceline" / "state.db"
    assert (code, report["ok"], elsewhere.tally()["admitted"]) == (0, 20, 20)
    assert report["store"] == f"sqlite:{file}"
    assert f"\nstate: sqlite:{file}\n" in capsys.readouterr().err
    assert spent(file)[f"{account(ELSEWHERE, 'sk-secret')}/openai/gpt-5"]["requests"] == 20


def test_only_a_whole_path_is_a_state_folder(tmp_path):
    assert state_file({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "paceline" / "state.db"
    for environ in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "state"}):
        assert state_file(environ).as_posix() == "~/.local/state/paceline/state.db"


@pytest.mark.parametrize("root", ["http://localhost:80", "http://127.0.0.1", "https://127.9.8.7:1", "http://[::1]:80"])
def test_a_server_on_this_machine_is_a_test(root):
    def store(**given):
        return choose_store(Config(base_url=root, **given), {})

    assert store() is None
    assert store(store="memory:") is None
    assert store(store="redis://:hunter2@host/1?prefix=p").url == "redis://host/1?prefix=p"


@pytest.mark.parametrize("root", [None, "https://api.openai.com", "http://10.0.0.1:8000"])
def test_memory_only_when_told(root, state_home):
    environ = {"XDG_STATE_HOME": str(state_home)}
    assert choose_store(Config(base_url=root), environ).url == f"sqlite:{state_home / 'paceline' / 'state.db'}"
    assert choose_store(Config(base_url=root, store="memory:"), environ) is None


@pytest.mark.long("starts several processes")
def test_the_next_run_knows_what_this_one_used(tmp_path, emulator, source, command):
    limit, file = f"{day(30)},{FAST}", tmp_path / "state.db"
    arguments = {"base_url": emulator.base_url, "limit": limit}
    out, _ = finish(command(source, "--store", f"sqlite:{file}", "--json", **arguments), 0)
    first = json.loads(out)
    assert (first["store"], first["pools"]["openai/gpt-5"]["quotas"][0]["remaining"]) == (f"sqlite:{file}", 10)
    again = write_lines(tmp_path / "again.jsonl", [chat(f"s{i}") for i in range(20)])
    process = command(again, "--store", f"sqlite:{file}", "--json", **arguments)
    wait_for_lines(tmp_path / "again.results.jsonl", 10, process)
    process.send_signal(signal.SIGINT)
    out, err = finish(process, 130)
    second = json.loads(out)
    assert second["ok"] == second["pools"]["openai/gpt-5"]["counts"]["granted"] == 10
    quota = second["pools"]["openai/gpt-5"]["quotas"][0]
    assert (quota["used_before"], quota["spent"], quota["remaining"]) == (20, 10, 0)
    assert "20 to send: about " in err  # for the day is almost over
    assert emulator.tally()["admitted"] == 30


def test_what_earlier_answers_taught_is_said_to_be_so(tmp_path, emulator, source, capsys):
    file, limits = f"sqlite:{tmp_path}/state.db", "60k requests/min, 60M tokens/min"
    pool, store = f"{account(emulator.base_url, 'sk-secret')}/openai/gpt-5", open_store(file)
    store.exchange(pool, message_of("another", 1, parse_quotas(f"{limits}, 1M requests/day"), [-1, -1, -1]))
    store.close()
    run(source, emulator.base_url, limits=limits, store=file, view=LineView())
    said = f"\nopenai/gpt-5: {limits} (given), 1M requests/day (learned from answers)\n"
    assert said in capsys.readouterr().err


def test_a_store_and_a_model_without_limits(tmp_path, emulator, source):
    code, report = run_job(source, emulator.base_url, limits={}, store=f"sqlite:{tmp_path}/q.db")
    assert (code, report["ok"]) == (0, 20)
    assert [name.partition("/")[2] for name in spent(tmp_path / "q.db")] == ["127.0.0.1/gpt-5"]


def test_two_keys_do_not_mix(tmp_path, emulator, source):
    file, reports = tmp_path / "state.db", []
    for key in ("sk-first-secret", "sk-second-secret"):
        (tmp_path / "in.results.jsonl").unlink(missing_ok=True)
        reports.append(run(source, emulator.base_url, key=key, limits=f"{day(30)},{FAST}", store=f"sqlite:{file}")[1])
    for report in reports:
        assert report["pools"]["openai/gpt-5"]["quotas"][0]["remaining"] == 10
        assert "secret" not in json.dumps(report)
    assert len(spent(file)) == 2
    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.glob("state.db*"))


def test_a_prefix_is_for_any_store():
    store = MemoryStore()
    limiters = [Limiter({"jobs": day(5)}, store=Prefixed(store, prefix)) for prefix in ("a", "b", "a")]
    granted = [bool(limiter.try_acquire("jobs", requests=3)) for limiter in limiters]
    for limiter in limiters:
        limiter.close()
    assert granted == [True, True, False]
    assert Prefixed(store, "a").url == store.url


def test_an_account_is_its_server_and_its_key():
    places = [("API.a", "k"), ("api.a/v2", "k"), ("api.b", "k"), ("api.a", "l")]
    names = {account(f"https://{place}", key) for place, key in places}
    assert sorted(name.rpartition(":")[0] for name in names) == ["api.a", "api.a", "api.b"]


def test_a_default_that_cannot_be_used_stops_nothing(elsewhere, source, tmp_path, capsys):
    (tmp_path / "file").touch()
    code, report = run(source, ELSEWHERE, view=LineView(), environ={"XDG_STATE_HOME": str(tmp_path / "file")})
    said = capsys.readouterr().err
    assert (code, report["ok"], report["store"]) == (0, 20, None)
    (warning,) = [line for line in said.splitlines() if "warning" in line]
    place = f"sqlite:{tmp_path / 'file' / 'paceline' / 'state.db'}: "
    assert all(words in warning for words in (place, "cannot be made (", "in memory", "--store memory:"))
    assert "state: in this process only" in said
    assert report["pools"]["openai/gpt-5"]["counts"]["granted"] == 20


def test_nor_does_a_missing_home(elsewhere, source, monkeypatch, capsys):
    def nobody(*_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("paceline.stores.sqlite.Path.expanduser", nobody)
    code, report = run(source, ELSEWHERE, view=LineView())
    assert (code, report["ok"], report["store"]) == (0, 20, None)
    assert "warning: this user has no home folder" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["fail_safe", "fail_closed", "fail_open"])
def test_a_named_store_that_cannot_be_used_is_an_error(tmp_path, emulator, source, mode):
    (tmp_path / "file").touch()
    for url, words in (
        (f"sqlite:{tmp_path}/file/state.db", "it cannot be made"),
        ("redis://:hunter2@127.0.0.1:1", "check the address, and that the server runs"),
    ):
        out, err = call(source, "--store", url, "--on-store-failure", mode, code=2, base_url=emulator.base_url)
        last = err.splitlines()[-1]
        assert out == ""
        assert last.startswith("paceline run: ")
        assert last.endswith("; nothing has been sent")
        assert words in last
        assert "hunter2" not in err
    assert emulator.tally()["admitted"] == 0
    assert not (tmp_path / "in.results.jsonl").exists()


def test_at_the_end_the_store_knows_what_answers_cost(tmp_path, emulator):
    source = write_lines(tmp_path / "in.jsonl", [message(f"r{i}") for i in range(20)])
    _, report = run(source, emulator.base_url, limits=f"{FAST},60M output_tokens/min", store=f"sqlite:{tmp_path}/s.db")
    (books,) = spent(tmp_path / "s.db").values()
    assert books["output_tokens"] == pytest.approx(report["output_tokens"])


def test_a_default_that_has_answered_can_only_be_lost(elsewhere, source, state_home, monkeypatch, capsys):
    exchange, calls = SQLiteStore.exchange, []

    def breaks(self, pool, message):
        calls.append(pool)
        if len(calls) > 2:  # the first exchange, and the state of the pool before the run
            raise StoreError("broken")
        return exchange(self, pool, message)

    monkeypatch.setattr(SQLiteStore, "exchange", breaks)
    code, report = run(source, ELSEWHERE, view=LineView())
    assert (code, report["ok"], report["store"]) == (0, 20, f"sqlite:{state_home / 'paceline' / 'state.db'}")
    assert report["pools"]["openai/gpt-5"]["store"]["state"] == "lost"
    assert "in memory" not in capsys.readouterr().err


def test_limits_of_your_own_bind_all_accounts_of_a_store(tmp_path, elsewhere, source):
    """Budgets, and limits of lanes and of several models: they have no address and no key."""
    own = {
        "budget": "1 usd/day", "prices": {"openai/gpt-5": {"input": 1.0, "output": 1.0}},
        "lanes": {"default": {"limits": "6k requests/min"}}, "joint_limits": {"openai": "5k requests/min"},
    }  # fmt: skip
    reports = []
    for key in ("sk-first-secret", "sk-second-secret"):
        (tmp_path / "in.results.jsonl").unlink(missing_ok=True)
        code, report = run(source, ELSEWHERE, key=key, store=f"sqlite:{tmp_path}/s.db", provider="openai", **own)
        assert (code, report["ok"]) == (0, 20)
        reports.append(report)
    books = spent(tmp_path / "s.db")
    assert books["lane/default"]["requests"] == books["joint/openai/*"]["requests"] == 40
    assert books["budget"]["usd"] == pytest.approx(sum(report["usd"] for report in reports), abs=1e-6)
