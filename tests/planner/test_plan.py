"""Plans: the seeds' numbers, exact arithmetic in virtual time, the command, and what is wrong with a workload file."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from tests.planner import logs

import paceline
from paceline.cli.app import app
from paceline.config import Config
from paceline.core.results import SettingsError
from paceline.planner.plan import plan
from paceline.planner.simulation import Request
from paceline.planner.workload import of_calls, read_workload, seconds_of

EXAMPLES = Path(__file__).parents[2] / "examples"
written = partial(logs.written, name="work.toml")

ACM = """
items = 75
provider = { latency_s = 0.5, latency_per_token_s = 0.004, jitter = 0.3 }

[[phases]]
name = "document"
models = ["openai/gpt-6-luna", "groq/openai/gpt-oss-120b"]
in_turn = true
input_tokens = 25
output_tokens = 200
max_output_tokens = 400

[[phases]]
name = "report"
models = ["openai/gpt-6.1-sol", "anthropic/claude-haiku-5-5", "google/gemini-3.8-flash"]
parallel = true
input_tokens = 225
output_tokens = 200
max_output_tokens = 400

[[phases]]
name = "verdict"
models = ["azure/gpt-6-astra", "google/gemini-3.8-flash"]
calls = 3
parallel = true
input_tokens = 225
output_tokens = 40
max_output_tokens = 80
"""


@pytest.mark.long("a world of thousands of requests")
def test_the_paper_pipeline_finishes_33_papers_a_minute():
    work = read_workload(EXAMPLES / "plan" / "papers.toml")
    made = plan(work, {"quotas": work.limits})
    assert made.items_per_min == pytest.approx(33.3, abs=0.7)
    assert made.refused == 0
    assert made.binds == "pony: 100 requests/min"
    used = {pool: use.quotas[0].share for pool, use in made.pools.items()}
    assert used["pony"] == pytest.approx(1.0, abs=0.01)
    assert 0.8 < used["arcee"] < 0.95
    assert set(made.lanes) == {"prep", "expensive", "wrap"}


@pytest.mark.parametrize(("rule", "starts"), [
    ("even", [0.0] * 7 + [60 / 7 * n for n in range(1, 44)]),
    ("exact", [60.0 * (n // 7) for n in range(50)]),
])  # fmt: skip
def test_fifty_agents_start_when_the_limit_allows(rule, starts):
    work = of_calls([Request("gemini")] * 50, workers=None)
    made = plan(work, {"quotas": {"gemini": f"7 starts/min {rule}"}})
    assert made.starts_s == pytest.approx(starts, abs=0.001)
    assert made.items == 50


@pytest.mark.long("a world of thousands of requests")
def test_the_evaluation_takes_a_minute(tmp_path):
    limits = Config.load(EXAMPLES / "acm" / "limits.yaml").arguments(patient=False)
    made = plan(read_workload(written(tmp_path, ACM)), limits)
    assert made.calls == 750
    assert made.seconds == pytest.approx(62, rel=0.05)  # as the example measures it
    assert made.binds == "azure/gpt-6-astra: 35k tokens/min"
    assert made.refused == 0


def work_of(calls, workers=None, **fields):
    return replace(of_calls([Request("m")] * calls, workers=workers), **fields)


def test_the_arithmetic_of_one_bucket():
    """A burst at once, then one each second; the last answer comes a latency later."""
    work = work_of(100, provider={"latency_s": 5.0, "headers": False})
    made = plan(work, {"quotas": {"m": "60 requests/min burst 10"}, "headroom_s": 0.0})
    assert made.seconds == pytest.approx(90 + 5, abs=0.1)
    assert made.lanes["default"].longest_s == pytest.approx(90, abs=0.01)
    assert sum(made.pools["m"].quotas[0].timeline) * made.seconds / 60 == pytest.approx(100, rel=0.01)


def test_workers_bound_what_is_in_work():
    made = plan(work_of(100, workers=10, provider={"latency_s": 2.0}), {"quotas": {"m": "1M requests/min"}})
    assert made.seconds == pytest.approx(100 / 10 * 2.02, rel=0.02)
    assert made.binds == "latency"


@pytest.mark.parametrize(
    ("options", "binds"),
    [
        ({"joint_limits": {"openai": "60 requests/min"}}, "60 requests/min of joint/openai/*"),
        ({"lanes": [paceline.LaneSpec("default", limits=["60 requests/min"])]}, "60 requests/min of lane/default"),
        ({"min_interval_s": 1}, "1 requests/s exact of openai/spacing"),
    ],
    ids=["joint", "lane", "spacing"],
)
def test_a_limit_that_models_share_binds(options, binds):
    made = plan(
        of_calls([Request("openai/gpt-5")] * 200, workers=None), {"quotas": {"*": "9k requests/min"}, **options}
    )
    assert made.seconds == pytest.approx(140 if options.keys() != {"min_interval_s"} else 200, rel=0.05)
    assert made.binds == f"openai/gpt-5: {binds}"


def test_the_price_and_what_no_price_is_known_of():
    calls = [Request("openai/gpt-5", 1_000_000, 100_000)] * 3
    options = {"quotas": {"*": "1B tokens/min"}, "prices": {"openai/gpt-5": {"input": 2.0, "output": 10.0}}}
    assert plan(of_calls(calls, workers=1), options).usd == pytest.approx(3 * (2.0 + 1.0))
    assert plan(of_calls([Request("mine")], workers=1), options).usd is None


def test_a_call_that_can_never_be_sent_fails_and_the_others_go():
    calls = [Request("m", 500), Request("m", 50), Request("m", 50)]
    made = plan(of_calls(calls, workers=1), {"quotas": {"m": "100 tokens/min"}})
    assert made.calls == 2
    assert sum(made.failed.values()) == 1


def test_a_call_of_a_negative_size_is_refused():
    with pytest.raises(SettingsError, match="negative"):
        Request("jobs", input_tokens=-5)


TALK = """
items = 20
provider = { latency_s = 0.6, latency_per_token_s = 0.034, jitter = 0.5 }
limits = { "anthropic/m" = "50 requests/min,ITPM input_tokens/min,8k output_tokens/min" }

