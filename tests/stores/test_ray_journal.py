"""The journal of a Ray job: in a Redis, behind Sentinels, in a cluster, and in a file."""

import os
import threading
from contextlib import ExitStack, closing

import pytest

from paceline.core.results import StoreError
from paceline.integrations.ray_journal import open_journal

ANSWERS = {f"id {n}/0a": bytes([n]) * 1_000 for n in range(60)}


@pytest.fixture
def journal():
    """Opens journals, which are closed in the end."""
    with ExitStack() as opened:
        yield lambda name, url, keep_s=60: opened.enter_context(closing(open_journal(name, url, keep_s)))


def used(journal, name, url):
    """Write from several threads, and read with another journal."""
    first, second = journal(name, url), journal(name, url)
    threads = [threading.Thread(target=first.write, args=entry) for entry in ANSWERS.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first.write("id 0/0a", ANSWERS["id 0/0a"])  # again
    assert second.look_up([*ANSWERS, "another"]) == ANSWERS
    assert journal(f"{name}-2", url).look_up([*ANSWERS]) == {}


def test_in_redis(journal, redis_server):
    used(journal, "job", redis_server.url)
    with redis_server.client() as client:
        assert {client.ttl(key) for key in client.scan_iter()} <= {59, 60}


def test_with_a_prefix_jobs_of_two_accounts_are_apart(journal, redis_server):
    url = redis_server.url
    journal("job", f"{url}?prefix=a").write("id", b"1")
    assert journal("job", f"{url}?prefix=b").look_up(["id"]) == {}
    assert journal("job", f"{url}?prefix=a").look_up(["id"]) == {"id": b"1"}


def test_behind_sentinels(journal, redis_sentinel):
    hosts = ",".join(f"{host}:{port}" for host, port in redis_sentinel.addresses)
    used(journal, "job", f"redis+sentinel://{hosts}/{redis_sentinel.name}/0")


def test_in_a_cluster(journal, redis_cluster):
    hosts = ",".join(f"{host}:{port}" for host, port in redis_cluster.addresses)
    used(journal, "job", f"redis+cluster://{hosts}")


def test_in_a_file(journal, tmp_path):
    used(journal, f"sqlite:{tmp_path / 'new' / 'job.db'}", "redis://host")
    if os.name != "nt":  # another system's rights
        assert (tmp_path / "new" / "job.db").stat().st_mode & 0o777 == 0o600


def test_a_file_forgets_what_is_old(journal, tmp_path):
    name = f"sqlite:{tmp_path / 'job.db'}"
    journal(name, "").write("id", b"1")
    assert journal(name, "", -10).look_up(["id"]) == {}


def test_a_place_that_cannot_be_used_is_an_error(journal, redis_server, tmp_path):
    lost = journal("job", redis_server.url)
    redis_server.kill()
    with pytest.raises(StoreError, match="check the address"):
        lost.look_up(["id"])
    with pytest.raises(StoreError, match="check the address"):
        lost.write("id", b"1")
    (tmp_path / "job.db").write_text("this is no database, but a text of the user's" * 100)
    with pytest.raises(StoreError, match="file is not a database"):
        journal(f"sqlite:{tmp_path / 'job.db'}", "")
    with pytest.raises(StoreError, match="the store is sqlite: write 'sqlite:PATH'"):
        journal("job", "sqlite:quotas.db")
