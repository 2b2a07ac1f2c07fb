"""Settings in a file, the environment and on the command line, their precedence, and which settings are invalid."""

import linecache
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from config_helpers import load_limiter

import paceline
from paceline.config import Config, find_file, parse_limit
from paceline.config.sources import PROBLEMS_MAX
from paceline.core.quota import Quota, Rule, parse_quotas
from paceline.core.results import PacelineWarning, SettingsError

TOML = """
provider = "openai"
tier = 2
headroom_s = 2
acquire_timeout_s = 60
estimate_factor = 1.2
min_interval_s = 0.1
learn = false
waiting_max = 1000
ttl_s = 120
breaker = false

[limits]
"openai/*" = "100 requests/min"
gpt-5 = { rpm = 500, tpm = 500_000 }
starts = "7 starts/min window"

[limits.anthropic]
default = { rpm = 50, concurrency = 2 }
"claude-haiku-4-5" = ["60 requests/min", "50k input_tokens/min"]

[concurrency]
openai = 10
default = 3

[lanes.wrap]
weight = 4

[lanes.prep]
priority = -1

[retry]
max_attempts = 3
backoff_s = 2.0
max_elapsed_s = 30
faults = true
"""


def load(name, environ=None, **given):
    return Config.load(Path(name), environ or {}, given)


def message(name, environ=None, **given):
    with pytest.raises(SettingsError) as error:
        load(name, environ, **given)
    return str(error.value)


class TestSchema:
    def test_toml(self, write):
        config = load(write(TOML))
        assert (config.provider, config.tier, config.headroom_s, config.waiting_max) == ("openai", "2", 2, 1000)
        assert (config.acquire_timeout_s, config.estimate_factor, config.min_interval_s) == (60, 1.2, 0.1)
        assert (config.learn, config.breaker, config.ttl_s) == (False, None, 120)
        assert config.limits == {
            "openai/*": parse_quotas("100 requests/min"),
            "gpt-5": parse_quotas("500 requests/min, 500k tokens/min"),
            "starts": parse_quotas("7 starts/min window"),
            "anthropic/*": (*parse_quotas("50 requests/min"), Quota("concurrency", 2, 0, rule=Rule.SLOTS)),
            "anthropic/claude-haiku-4-5": parse_quotas("60 requests/min, 50k input_tokens/min"),
        }
        assert config.concurrency == {"openai": 10, "*": 3}
        assert config.lanes == {
            "wrap": paceline.LaneSpec("wrap", 4.0, 0),
            "prep": paceline.LaneSpec("prep", 1.0, -1),
        }
        assert config.max_attempts == 3
        assert config.retry == {"backoff_s": 2.0, "max_elapsed_s": 30, "faults": True}

    def test_both_languages_say_the_same(self, write):
        yaml = write(
            "lanes: {wrap: {weight: 4}}\nbreaker: {failures: 3}\nlimits: {openai: {gpt-5: {rpm: 7}}}\n", "a.yml"
        )
        toml = write("lanes.wrap.weight = 4\nbreaker.failures = 3\nlimits.openai.gpt-5.rpm = 7\n")
        assert load(yaml) == load(toml) != Config()

    def test_an_empty_file_says_nothing(self, write):
        assert load(write("")) == load(write("# nothing\n", "empty.yaml")) == Config()


