"""The file of answers on a disk that is full, shared with other files, or damaged."""

import errno
import os
import stat

import pytest
from batch_helpers import read_answers

from paceline.batch.index import Index
from paceline.batch.results import OutputError, Results, encode_answer

OK = {"status_code": 200, "request_id": "r", "body": {"text": "yes"}}


def ok(name):
    return encode_answer(name, OK, None)


def failed(name):
    return encode_answer(name, {**OK, "status_code": 400}, {"code": "bad", "message": "no"})


@pytest.fixture
def path(tmp_path):
    """An output with the answer of a request, and the line of one that failed."""
    path = tmp_path / "out"
    path.write_bytes(ok("a") + failed("b"))
    return path


def recover(path, names="abc", **options):
    index = Index()
    for line, name in enumerate(names, 1):
        index.add(name, line)
    with Results(str(path)) as results:
        return results.recover(index, **options)


def ids(path):
    return [answer["custom_id"] for answer in read_answers(path)]


@pytest.mark.skipif(os.name == "nt", reason="modes")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_rewritten_output_keeps_its_mode(path, mode):
    path.chmod(mode)
    recover(path)
    assert ids(path) == ["a"]
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files"
)
def test_a_rewritten_output_keeps_its_owner(path):
    os.chown(path, 1234, 2345)
    recover(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


def test_a_rewrite_touches_no_other_file(path):
    own = path.with_name("out.tmp")
    own.write_text("the user's own")
    recover(path)
    assert own.read_text() == "the user's own"
    assert sorted(path.parent.iterdir()) == [path, own]


@pytest.mark.skipif(os.name == "nt", reason="links")
def test_a_rewrite_follows_no_link(path):
    victim = path.with_name("victim")
    victim.write_text("precious")
    path.with_name("out.tmp").symlink_to(victim)
    recover(path)
    assert (ids(path), victim.read_text(), path.is_symlink()) == (["a"], "precious", False)


def test_the_lock_is_no_other_file(path):
    lock = path.with_name("out.lock")
    lock.write_text("the user's own")
    with pytest.raises(OutputError, match=r"out\.lock: a file of another program"):
        recover(path)
    assert lock.read_text() == "the user's own"
    if os.name != "nt":
        lock.unlink()
        lock.symlink_to(path.with_name("nothing"))
        with pytest.raises(OutputError, match=r"out\.lock: Too many levels of symbolic links"):
            recover(path)
        assert lock.is_symlink()


def test_a_rewrite_on_a_full_disk_changes_nothing(path, monkeypatch):
    def full(_fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OutputError, match=r"out: the lines of failed requests cannot be removed: No space left.*unchanged"
    ):
        recover(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
