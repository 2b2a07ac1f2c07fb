import pytest

from paceline import Limiter
from paceline.config import Config, parse_base_url, parse_limit
from paceline.core.quota import Quota, parse_quotas
from paceline.core.results import SettingsError
from paceline.providers.roots import without_version

TOML = """
provider = "openai"
tier = 2
base_url = "https://proxy.example/openai/v1/"
workers = 40
timeout_s = 12.5

[limits]
"gpt-5" = ["500 requests/min", "400k tokens/min"]
"gpt-4o" = "10 requests/min"
"""


def write(tmp_path, text, name="paceline.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_each_beats_the_next(tmp_path):
    file = write(tmp_path, TOML)
    environ = {"PACELINE_WORKERS": "50", "PACELINE_TIER": "3", "PACELINE_MAX_ATTEMPTS": "9", "PACELINE_PROVIDER": ""}
    given = {"workers": 60, "tier": None, "limits": {"gpt-4o": parse_quotas("20 requests/min")}}
    config = Config.load(file, environ, given)
    assert (config.workers, config.tier, config.max_attempts, config.timeout_s) == (60, "3", 9, 12.5)
    assert (config.provider, config.base_url) == ("openai", "https://proxy.example/openai/v1")
    assert config.limits == {
        "gpt-5": parse_quotas("500 requests/min,400k tokens/min"),
        "gpt-4o": (Quota("requests", 20),),
    }


def test_where_quotas_are_kept(tmp_path):
    file = write(tmp_path, "store = 'sqlite:a.db'\non_store_failure = 'fail_closed'\nlease_s = 0\n")
    config = Config.load(file, {})
    assert (config.store, config.on_store_failure, config.lease_s) == ("sqlite:a.db", "fail_closed", 0)
    environ = {"PACELINE_STORE": "sqlite:b.db", "PACELINE_ON_STORE_FAILURE": "fail_open", "PACELINE_LEASE_S": "2.5"}
    config = Config.load(file, environ)
    assert (config.store, config.on_store_failure, config.lease_s) == ("sqlite:b.db", "fail_open", 2.5)
    config = Config.load(file, environ, {"store": "memory:", "on_store_failure": "fail_safe"})
    assert (config.store, config.on_store_failure) == ("memory:", "fail_safe")
    assert (Config().store, Config().on_store_failure, Config().lease_s) == (None, "fail_safe", None)


@pytest.mark.parametrize(
    "url",
    [
        "redis:user:hunter2@host",
        "redi://:hunter2@host",
        "hunter2@host:6379",
        "hunter2:",
        "redis://:hunter2@host:port",
        "redis://:hunter2@host/0?timeout=5",
        "redis://:hunter2@host/first",
        {"url": "redis://:hunter2@host"},
    ],
)
def test_a_password_is_not_shown(url):
    with pytest.raises(SettingsError) as error:
        Config.load(environ={}, given={"store": url})
    assert "command line: store: " in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_password_is_not_in_the_repr():
    config = Config.load(environ={"PACELINE_STORE": "redis://:hunter2@host"})
    assert config.store == "redis://:hunter2@host"
    assert "hunter2" not in repr(config)


def test_yaml_says_the_same(tmp_path):
    text = "workers: 7\nlimits:\n  gpt-5: [500 requests/min]\n"
    config = Config.load(write(tmp_path, text, "paceline.yaml"), {})
    assert config == Config(workers=7, limits={"gpt-5": (Quota("requests", 500),)})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("worker = 5", "worker: no such setting; did you mean 'workers'"),
        ("speed = 5", "known: provider, tier"),
        ("workers = 'many'", "workers: 'many': it must be a whole number from 1"),
        ("workers = 0", "workers: 0"),
        ("workers = 2.5", "workers: 2.5"),
        ("workers = true", "workers: True"),
        ("timeout_s = -1", "timeout_s: -1"),
        ("headroom_s = nan", "headroom_s: nan"),
        ("provider = 5", "provider: 5: it must be a text"),
        ("base_url = 'api.openai.com'", "base_url: it must be an address like"),
        ("rpm_override = 5", "no such setting"),
        ("limits = 5", "limits: write a table"),
        ("[limits]\ngpt-5 = 5", "limits: gpt-5: 5: write texts"),
        ("[limits]\ngpt-5 = '500 request/min'", "unknown unit 'request'; did you mean 'requests'?"),
        ("[limits]\ngpt-5 = '500 rpx'", "limits: gpt-5: '500 rpx' has no period"),
        ("[limits]\ngpt-5 = '0 requests/min'", "limits: gpt-5: amount of requests is 0"),
        ("workers =", "Invalid value"),
        ("stor = 'memory:'", "stor: no such setting; did you mean 'store'"),
        ("store = 5", "store: it must be a text like 'sqlite:PATH'"),
        ("store = 'sqlit:state.db'", "store: no store is called 'sqlit': did you mean 'sqlite'"),
        ("store = 'state.db'", "store: a store is given by its URL: did you mean 'sqlite:state.db"),
        ("store = 'sqlite:'", "store: sqlite: has no path"),
        (
            "on_store_failure = 'fail_close'",
            "on_store_failure: 'fail_close': it must be 'fail_safe', 'fail_closed' or 'fail_open'; did you mean 'fail_closed'?",
        ),
        ("lease_s = 61", "lease_s: 61: it must be seconds from 0 to 60"),
    ],
)
def test_says_what_is_wrong_and_where(tmp_path, text, words):
    file = write(tmp_path, text)
    if words is None:  # any word may be a unit of the user's own
        assert Config.load(file, {}).limits
        return
    with pytest.raises(SettingsError) as error:
        Config.load(file, {})
    assert str(error.value).startswith(str(file))
    assert words in str(error.value)


def test_says_which_variable_or_file_is_wrong(tmp_path):
    with pytest.raises(SettingsError, match="PACELINE_TIMEOUT_S: 'soon'"):
        Config.load(environ={"PACELINE_TIMEOUT_S": "soon"})
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        Config.load(tmp_path / "none.toml", {})


def test_limits_on_the_command_line():
    assert parse_limit("openai/gpt-5 = 500 requests/min, 1k tokens/min")[0] == "openai/gpt-5"
    for text in ("500 requests/min", "=500 requests/min", "gpt-5=fast"):
        with pytest.raises(SettingsError):
            parse_limit(text)


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("http://127.0.0.1:80/v1", "http://127.0.0.1:80"),
        ("https://a.b/openai/v1/", "https://a.b/openai"),
        ("https://a.b", "https://a.b"),
    ],
)
def test_base_url(text, root):
    assert parse_base_url(text) == text.rstrip("/")
    assert without_version(parse_base_url(text)) == root


def test_overrides_change_one_unit_of_every_model():
    config = Config.load(environ={}, given={"rpm_override": 7.0, "tier": "2"})
    limiter = Limiter(**config.arguments("openai"))
    published = Limiter(**Config(tier="2").arguments("openai")).limits.model("openai", "gpt-5").quotas
    quotas = limiter.limits.model("openai", "gpt-5").quotas
    assert Quota("requests", 7) in quotas
    assert [q for q in quotas if q.unit != "requests"] == [q for q in published if q.unit != "requests"]


def test_an_unknown_tier_is_said_at_once():
    with pytest.raises(SettingsError, match="tier"):
        Limiter(**Config(tier="99", provider="openai").arguments())