class TestPrecedence:
    FILE = 'workers = 1\ntier = "1"\nheadroom_s = 1\n[retry]\nbackoff_s = 1\njitter = 0.5\n[limits]\n"openai/gpt-5.1" = {rpm = 1}\n'

    def test_command_line_then_environment_then_file(self, write):
        environ = {
            "PACELINE_TIER": "2",
            "PACELINE_WORKERS": "2",
            "PACELINE_RETRY__BACKOFF_S": "2",
            "PACELINE_LIMITS__OPENAI__GPT_5_1": "2 requests/min",
            "PACELINE_LANES__WRAP__WEIGHT": "2",
            "PACELINE_CONCURRENCY__GOOGLE": "2",
            "PACELINE_BREAKER__FAILURES": "2",
            "PACELINE_LEARN": "no",
            "PACELINE_PROVIDER": "",
        }
        limits = {"openai/gpt-5.1": parse_quotas("3 requests/min")}
        config = load(write(self.FILE), environ, workers=3, tier=None)
        assert (config.workers, config.tier, config.headroom_s, config.provider) == (3, "2", 1, None)
        assert config.retry == {"backoff_s": 2, "jitter": 0.5}
        assert config.limits == {"openai/gpt-5.1": parse_quotas("2 requests/min")}
        assert (config.lanes["wrap"].weight, config.concurrency, config.learn) == (2, {"gemini": 2}, False)
        assert config.breaker == paceline.BreakerPolicy(failures=2)
        assert load(write(self.FILE), environ, limits=limits).limits == limits

    def test_a_model_that_is_named_alone_is_meant_at_every_provider(self, write):
        name = write(
            "[limits]\n'openai/gpt-5' = '9 requests/min'\n'groq/gpt-5' = '8 requests/min'\n'openai/a' = '7 requests/min'\n"
        )
        five, six = parse_quotas("5 requests/min"), parse_quotas("6 requests/min")
        config = load(name, {"PACELINE_LIMITS__GPT_5": "5 requests/min"}, limits={"groq/gpt-5": six})
        limits = {"openai/gpt-5": five, "groq/gpt-5": six, "openai/a": parse_quotas("7 requests/min"), "gpt-5": five}
        assert config.limits == limits
        assert config.origins["limits", "openai/gpt-5"] == "PACELINE_LIMITS__GPT_5"
        both = load(name, limits={"gpt-5": five, "openai/gpt-5": six})
        assert (both.limits["openai/gpt-5"], both.limits["groq/gpt-5"]) == (six, five)

    def test_a_file_s_limits_beat_the_tables(self, write):
        name = write('provider = "openai"\ntier = 1\n[limits]\n"gpt-5" = { rpm = 3 }\n')
        limits = paceline.Limiter.load(name).limits
        assert [str(quota) for quota in limits.resolve("gpt-5").quotas] == ["3 requests/min"]
        published = paceline.Limiter.for_provider("openai", tier=1).limits.resolve("gpt-5-mini")
        assert limits.resolve("gpt-5-mini").quotas == published.quotas

    def test_off_and_on_again(self, write):
        name = write("[breaker]\nfailures = 3\n")
        assert load(name, {"PACELINE_BREAKER": "off"}).breaker is None
        assert load(write("breaker = false"), {"PACELINE_BREAKER__PAUSE_S": "5"}).breaker.pause_s == 5
        assert load(write("breaker = true")).breaker == paceline.BreakerPolicy()

    @pytest.mark.parametrize(
        ("variable", "name"),
        [
            ("LIMITS__OPENAI__GPT_5_MINI", "openai/gpt-5-mini"),
            ("LIMITS__OPENAI__DEFAULT", "openai/*"),
            ("LIMITS__DEFAULT", "*"),
            ("LIMITS__MY__OWN_MODEL_7B", "my/own-model-7b"),  # in neither the file nor the table
            ("LIMITS__OPENAI__GPT_5_1_CODEX", "openai/gpt-5.1-codex"),  # the table knows
            ("LIMITS__ANTHROPIC__CLAUDE_OPUS_4_5", "anthropic/claude-opus-4-5"),
            ("LIMITS__GPT_5_1", "gpt-5.1"),
        ],
    )
    def test_how_a_variable_says_a_model(self, write, variable, name):
        config = load(write('provider = "openai"'), {f"PACELINE_{variable}": "5 requests/min"})
        assert config.limits == {name: (Quota("requests", 5),)}


class TestWhichFile:
    def test_the_one_named_then_the_variable_s_then_here(self, write):
        assert find_file(None, {}) is None
        write("", "paceline.yaml")
        assert find_file(None, {}) == Path("paceline.yaml")
        assert find_file(None, {"PACELINE_CONFIG": "b.toml"}) == Path("b.toml")
        assert find_file("a.toml", {"PACELINE_CONFIG": "b.toml"}) == Path("a.toml")

    def test_two_here_are_one_too_many(self, write):
        write("")
        write("", "paceline.yaml")
        with pytest.raises(SettingsError, match=r"paceline.toml and paceline.yaml are both here"):
            paceline.Limiter.load()

    def test_a_program_that_is_told_nothing_says_so(self, monkeypatch):
        with pytest.raises(SettingsError, match=r"no paceline.toml, .* here, and no PACELINE_... is set"):
            paceline.Limiter.load()
        monkeypatch.setenv("PACELINE_PROVIDER", "openai")
        assert paceline.Limiter.load().limits.home == "openai"

    def test_a_missing_file_is_no_empty_one(self):
        with pytest.raises(SettingsError, match=r"none.toml: cannot be read: No such file"):
            paceline.Limiter.load("none.toml")