[[phases]]
name = "agents"
models = "anthropic/m"
calls = 10
input_tokens = 12_000
output_tokens = 100
grows = 600
think_s = [1, 5]
"""


def talked(tmp_path, itpm):
    work = read_workload(written(tmp_path, TALK.replace("ITPM", itpm)))
    return plan(work, {"quotas": work.limits})


def test_the_turns_of_a_conversation_are_cached_where_the_quota_lets_them_come_in_time(tmp_path):
    made = talked(tmp_path, "300k")
    assert made.turns.again == 0
    assert made.turns.cached == pytest.approx(1 - 17_400 / (10 * 14_700), abs=0.01)
    used = {use.quota.unit: use.used for use in made.pools["anthropic/m"].quotas}
    assert used["input_tokens"] == 20 * (12_000 + 9 * 600)
    assert made.items == 20
    assert made.items_s[0] <= made.items_s[1] <= made.seconds


def test_agents_that_a_small_quota_carries(tmp_path):
    made = talked(tmp_path, "30k")
    assert made.turns.carried == pytest.approx(30_000 / 60 * (3 * 0.9 + 4) / 1_740, rel=0.05)
    assert made.turns.an_hour == pytest.approx(1_044, rel=0.1)
    assert made.turns.again == 0


def test_agents_on_the_command_line():
    command = [
        "plan", "anthropic/claude-sonnet-4", "--tier", "1", "--tier", "2", "--agents", "3", "--agents", "5", "--turns", "4",
        "--prompt", "2k", "--shared", "1.5k", "--grows", "100", "--think", "2s", "--json",
    ]  # fmt: skip
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    plans = json.loads(result.stdout)["plans"]
    assert [one["variant"] for one in plans] == [
        "tier 1, 3 agents", "tier 1, 5 agents", "tier 2, 3 agents", "tier 2, 5 agents",
    ]  # fmt: skip
    assert [one["calls"] for one in plans] == [12, 20, 12, 20]
    assert plans[1]["turns"]["carried"] < plans[3]["turns"]["carried"]
    assert "carries" in CliRunner().invoke(app, command[:-1]).output


def test_what_is_left_out_is_extended_at_the_steady_speed():
    calls, options = [Request("m")] * 500, {"quotas": {"m": "150 requests/min"}}
    whole, part = (plan(of_calls(calls, workers=50, most=most), options) for most in (500, 300))
    assert part.extended
    assert part.seconds == pytest.approx(whole.seconds, rel=0.05)


def test_one_seed_gives_one_run():
    def made(seed):
        work = work_of(50, workers=5, provider={"latency_s": 1, "jitter": 1})
        return plan(work, {"quotas": {"m": "600 requests/min"}}, seed=seed)

    assert made(1) == made(1)
    assert made(1).seconds != made(2).seconds


def test_a_day_ends_at_midnight():
    made = plan(work_of(25), {"quotas": {"m": "10 requests/day"}}, start_s=1_800_000_000.0 + 8 * 3_600)  # 16:00 UTC
    assert made.seconds == pytest.approx(8 * 3_600 + 86_400, rel=0.01)
    assert made.binds.startswith("m: 10 requests/day")


@pytest.mark.parametrize(("text", "problem"), [
    ("items = 3", "phases: this field is missing"),
    ("phases = []\nitems = 3", "phases is empty"),
    ('phases = [{name = "a", models = "m"}]', "the number of items is missing"),
    ('items = 0\nphases = [{name = "a", models = "m"}]', "items is 0"),
    ('items = 3\nphases = [{name = "a", models = "m", calls = 0}]', "phases.0: calls is 0"),
    ('items = 3\nphases = [{name = "a", models = "m", tokens = 5}]', "phases.0.tokens: there is no such field"),
    ('items = 3\nphases = [{name = "a", models = "m", input_tokens = [5, 1]}]', "input_tokens is [5, 1]"),
    ('items = 3\nphases = [{name = "a", models = "m", think_s = [5, 1]}]', "think_s is [5.0, 1.0]: it must be a number, or two"),
    ('items = 3\nphases = [{name = "a", models = "m", think_s = [1, 2, 3]}]', "think_s is [1.0, 2.0, 3.0]"),
    ('items = 3\nphases = [{name = "a", models = "m", input_tokens = "many"}]', "input_tokens: write a number, or two"),
    ('items = 3\nphases = [{name = "a", models = "m"}, {name = "a", models = "m"}]', "two phases have the same name"),
    ('items = 3\narrivals = "often"\nphases = [{name = "a", models = "m"}]', "write it like '20/min'"),
    ('items = 3\narrivals = "0/min"\nphases = [{name = "a", models = "m"}]', "no item ever arrives"),
    ('duration = "soon"\nphases = [{name = "a", models = "m"}]', "write it like '6h'"),
])  # fmt: skip
def test_a_wrong_workload_names_the_field(tmp_path, text, problem):
    with pytest.raises(SettingsError) as caught:
        read_workload(written(tmp_path, text))
    assert problem in str(caught.value)
    assert "work.toml" in str(caught.value)


def test_durations():
    assert [seconds_of(text) for text in ("45s", "1.5 min", "6h", "1d")] == [45, 90, 21_600, 86_400]
    for text in ("0s", "5", "x", "-1s"):
        with pytest.raises(ValueError, match="write it like"):
            seconds_of(text)


def test_arrivals_at_a_rate_and_at_times(tmp_path):
    phases = '\nphases = [{name = "a", models = "m"}]\nlimits = {m = "1M requests/min"}'
    even = read_workload(written(tmp_path, 'items = 30\narrivals = "60/min"' + phases))
    assert plan(even, {"quotas": even.limits}).starts_s == pytest.approx(range(30))
    listed = read_workload(written(tmp_path, "arrivals = [9, 0, 5]" + phases))
    assert plan(listed, {"quotas": listed.limits}).starts_s == pytest.approx([0, 5, 9])


@pytest.fixture
def three(tmp_path):
    """A workload of three calls."""
    return written(tmp_path, 'items = 3\nphases = [{name = "a", models = "openai/gpt-5"}]')


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


class TestTheCommand:
    def test_every_tier_and_which_is_needed(self, tmp_path):
        file = written(tmp_path, 'items = 300\nphases = [{name = "a", models = "openai/gpt-5", input_tokens = 9000}]')
        done = run("plan", file, "--tier", "1", "--tier", "2", "--within", "4min", "--json")
        assert done.exit_code == 0, done.output
        plans = {one["variant"]: one for one in json.loads(done.stdout)["plans"]}
        assert plans["tier 1"]["seconds"] > 4 * 60 > plans["tier 2"]["seconds"]
        assert done.stderr.startswith("tier 2: it ends in ")
        late = run("plan", file, "--within", "1s", "--tier", "1")
        assert late.exit_code == 1
        assert "no variant ends within 1.0 s: the shortest takes " in late.stderr

    def test_a_variant_whose_calls_fail_is_none_that_ends(self, tmp_path, three):
        config = written(tmp_path, 'budget = "0.000001 usd/day"', name="paceline.toml")
        done = run("plan", three, "--config", config, "--tier", "1", "--within", "1h")
        assert done.exit_code == 1
        assert "no variant ends within 1 h 00 min: in each of them calls fail" in done.stderr

    def test_requests_of_a_run(self, tmp_path):
        body = {"model": "gpt-5-mini", "max_tokens": 100, "messages": [{"role": "user", "content": "hello " * 50}]}
        line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
        file = tmp_path / "in.jsonl"
        file.write_text("\n".join([line] * 90))
        done = run("plan", file, "--limit", "gpt-5-mini=50 requests/min", "--json", "--picture", tmp_path / "use.svg")
        assert done.exit_code == 0, done.output
        (made,) = json.loads(done.stdout)["plans"]
        assert made["calls"] == 90
        assert made["binds"] == "openai/gpt-5-mini: 50 requests/min"
        assert made["seconds"] == pytest.approx(40 / 50 * 60 + 4, rel=0.03)  # and the last answer
        drawn = ET.parse(tmp_path / "use.svg")
        assert "openai/gpt-5-mini: 50 requests/min" in [text.text for text in drawn.iter()]
        file.write_text("")
        assert "there is nothing in it" in run("plan", file).stderr
        file.write_text(line + "\n{")
        done = run("plan", file)
        assert (done.exit_code, "line 2" in done.stderr) == (2, True)

    @pytest.mark.parametrize(
        ("options", "pool"),
        [
            (["--base-url", "https://api.groq.com/openai"], "groq/gpt-5"),
            (["--base-url", "http://127.0.0.1:9", "--limit", "gpt-5=60 requests/min"], "openai/gpt-5"),
            (["--base-url", "http://127.0.0.1:9", "--provider", "openai"], "openai/gpt-5"),
            (["--base-url", "http://127.0.0.1:9"], None),
        ],
    )
    def test_the_address_names_the_limits_as_in_a_run(self, tmp_path, options, pool):
        file = written(tmp_path, "prompt\nWhy?\n", name="in.csv")
        done = run("plan", file, "--model", "gpt-5", "--json", *options)
        if pool is None:
            said = "no published limits apply at 127.0.0.1: give the limits of gpt-5, e.g. --limit 'gpt-5="
            assert (done.exit_code, said in done.stderr) == (2, True)
        else:
            (made,) = json.loads(done.stdout)["plans"]
            assert list(made["pools"]) == [pool]

    def test_a_table_of_prompts_as_of_a_run(self, tmp_path):
        file = written(tmp_path, "id,text\n" + "".join(f"{row},hello\n" for row in range(20)) + "20,\n", name="in.csv")
        rows = ["--model", "gpt-5-mini", "--column", "text", "--max-tokens", "100"]
        done = run("plan", file, *rows, "--tier", "1", "--json")
        assert done.exit_code == 0, done.output
        (made,) = json.loads(done.stdout)["plans"]
        assert (made["calls"], list(made["pools"])) == (20, ["openai/gpt-5-mini"])
        assert done.stderr.count("row 21: 'text', which is the prompt, has no value; it is left out") == 1
        assert "name the column of the prompts and the model" in run("plan", file).stderr
        for words in ([written(tmp_path, "items = 3"), *rows], ["gpt-5-mini", "--agents", "3", *rows]):
            done = run("plan", *words)
            assert (done.exit_code, "are of a table" in done.stderr) == (2, True)

    @pytest.mark.parametrize(("words", "message"), [
        ("nowhere.jsonl", "plan: SOURCE is 'nowhere.jsonl': there is no such file; if it is a model, give"),
        ("m --agents 5 --workers 5", "exclude each other"),
        ("m --turns 5", "give --agents"),
        ("m --agents 5 --prompt many", "write it like '500', '20k' or '1.5M'"),
        ("m --agents 5 --shared 30k", "shared_tokens is 30000: it must be less than input_tokens"),
        ("three.toml --tier 77", "tier '77' of openai is unknown"),
        ("three.toml --limit nonsense", "'nonsense': write it like "),
        ("three.toml --picture /nowhere/a.svg", "--picture /nowhere/a.svg: "),
        ("three.toml --within never", "write it like '6h'"),
        ("minute.toml --within 1h", "needs work that ends"),
    ])  # fmt: skip
    def test_wrong_options(self, tmp_path, monkeypatch, words, message):
        monkeypatch.chdir(tmp_path)
        for name, ends in (("three.toml", "items = 3"), ("minute.toml", 'duration = "1min"')):
            written(tmp_path, f'{ends}\nphases = [{{name = "a", models = "openai/gpt-5"}}]', name=name)
        done = run("plan", *words.split())
        assert (done.exit_code, "Traceback" in done.output) == (2, False)
        assert message in done.output

    def test_work_of_two_providers(self, tmp_path):
        models = '["openai/gpt-5", "anthropic/claude-sonnet-4-5"]'
        file = written(tmp_path, f'items = 20\nphases = [{{name = "a", models = {models}}}]')
        done = run("plan", file, "--tier", "1", "--tier", "2")
        assert done.exit_code == 2
        assert "the models are of anthropic and openai: name it with --provider" in done.stderr
        done = run("plan", file, "--tier", "2", "--provider", "openai", "--limit", "claude-opus=3 requests/min")
        assert done.exit_code == 0, done.output
        assert "openai tier 2\t" in done.stdout
        assert "unknown" not in done.stdout  # a family of models has one pool, and each its price
        assert "--limit claude-opus: no model of the work has this name" in done.stderr
        assert "the limits of anthropic/claude-sonnet-4x are assumed: " in done.stderr
        assert "name the tier" not in done.stderr
        assert "the limits of openai" not in done.stderr

    def test_a_tier_that_was_not_named_is_asked_for(self, three):
        done = run("plan", three)
        assert "; name the tier with --tier, or give the limits with --limit" in done.stderr

    def test_a_terminal_shows_which_plan_is_in_work(self, three, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        assert "tier 2: simulating" in run("plan", three, "--tier", "1", "--tier", "2").stderr

    def test_work_that_never_ends(self, tmp_path):
        file = written(tmp_path, 'items = 410\nphases = [{name = "a", models = "openai/gpt-5"}]')
        assert "\tnever\t" in run("plan", file, "--limit", "gpt-5=1 requests/day").stdout


def test_a_log_of_a_limiter_in_shadow(tmp_path):
    log = tmp_path / "traffic.jsonl"
    limiter = paceline.Limiter({"openai/gpt-5": "1 requests/hour"}, shadow=log)
    for _ in range(30):  # far above the limit, and none waits
        with limiter.acquire("openai/gpt-5", input_tokens=900, output_tokens=300) as permit:
            permit.settle(input_tokens=800, output_tokens=100)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 30
    assert (lines[0]["pool"], lines[0]["input_tokens"], lines[0]["output_tokens"]) == ("openai/gpt-5", 800, 100)
    done = run("replay", log, "--limit", "gpt-5=10 requests/min", "--json")
    assert done.exit_code == 0, done.output
    (made,) = json.loads(done.stdout)["replays"]
    assert made["calls"] == 30
    assert made["seconds"] == pytest.approx(121, abs=5)
    assert made["binds"] == "openai/gpt-5: 10 requests/min"
