"""Where the journal of several processes is: a Redis, one behind Sentinels, a cluster, and a file."""

import os
import threading
import time
from contextlib import ExitStack, closing
from functools import partial

import pytest

from grids import some
from paceline.core.results import SettingsError, StoreError
from paceline.data import places
from paceline.data.places import Claim, FilePlace, open_place
from paceline.stores.entries import EntryFile
from waits import run_all, until

ANSWERS = {f"id {n}/0a": bytes([n]) * 1_000 for n in range(60)}


@pytest.fixture
def place():
    """Opens places, which are closed in the end."""
    with ExitStack() as opened:
        yield lambda name, url, keep_s=60: opened.enter_context(closing(open_place(name, url, keep_s)))


def found(one, keys):
    """The entries that there are."""
    return {key: entry for key in keys if (entry := one.claim(key, "reader").entry) is not None}


def used(place, name, url):
    """Write from several threads, and read with another one; claim from two."""
    first, second = place(name, url), place(name, url)
    run_all(partial(first.write, *entry) for entry in ANSWERS.items())
    first.write("id 0/0a", ANSWERS["id 0/0a"])  # again
    assert found(second, [*ANSWERS, "another"]) == ANSWERS
    assert found(place(f"{name}-2", url), ANSWERS) == {}

    assert first.claim("new", "a") == Claim(None, ours=True)
    assert first.claim("new", "a") == Claim(None, ours=True)  # its first answer was lost
    assert second.claim("new", "b") == Claim(None, ours=False)
    second.release("new", "b")  # which is not the holder
    first.renew([("new", "a"), ("gone", "a")])
    assert second.claim("new", "b").ours is False
    first.release("new", "a")
    assert second.claim("new", "b").ours is True
    second.write("new", b"1")
    assert first.claim("new", "a").entry == b"1"
    assert second.claim("gone", "b").ours is True
    second.drop("new")
    assert first.claim("new", "a").entry is None  # the writer's claim may run out later


def test_in_redis(place, redis_server):
    started_s = time.monotonic()
    used(place, "job", redis_server.url)
    with redis_server.client() as client:
        for keys, keep_s in (("*journal*", 60), ("*claims*", 6)):
            left_s = {client.ttl(key) for key in client.scan_iter(keys)}
            least_s = keep_s - 1 - (time.monotonic() - started_s)  # seconds, on a busy machine
            assert all(least_s <= left <= keep_s for left in left_s)


def test_with_a_prefix_jobs_of_two_accounts_are_apart(place, redis_server):
    url = redis_server.url
    place("job", f"{url}?prefix=a").write("id", b"1")
    assert found(place("job", f"{url}?prefix=b"), ["id"]) == {}
    assert found(place("job", f"{url}?prefix=a"), ["id"]) == {"id": b"1"}


@pytest.mark.parametrize(
    "servers", some(["redis_sentinel", "redis_cluster"], "redis_cluster", mark=pytest.mark.long("starts five servers"))
)
def test_behind_sentinels_and_in_a_cluster(place, request, servers):
    used(place, "job", request.getfixturevalue(servers).url)


def test_in_a_file(place, tmp_path):
    used(place, f"sqlite:{tmp_path / 'new' / 'job.db'}", "redis://host")
    if os.name != "nt":  # another system's rights
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").glob("job.db*")} == {0o600}


def test_beside_the_file_of_the_store(place, tmp_path):
    place("job-1", f"sqlite:{tmp_path / 'quotas.db'}").write("id", b"1")
    assert found(place(f"sqlite:{tmp_path / 'quotas.db.job-1.journal'}", None), ["id"]) == {"id": b"1"}


@pytest.mark.parametrize("kind", ["file", "redis"])
def test_a_claim_that_is_not_renewed_runs_out(place, kind, tmp_path, redis_server, monkeypatch):
    url = redis_server.url if kind == "redis" else f"sqlite:{tmp_path / 'quotas.db'}"
    one, other = place("job", url), place("job", url)
    monkeypatch.setattr(places, "CLAIM_S", 0.01)
    assert one.claim("id", "killed").ours
    until(lambda: other.claim("id", "next").ours)


def test_a_file_forgets_what_is_old(place, tmp_path):
    name = f"sqlite:{tmp_path / 'job.db'}"
    place(name, "").write("id", b"1")
    assert found(place(name, "", -10), ["id"]) == {}


def test_a_place_that_cannot_be_used_is_an_error(place, redis_server, tmp_path):
    lost = place("job", redis_server.url)
    redis_server.kill()
    for call in (
        lambda: lost.claim("id", "a"),
        lambda: lost.write("id", b"1"),
        lambda: lost.renew([("id", "a")]),
        lambda: lost.release("id", "a"),
    ):
        with pytest.raises(StoreError, match="check the address"):
            call()
    (tmp_path / "job.db").write_text("this is no database, but a text of the user's" * 100)
    with pytest.raises(StoreError, match="file is not a database"):
        place(f"sqlite:{tmp_path / 'job.db'}", "")
    for url in (None, "memory:"):
        with pytest.raises(StoreError, match="set PACELINE_STORE"):
            place("job", url)


@pytest.mark.parametrize("name", ["", "a/b", "../job", "x" * 201, " job"])
def test_names(place, name):
    with pytest.raises(SettingsError, match=r"give a name of 1 to 200 letters"):
        place(name, "sqlite:quotas.db")


def test_two_that_make_the_file_at_once(tmp_path):
    """Neither takes the half-made file of the other for another program's."""

    def make(path, start):
        start.wait()
        FilePlace(path, 60, 10).close()

    for number in range(10):
        run_all([partial(make, str(tmp_path / f"{number}.db"), threading.Barrier(2))] * 2)


def test_files_of_another_kind_are_refused(place, tmp_path):
    own, shared = str(tmp_path / "own.db"), str(tmp_path / "shared.db")
    with closing(EntryFile(own, 60, 1)) as entries:
        entries.write("id", b"1")
    place(f"sqlite:{shared}", None)
    with pytest.raises(StoreError, match="has entries of one program, and not a journal that processes share"):
        place(f"sqlite:{own}", None)
    with pytest.raises(StoreError, match="has a journal that processes share, and not entries of one program"):
        EntryFile(shared, 60, 1)