class TestWhatIsWrong:
    def test_everything_at_once_with_line_and_name(self, write):
        text = """
defaults:
  openai:
    default: {rpm: 0, tmp: 30000}
    gpt-5: {rpm: fast}
    gpt-5: {rpm: 5}
concurency: {openai: 10}
concurrency: {openai: 0, groq: 2.5}
settings:
  aquire_timeout: 300
  min_request_interval_ms: -1
lanes:
  wrap: {weigth: 4, priority: 1.5}
  prep: 3
retry: 5
breaker: {failures: 0}
headroom_s: [1]
limits: {"gpt-5": "500 request/min", "empty": {}}
"""
        environ = {"PACELINE_WORKER": "3", "PACELINE_TIER": "99", "PACELINE_RETRY__BACKOF_S": "1"}
        assert message(write(text, "a.yaml"), environ, provider="openai", timeout_s=-1).splitlines() == [
            "a.yaml:6: defaults: openai: gpt-5: it is also in line 5: keep one",
            "a.yaml:4: defaults: openai: default: rpm: 0: it must be a number from 0.001 to 1,000,000,000,000",
            "a.yaml:4: defaults: openai: default: tmp: no such setting; did you mean 'tpm'?",
            "a.yaml:7: concurency: no such setting; did you mean 'concurrency'?",
            "a.yaml:8: concurrency.openai: 0: it must be a whole number from 1 to 1,000,000",
            "a.yaml:8: concurrency.groq: 2.5: it must be a whole number from 1 to 1,000,000",
            "a.yaml:10: settings.aquire_timeout: no such setting; did you mean 'acquire_timeout'?",
            "a.yaml:11: settings.min_request_interval_ms: -1: it must be milliseconds from 0 to 3,600,000",
            "a.yaml:13: lanes.wrap.weigth: no such setting; did you mean 'weight'?",
            "a.yaml:13: lanes.wrap.priority: 1.5: it must be a whole number from -1,000,000 to 1,000,000",
            "a.yaml:14: lanes.prep: write a table: weight = 4; it is 3",
            "a.yaml:15: retry: write a table: max_attempts = 3; it is 5",
            "a.yaml:16: breaker.failures: 0: it must be a whole number from 1 to 1,000,000",
            "a.yaml:17: headroom_s: [1]: it must be seconds from 0 to 3,600",
            "a.yaml:18: limits: gpt-5: '500 request/min': unknown unit 'request'; did you mean 'requests'?",
            "a.yaml:18: limits: empty: it is empty: give rpm, tpm, ...",
            "PACELINE_WORKER: no such setting; did you mean 'workers'?",
            "PACELINE_RETRY__BACKOF_S: no such setting; did you mean 'backoff_s'?",
            "command line: timeout_s: -1: it must be seconds from 0.001 to 86,400",
            (
                "PACELINE_TIER: tier '99' of openai is unknown (known: free, tier_1, tier_2, build, tier_3, tier_4, launch,"
                " tier_5, grow); did you mean 'tier_5'?"
            ),
        ]

    def test_no_more_than_twenty(self, write):
        lines = message(write("".join(f"x{i}x = 1\n" for i in range(30)))).splitlines()
        assert len(lines) == PROBLEMS_MAX + 1
        assert lines[-1] == "and 10 more"

    def test_said_twice_by_two_names(self, write):
        name = write(
            "max_attempts = 3\n[retry]\nmax_attempts = 4\n[limits]\n'openai/*' = '5 requests/min'\nopenai.default.rpm = 6\n"
        )
        assert message(name).splitlines() == [
            "paceline.toml: retry.max_attempts: the same as paceline.toml: max_attempts: keep one",
            "paceline.toml: limits: openai: default: the same as paceline.toml: limits: openai/*: keep one",
        ]

    @pytest.mark.parametrize(
        ("text", "name", "words"),
        [
            ("x = 1\nworkers = no", "a.toml", "a.toml: Invalid value (at line 2, column 11)"),
            ("workers: [1", "a.yaml", "a.yaml:1: "),
            ("a: 1\n b: 2", "a.yaml", "a.yaml:2: mapping values are not allowed here"),
            ("[1, 2]", "a.yaml", "a.yaml: it must hold settings by name"),
            ("workers: 2026-13-45", "a.yaml", "a.yaml: month must be in 1..12"),
            ("x: !!python/object:os.system {}", "a.yaml", "a.yaml:1: could not determine a constructor"),
            ("workers: &a [*a]", "a.yaml", "a.yaml:1: workers: [[...]]: it must be a whole number"),
            ("a: " + "[\n" * 1_500, "a.yaml", "a.yaml: it is nested too deeply"),
            ("a = " + "[" * 1_500, "a.toml", "a.toml: it is nested too deeply"),
            ("# " + "x" * 1_000_001, "a.toml", "characters are too many: 1,000,000 at most"),
        ],
    )
    def test_files_that_are_none(self, write, text, name, words):
        assert words in message(write(text, name))

    def test_aliases_that_multiply(self, write):
        levels = [
            f"{chr(98 + i)}: &{chr(98 + i)} {{{', '.join(f'k{n}: *{chr(97 + i)}' for n in range(9))}}}"
            for i in range(20)
        ]
        assert "no such setting" in message(write("\n".join(["a: &a {x: 1}", *levels]), "a.yaml"))

    def test_a_merged_yaml_table_is_no_repetition(self, write):
        text = "limits:\n  gpt-5: &one {rpm: 5, tpm: 100}\n  gpt-5-mini:\n    <<: *one\n    rpm: 6\n"
        limits = load(write(text, "a.yaml")).limits
        assert [quota.amount for quota in sorted(limits["gpt-5-mini"], key=lambda quota: quota.unit)] == [6, 100]

    @pytest.mark.parametrize(
        "text",
        [
            "stor: redis://:hunter2@h",
            "store: 'redis://:hunter2@h:port'",
            "store: 'redi://:hunter2@h'",
            "store: {url: 'redis://:hunter2@h'}",
            "api_key: hunter2",
            "provider: ['redis://:hunter2@h']",
            "x: [hunter2\n",
        ],
    )
    def test_secrets_stay_out(self, write, text):
        assert "hunter2" not in message(write(text, "a.yaml"))

    def test_without_pyyaml_the_extra_is_named(self, write, monkeypatch):
        monkeypatch.setitem(sys.modules, "yaml", None)
        assert "pip install 'paceline[config]'" in message(write("workers: 3", "a.yaml"))

    def test_without_pydantic_the_extra_is_named(self):
        code = "import sys; sys.modules['pydantic'] = None; import paceline; paceline.Limiter.load()"
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
        assert "SettingsError" in done.stderr
        assert "pip install 'paceline[config]'" in done.stderr

    def test_a_variable_of_another_program_is_only_mentioned(self):
        with pytest.warns(PacelineWarning, match="PACELINE_XYZZY is not a setting") as caught:
            assert Config.load(None, {"PACELINE_XYZZY": "1"}) == Config()
        assert caught[0].filename == __file__

    @pytest.mark.parametrize("name", ["PACELINE_KEY", "PACELINE_KEYS", "PACELINE_EXEC"])
    def test_other_variables_of_paceline_are_no_unknown_settings(self, name):
        assert not Config.load(environ={name: "x"}).origins

    def test_a_command_names_an_unknown_variable_and_no_line_of_code(self, tmp_path):
        command = [sys.executable, "-m", "paceline", "config"]
        environ = {**os.environ, "PACELINE_KEEP": "1", "HOME": str(tmp_path)}
        ran = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ran.stderr == "paceline: PACELINE_KEEP is not a setting of paceline\n"

    @pytest.mark.parametrize("provider", ["opnai", "acme", "ollama"])
    @pytest.mark.filterwarnings("ignore:'opnai' is used")
    def test_no_tier_of_a_provider_of_one_s_own_is_known(self, write, provider):
        text = message(write(f'provider = "{provider}"\ntier = 99'))
        assert text.startswith(f"paceline.toml: no tiers of {provider} are known")
        assert ("did you mean 'openai'" in text) == (provider == "opnai")

    @pytest.mark.parametrize(
        "text",
        [
            "concurrency:\n  opnai: 3\n",
            "defaults:\n  opnai: {default: {rpm: 5}}\n",
            "joint_limits:\n  'opnai/*': 9 requests/min\n",
        ],
    )
    def test_a_provider_that_looks_like_a_mistake_is_told_at_the_line_that_loads_it(self, write, text):
        name = write(text, "a.yaml")
        with pytest.warns(PacelineWarning) as caught:
            paceline.Limiter.load(name)
        (warning,) = caught
        assert warning.filename == __file__
        assert linecache.getline(__file__, warning.lineno).strip() == "paceline.Limiter.load(name)"
        said = str(warning.message)
        assert said.startswith(f"a.yaml:2: {text.partition(':')[0]}")
        assert "'opnai' is used as a provider of your own; did you mean 'openai'" in said


