"""The commands of the examples have the options that they name; the settings are read by paceline itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml
from jsonschema import Draft202012Validator
from pages import BLOCKS, PAGES, ROOT, Block, environment_of, split

import paceline
from paceline.cli import serve
from paceline.cli.app import app
from paceline.config import Config
from paceline.config.schema import json_schema
from paceline.emulator.settings import Settings

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)

COMMANDS = [
    pytest.param(line[2:], id=f"{block.page}:{block.line + i}")
    for block in BLOCKS
    if block.language == "console"
    for i, line in enumerate(block.text.splitlines(), 1)
    if line.startswith("$ ")
]


def parts_of(line: str) -> list[list[str]]:
    """The commands of a line, each without its variables, its user, its wrapper and its folder."""
    words: list[list[str]] = [[]]
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    for word in lexer:
        if set(word) <= set("&|;"):
            words.append([])
        elif words[-1] or not re.match(r"\w+=", word):
            words[-1].append(word)
    for command in words:
        if command[:2] == ["runuser", "-u"]:
            del command[:4]
        if command[:2] == ["opentelemetry-instrument", "--"]:
            del command[:2]
        if command:
            command[0] = command[0].rpartition("/")[2]
    return [command for command in words if command]


def parse(args: list[str], command: click.Command = app, name: str = "paceline") -> None:
    """Parse the words of a command; an unknown subcommand or option, or a value of another type, is an error."""
    ctx = click.Context(command, info_name=name)
    if isinstance(command, click.Group):
        if args == ["--help"]:
            return None
        below = command.get_command(ctx, args[0])
        assert below is not None, f"{name} has no command {args[0]!r}"
        return parse(args[1:], below, f"{name} {args[0]}")
    ctx.allow_interspersed_args = command.allow_interspersed_args
    ctx.ignore_unknown_options = command.ignore_unknown_options
    values, _, _ = command.make_parser(ctx).parse_args(list(args))
    for param in command.get_params(ctx):
        given = values.get(param.name)
        if given is not None and given.__class__.__name__ != "Sentinel" and not isinstance(param.type, click.Path):
            param.type_cast_value(ctx, given)
    return None


def extras_of(args: list[str]) -> set[str]:
    return {extra for extras in re.findall(r"(?:\.|paceline)\[(.*?)\]", " ".join(args)) for extra in extras.split(",")}


def test_the_address_of_the_repository_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for page in PAGES:
        assert set(re.findall(r"git\+([^\s'`]+)", page.read_text("utf-8"))) <= {project["urls"]["Source"]}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_an_example(line):
    for command, *args in parts_of(line):
        if command == "paceline":
            parse(args)
        elif command == "make":
            assert [arg for arg in args if "=" not in arg and arg not in TARGETS] == []
        elif command == "pip":
            assert extras_of(args) <= set(EXTRAS)
        elif command in {"uvx", "pipx"}:
            assert extras_of(args) <= set(EXTRAS)
            parse(args[args.index("paceline") + 1 :])
        elif command == "python" and args[0].startswith("examples/"):
            script = (ROOT / args[0]).read_text("utf-8")
            assert [arg for arg in args if arg.startswith("--") and f'"{arg}"' not in script] == []
        else:
            assert command in {".", "claude", "export", "grep", "python", "python3", "wait"} | OPERATING


OPERATING = {"cat", "cp", "curl", "docker", "echo", "install", "promtool", "sqlite3", "systemctl", "useradd"}
"""The commands of an operator's shell."""

NOT_RUN = {
    r"^(\w+=\S+ )*(pip|pipx|uvx|make|export|grep|python|curl) ": "installs, or is no command of paceline",
    r"^paceline plan prompts": "asks for the limits of the provider's own address: tests/planner",
    r"redis://": "needs a Redis: tests/stores",
    r"^(opentelemetry-instrument -- )?paceline (serve|emulate)": "a server: tests/gateway, tests/emulator, and docs/first_minutes.md",
    r"^claude( -p|$)|-- claude|extropy simulate": "needs another program: tests/frameworks/recipes and extropy",
    r"-- node|codex": "needs another program: tests/frameworks/gateway_js",
    r"^paceline init --": "writes the same file as without options: tests/config",
    r"--mode batch .*--base-url http://127": "needs the emulator that the line before starts: tests/batch",
    r"my_program|massgen|pytest|train\.py|paceline\.yaml": "needs the reader's program",
    r"^paceline check --admin": "asks a provider: tests/check",
    r"facts-2027-01\.toml|limits update --undo": "needs the file of a newer data set: tests/providers",
    r"^paceline usage http": "needs the gateway that it asks: tests/gateway",
    r"^paceline status( http| 127|$)": "needs the program that it asks: tests/telemetry",
    r"^paceline keys rotate": "needs the key that another block adds: tests/gateway",
    r"--shard 1/3|requests\.shard": "needs the other shards: docs/first_minutes.md",
}
"""Why a command of a page is only parsed."""

