"""`paceline doctor`: what it finds, what it says of what is wrong, and that no secret is on its page."""

import json
import sys

import pytest
from click.testing import CliRunner

from paceline.cli.app import app

SECRET = "hidden"
SET = "500 requests/min (paceline.toml)"


@pytest.fixture
def doctor(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words, **environ):
        clean = {"PATH": "", "HOME": str(tmp_path), "SYSTEMROOT": "", **environ}
        monkeypatch.setattr("os.environ", clean)
        done = CliRunner().invoke(app, ["doctor", *words])
        assert SECRET not in done.output
        return done

    return run


def test_a_healthy_machine(doctor, tmp_path):
    (tmp_path / "paceline.toml").write_text(
        'provider = "openai"\nstore = "sqlite:new/q.db"\n[limits]\n"gpt-6-luna" = "500 requests/min"\n'
    )
    done = doctor("--json", OPENAI_API_KEY=SECRET, GROQ_API_KEY=SECRET)
    page = json.loads(done.stdout)
    assert (done.exit_code, page["problems"]) == (0, [])
    assert dict(page["keys (names only)"]) == {"openai": "OPENAI_API_KEY", "groq": "GROQ_API_KEY"}
    assert dict(page["limits"])["gpt-6-luna"] == SET
    assert "models of the table: see `paceline limits groq`" in dict(page["limits"])["groq/*"]
    assert page["store"] == [[f"sqlite:{tmp_path / 'new' / 'q.db'}", "is made at its first use"]]
    assert [way for name, way in page["paced here"] if name.startswith("openai ")] == ["paced, through httpx2"]
    assert dict(page["versions"])["python"].endswith(sys.executable)
    assert not (tmp_path / "new").exists()
    text = doctor(OPENAI_API_KEY=SECRET).stdout
    assert all(f"\n{name}\n" in f"\n{text}" for name in page if name != "problems")
    assert "nothing that can be seen from here" in text


MEASURED = {"minimax/*": "none is published: the rate is measured"}


@pytest.mark.parametrize(("limited", "others"), [("minimax/m", MEASURED), ("minimax/*", {}), ("*", {})])
def test_a_rate_is_measured_if_no_limit_is_published_or_set(doctor, tmp_path, limited, others):
    (tmp_path / "paceline.toml").write_text(f'[limits]\n"{limited}" = "500 requests/min"\n')
    limits = json.loads(doctor("--json", MINIMAX_API_KEY=SECRET).stdout)["limits"]
    assert dict(limits) == {limited: SET, **others}


@pytest.mark.parametrize(("environ", "problem"), [
    ({"OPENAI_API_KEY": f"'{SECRET}'"}, "OPENAI_API_KEY has blanks, quotes"),
    ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"https://me:{SECRET}@h"}, "invalid OPENAI_BASE_URL"),
    ({"PACELINE_TIER": "99", "PACELINE_PROVIDER": "openai"}, "settings: PACELINE_TIER: tier '99'"),
    ({"PACELINE_STORE": f"sqlite:{sys.executable}/q.db"}, f"{sys.executable} cannot be written, or is no folder"),
    ({"PACELINE_STORE": f"redis://:{SECRET}@127.0.0.1:1"}, "the store cannot be read: redis://127.0.0.1:1"),
    ({"PACELINE_SHADOW": "log.jsonl"}, "shadow is set"),
    ({"PACELINE_UPSTREAMS__EU__PROVIDER": "openai", "PACELINE_UPSTREAMS__EU__KEY_ENV": "EU_KEY"}, "variable EU_KEY is not set"),
    ({"OPENAI_BASE_URL": "http://127.0.0.1:8080/v1", "http_proxy": f"me:{SECRET}@proxy:3128"}, "add 127.0.0.1,localhost to NO_PROXY"),
])  # fmt: skip
def test_what_is_wrong(doctor, environ, problem):
    done = doctor("--json", "--timeout", "1", **environ)
    assert done.exit_code == 1
    (found,) = json.loads(done.stdout)["problems"]
    assert problem in found


def test_a_store_on_a_drive_that_is_not_there(doctor, monkeypatch):
    for its in ("os.path.exists", "pathlib.Path.exists"):
        monkeypatch.setattr(its, lambda _: False)
    monkeypatch.setattr("paceline.cli.doctor.os.access", lambda *_: False)
    done = doctor(PACELINE_STORE="sqlite:/none/q.db")
    assert (done.exit_code, "cannot be written, or is no folder" in done.stdout) == (1, True)


def test_another_programs_file_is_no_store(doctor, tmp_path):
    (tmp_path / "q.db").write_text("text")
    assert "the store cannot be read" in doctor(PACELINE_STORE="sqlite:q.db").stdout