@pytest.mark.parametrize(
    "name", ["openai/gpt-6-luna", "openai/*", "gpt-6-luna", "claude/x", "groq/openai/gpt-oss-120b"]
)
def test_a_unit_that_no_provider_counts(write, name):
    text = f'provider = "groq"\n[limits]\n"{name}" = ["5 bananas/min", "9 requests/min"]'
    said = message(write(text))
    assert re.search(r"^paceline.toml: limits: .*: no provider counts 'bananas', write e.g. requests", said)
    environ = {"PACELINE_LIMITS__OPENAI__GPT_6_LUNA": "5 bananas/min"}
    assert "no provider counts 'bananas'" in message(write(""), environ)


def test_units_that_some_provider_counts_and_those_of_pools_of_one_s_own(write):
    text = '[limits]\nstarts = "7 starts/min"\n"acme/m" = "5 bananas/min"\n"openai/gpt-image-2" = "5 images/min"\n'
    text += '"groq/whisper-large-v3" = "7200 audio_seconds/hour"\n"cohere/x" = "9 input_images/min"'
    assert len(load(write(text)).limits) == 5


def test_a_password_is_not_in_the_repr():
    config = Config.load(environ={"PACELINE_STORE": "redis://:hunter2@host"})
    assert config.store == "redis://:hunter2@host"
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speed = 5", "known: provider, tier"),
        ("workers = 'many'", "workers: 'many': it must be a whole number from 1"),
        ("workers = true", "workers: True"),
        ("headroom_s = nan", "headroom_s: nan"),
        ("provider = 5", "provider: 5: it must be a text"),
        ("base_url = 'api.openai.com'", "base_url: it must be an address like"),
        ("retry.backoff_s = -1", "retry.backoff_s: -1: it must be seconds from 0 to 86,400"),
        ("limits.openai.gpt-5.rpm = 'fast'", "limits: openai: gpt-5: rpm: 'fast': it must be a number from 0.001 to"),
        ("limits = 5", "limits: write a table"),
        ("[limits]\ngpt-5 = 5", "limits: gpt-5: 5: write texts"),
        ("store = 5", "store: it must be a text like 'sqlite:PATH'"),
        ("store = 'sqlit:state.db'", "store: no store is called 'sqlit': did you mean 'sqlite'"),
        (
            "on_store_failure = 'fail_close'",
            "on_store_failure: 'fail_close': it must be 'fail_safe', 'fail_closed' or 'fail_open'; did you mean 'fail_closed'?",
        ),
        ("lease_s = 61", "lease_s: 61: it must be seconds from 0 to 60"),
    ],
)
def test_says_what_is_wrong_and_where(write, text, words):
    said = message(write(text))
    assert said.startswith("paceline.toml")
    assert words in said