ELSEWHERE = {"docs/first_minutes.md", "docs/gateway_quickstart.md", "docs/operate.md"}
"""Their commands run between the Python blocks: test_python_examples.py, test_journeys.py. An operator's need a machine with systemd."""


def runs_of(block: Block) -> list[str]:
    return [command for command in split(block.text)[0] if not any(re.search(reason, command) for reason in NOT_RUN)]


RUN = [block for block in BLOCKS if block.language == "console" and block.page not in ELSEWHERE and runs_of(block)]


@pytest.mark.long("starts a process for each command of a page")
@pytest.mark.parametrize("block", RUN, ids=str)
def test_the_commands_of_a_block_run(block, paceline_emulator, tmp_path):
    """In a folder with the files that the pages name, at an emulator."""
    world = paceline_emulator(limits={"*": "6000 requests/min,60M tokens/min"}, batches={"turnaround_s": 0.05})
    (tmp_path / "program.py").touch()
    (tmp_path / "limits.yaml").write_text("provider: openai\ntier: 2\n")
    body = {"model": "gpt-5", "input": "Hello", "max_output_tokens": 20}
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/responses", "body": body} for i in range(20)]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "prompts.csv").write_text("id,text\n1,One?\n2,Two?\n")
    for shard in (1, 2, 3):  # they have answered nothing yet
        (tmp_path / f"prompts.csv.shard-{shard}-of-3.results.jsonl").touch()
    (tmp_path / "photos.csv").write_text("photo\na.png\n")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "examples" / "plan").mkdir(parents=True)
    for plan in (ROOT / "examples" / "plan").glob("*.toml"):
        text = plan.read_text("utf-8").replace("items = 10_000", "items = 200").replace('"60min"', '"5min"')
        (tmp_path / "examples" / "plan" / plan.name).write_text(text, "utf-8")
    (tmp_path / "traffic.jsonl").write_text('{"start": 1800000000, "pool": "openai/gpt-5", "input_tokens": 900}\n')
    limiter = paceline.Limiter({"jobs": "5 requests/min"}, store=f"sqlite:{tmp_path / 'quotas.db'}")
    limiter.acquire("jobs").wait().settle()
    limiter.close()
    own = {"OPENAI_API_KEY": "none", "PACELINE_BASE_URL": world.base_url, **environment_of(tmp_path)}
    done = subprocess.run(
        ["bash", "-ec", "\n".join(runs_of(block))],
        check=False, cwd=tmp_path, env=os.environ | own, input="y\n", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "wrong", ["paceline runs x", "paceline run x --teir 2", "paceline serve --port many", "paceline keys ad x"]
)
def test_a_wrong_command_is_found(wrong):
    with pytest.raises((click.UsageError, AssertionError)):
        parse(shlex.split(wrong)[1:])


FILES = ROOT / "examples" / "gateway"


def started():
    """The arguments of `paceline` in the files for deployment."""
    unit, container = FILES / "paceline.service", ROOT / "Dockerfile"
    yield from map(shlex.split, re.findall(r"^ExecStart=\S+/paceline (.*)$", unit.read_text("utf-8"), re.MULTILINE))
    words = dict(re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", container.read_text("utf-8"), re.MULTILINE))
    assert words["ENTRYPOINT"] == '["paceline"]'
    yield json.loads(words["CMD"])
    yield yaml.safe_load((FILES / "compose.yaml").read_text("utf-8"))["services"]["gateway"]["command"]
    documents = list(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text("utf-8")))
    [deployment] = [document for document in documents if document["kind"] == "Deployment"]
    yield deployment["spec"]["template"]["spec"]["containers"][0]["args"]


