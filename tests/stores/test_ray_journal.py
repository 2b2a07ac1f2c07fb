"""The journal of a Ray job: in a Redis, behind Sentinels, in a cluster, and in a file."""

import threading

import pytest

from paceline.core.results import StoreError
from paceline.integrations.ray_journal import open_journal

ANSWERS = {f"id {n}/0a": bytes([n]) * 1_000 for n in range(60)}


def used(name, url):
    """Write from several threads, and read with another journal."""
    first, second = open_journal(name, url, 60), open_journal(name, url, 60)
    threads = [threading.Thread(target=first.write, args=entry) for entry in ANSWERS.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first.write("id 0/0a", ANSWERS["id 0/0a"])  # again
    assert second.look_up([*ANSWERS, "another"]) == ANSWERS
    assert open_journal(f"{name}-2", url, 60).look_up([*ANSWERS]) == {}
    first.close()
    second.close()


def test_in_redis(redis_server):
    used("job", redis_server.url)
    with redis_server.client() as client:
        assert {client.ttl(key) for key in client.scan_iter()} <= {59, 60}


def test_with_a_prefix_jobs_of_two_accounts_are_apart(redis_server):
    url = redis_server.url
    open_journal("job", f"{url}?prefix=a", 60).write("id", b"1")
    assert open_journal("job", f"{url}?prefix=b", 60).look_up(["id"]) == {}
    assert open_journal("job", f"{url}?prefix=a", 60).look_up(["id"]) == {"id": b"1"}


def test_behind_sentinels(redis_sentinel):
    hosts = ",".join(f"{host}:{port}" for host, port in redis_sentinel.addresses)
    used("job", f"redis+sentinel://{hosts}/{redis_sentinel.name}/0")


def test_in_a_cluster(redis_cluster):
    hosts = ",".join(f"{host}:{port}" for host, port in redis_cluster.addresses)
    used("job", f"redis+cluster://{hosts}")


def test_in_a_file(tmp_path):
    used(f"sqlite:{tmp_path / 'new' / 'job.db'}", "redis://host")
    assert (tmp_path / "new" / "job.db").stat().st_mode & 0o777 == 0o600


def test_a_file_forgets_what_is_old(tmp_path):
    name = f"sqlite:{tmp_path / 'job.db'}"
    open_journal(name, "", 60).write("id", b"1")
    assert open_journal(name, "", -10).look_up(["id"]) == {}


def test_a_place_that_cannot_be_used_is_an_error(redis_server, tmp_path):
    journal = open_journal("job", redis_server.url, 60)
    redis_server.kill()
    with pytest.raises(StoreError, match="check the address"):
        journal.look_up(["id"])
    with pytest.raises(StoreError, match="check the address"):
        journal.write("id", b"1")
    (tmp_path / "job.db").write_text("this is no database, but a text of the user's" * 100)
    with pytest.raises(StoreError, match="file is not a database"):
        open_journal(f"sqlite:{tmp_path / 'job.db'}", "", 60)
    with pytest.raises(StoreError, match="the store is sqlite: write 'sqlite:PATH'"):
        open_journal("job", "sqlite:quotas.db", 60)