def test_limits_on_the_command_line():
    assert parse_limit("openai/gpt-5 = 500 requests/min, 1k tokens/min")[0] == "openai/gpt-5"
    for text in ("500 requests/min", "=500 requests/min", "gpt-5=fast"):
        with pytest.raises(SettingsError):
            parse_limit(text)


def test_overrides_in_the_environment(write):
    file = write('provider = "openai"\nlimits.gpt-5 = "500 requests/min, 1M tokens/min"')
    said = {"PACELINE_RPM_OVERRIDE": "60", "PACELINE_TPM_OVERRIDE": "1000"}
    limiter = load_limiter(file, said)
    assert [str(quota) for quota in limiter.limits.resolve("gpt-5").quotas] == ["60 requests/min", "1k tokens/min"]
    assert Config.load(None, said, {"rpm_override": 7}).rpm_override == 7, "the command line beats it"
    with pytest.raises(SettingsError) as error:
        Config.load(None, {"PACELINE_RPM_OVERRIDE": "x", "PACELINE_TPM_OVERIDE": "5"})
    assert str(error.value).splitlines() == [
        "PACELINE_RPM_OVERRIDE: 'x': it must be a number from 0.001 to 1,000,000,000,000",
        "PACELINE_TPM_OVERIDE: no such setting; did you mean 'tpm_override'?",
    ]