def test_the_files_for_deployment_start_commands_that_exist():
    assert [args[0] for args in started()] == ["serve"] * 4
    for args in started():
        parse(args)


def seconds(args, option):
    """The value of an option of `paceline serve`, in seconds."""
    [default] = [param.default for param in serve.command.params if option in param.opts]
    return float(args[args.index(option) + 1] if option in args else default)


def test_they_wait_until_what_is_in_flight_has_ended():
    service, _, compose, pod = started()
    unit = (FILES / "paceline.service").read_text("utf-8")
    grace = yaml.safe_load((FILES / "compose.yaml").read_text("utf-8"))["services"]["gateway"]["stop_grace_period"]
    manifest = (FILES / "kubernetes.yaml").read_text("utf-8")
    for args, text, pattern in (
        (service, unit, r"TimeoutStopSec=(\d+)"),
        (compose, grace, r"(\d+)s"),
        (pod, manifest, r"terminationGracePeriodSeconds: (\d+)"),
    ):
        [given] = re.findall(pattern, text)
        assert int(given) > seconds(args, "--drain") + seconds(args, "--finish")
    [period] = re.findall(r"readinessProbe: .*periodSeconds: (\d+)", manifest)
    assert seconds(pod, "--drain") > 3 * int(period)  # so many times a probe fails until a pod is not ready


def test_the_manifests_agree_with_each_other_and_with_the_container():
    found = {}
    for document in yaml.safe_load_all((FILES / "kubernetes.yaml").read_text("utf-8")):
        found[document["kind"]] = document.get("spec", document)
    deployment, budget, service = (found[kind] for kind in ("Deployment", "PodDisruptionBudget", "Service"))
    assert budget["minAvailable"] < deployment["replicas"]
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    labels = deployment["template"]["metadata"]["labels"]
    assert labels == deployment["selector"]["matchLabels"] == budget["selector"]["matchLabels"] == service["selector"]
    pod = deployment["template"]["spec"]
    [container] = pod["containers"]
    assert f"USER {pod['securityContext']['runAsUser']}\n" in (ROOT / "Dockerfile").read_text("utf-8")
    image = f"registry.example/paceline:{paceline.__version__}"  # pulled, in both files
    compose = yaml.safe_load((FILES / "compose.yaml").read_text("utf-8"))["services"]["gateway"]
    assert (container["image"], compose["image"]) == (image, f"${{PACELINE_IMAGE:-{image}}}")
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    folders = {mount["mountPath"] for mount in container["volumeMounts"] if "subPath" not in mount}
    files = [one["value"] for one in container["env"]]
    assert {str(Path(file).parent) for file in files} <= folders
    config = tomllib.loads(found["ConfigMap"]["data"]["paceline.toml"])
    Config.load(given=config, environ={}).arguments()


OTHERS = {
    "lifecycle_hooks:": "flatmachines reads it: tests/frameworks",
    "scrape_configs:": "Prometheus reads it",
    "rule_files:": "Prometheus reads it",
    '[project.entry-points."paceline.providers"]': "of a package: tests/providers/test_docs.py",
}
"""The beginning of settings that are not paceline's."""

VALIDATOR = Draft202012Validator(json_schema())
SETTINGS = [
    pytest.param(block, id=str(block))
    for block in BLOCKS
    if block.language in ("toml", "yaml") and not block.text.startswith(tuple(OTHERS))
]


def test_the_settings_of_the_examples_are_found():
    assert len(SETTINGS) >= 8


@pytest.mark.parametrize("block", SETTINGS)
def test_settings_of_an_example_are_valid(block, tmp_path):
    values = tomllib.loads(block.text) if block.language == "toml" else yaml.safe_load(block.text)
    if block.text.startswith("summary"):
        assert set(values) <= Settings().values().keys() | {"summary", "client_limits"}
        return
    file = tmp_path / f"paceline.{block.language}"
    file.write_text(block.text, "utf-8")
    if "[[phases]]" in block.text:
        example = (ROOT / "examples" / "plan" / "documents.toml").read_text("utf-8")
        assert values == tomllib.loads(example)
        return
    config = Config.load(file, {})
    assert config.origins
    config.arguments()
    assert [error.message for error in VALIDATOR.iter_errors(values)] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/**/*.y*ml")), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_of_settings_are_yaml(path: Path):
    assert all(yaml.safe_load_all(path.read_text("utf-8")))
