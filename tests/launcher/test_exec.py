"""`paceline exec`: real programs in processes of their own, against the emulator."""

import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import httpx
import pytest

import paceline
from odd_server import JSON, OddServer
from paceline.launcher import command
from paceline.launcher.child import ChildTally
from paceline.launcher.command import SITE, summary
from systems import is_wine
from waits import BOUND_S, join, started, until

CALL = """
import os, sys, time, httpx2

def ask(times=1):
    body = {"model": "gpt-6-luna", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    with httpx2.Client(base_url=os.environ["URL"], headers={"authorization": "Bearer k"}) as client:  # not across a fork
        for _ in range(times):
            client.post("/v1/chat/completions", json=body).raise_for_status()
"""
SDK = """
import os, sys, openai

client = openai.OpenAI(api_key="k", base_url=os.environ["URL"] + "/v1", max_retries=0)
for _ in range(12):
    client.chat.completions.create(model="gpt-6-luna", messages=[{"role": "user", "content": "hi"}], max_tokens=5)
print("done")
print("warned", file=sys.stderr)
sys.exit(3)
"""
PLAIN = """
import json, os, sys, urllib.request

def ask():
    body = json.dumps({"model": "gpt-6-luna", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    return urllib.request.urlopen(urllib.request.Request(url, body, headers)).status

answers = [ask() for _ in range(int(sys.argv[1]))]
print(json.dumps([answers, os.environ["OPENAI_API_KEY"], os.environ["PACELINE_GATEWAY"]]))
"""
ASK = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
LONG = pytest.mark.long("starts several processes")
METHODS = [one for one in ("fork", "spawn") if one in multiprocessing.get_all_start_methods()]
LIMIT = "300 requests/min,4M tokens/min"


@pytest.fixture
def world(paceline_emulator):
    """Five requests in any second."""
    return paceline_emulator(limits={"gpt-6-luna": LIMIT}, rule="quantised", quantum_s=1, latency_s=0.01)


def start(*words, url="", environ=None, python=sys.executable, options=("--limit", f"gpt-6-luna={LIMIT}"), **more):
    # Windows has no sockets without the sixth.
    names = ("PATH", "HOME", "PYTHONPATH", "PACELINE_FACTS", "SSL_CERT_FILE", "SYSTEMROOT", "TEMP")
    kept = {name: os.environ.get(name, "") for name in names}
    line = [sys.executable, "-c", "from paceline.cli import main; main()", "exec", "--provider", "openai", *options]
    words = [python if word == "python" else str(word) for word in words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*line, *words], env={**kept, "URL": url, **(environ or {})}, **pipes, **more)


def run(*words, code=0, **options):
    process = start(*words, **options)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out, err


def script(folder, text, name="program.py"):
    path = folder / name
    path.write_text(CALL + textwrap.dedent(text))
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of files")
@LONG
def test_the_command_has_the_raised_limit_of_open_files():
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = (256, hard if hard == resource.RLIM_INFINITY else min(hard, 2_000))
    out, _ = run(
        *("--", "python", "-c", "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
    )
    assert 256 < int(out) <= 30_000


@LONG
def test_a_program_is_paced_and_its_output_and_exit_code_are_its_own(world, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(SDK)
    out, err = run("--", "python", program, url=world.base_url, code=3)
    assert out == "done\n"
    assert err.startswith("warned\n")
    assert "paceline exec: openai/gpt-6-luna: 12 requests, 0 refused; waits " in err
    assert (world.tally()["admitted"], world.tally()["refused_total"]) == (12, 0)
    _, err = run("--quiet", "python", "-c", "pass", url=world.base_url)
    assert err == ""


@LONG
@pytest.mark.parametrize("method", [*METHODS, "subprocess"])
def test_processes_share_the_quotas(world, tmp_path, method):
    program = script(
        tmp_path,
        f"""
        import multiprocessing, subprocess
        if __name__ == "__main__":
            if {method!r} == "subprocess":
                if len(sys.argv) == 1:
                    children = [subprocess.Popen([sys.executable, __file__, "child"]) for _ in range(3)]
                    sys.exit(max(child.wait() for child in children))
                ask(5)
            else:
                ask()
                children = [multiprocessing.get_context({method!r}).Process(target=ask, args=(5,)) for _ in range(3)]
                [child.start() for child in children]
                [child.join() for child in children]
                sys.exit(max(child.exitcode for child in children))
        """,
    )
    _, err = run("python", program, url=world.base_url)
    requests = 15 if method == "subprocess" else 16
    assert f"openai/gpt-6-luna: {requests} requests, 0 refused" in err
    assert (world.tally()["admitted"], world.tally()["refused_total"]) == (requests, 0)


def real(world):
    """The environment of a user of OpenAI, whose real key the server asks for."""
    return {"OPENAI_API_KEY": "sk-real", "OPENAI_BASE_URL": world.base_url + "/v1"}


def test_a_program_that_is_no_python_of_ours_is_paced_by_a_gateway_that_ends_with_it(world, tmp_path):
    world.reset(valid_key="sk-real")
    program = tmp_path / "program.py"
    program.write_text(PLAIN)
    options = ("--gateway", "--strict", "--limit", f"gpt-6-luna={LIMIT}")
    out, err = run("--", "python", "-S", "-E", program, "7", environ=real(world), options=options)
    answers, key, address = json.loads(out)
    assert answers == [200] * 7
    assert key.startswith("pk-")
    page, paced, *_ = err.splitlines()
    assert page == f"paceline exec: page at {address}/"  # first, and without a key where no terminal is
    assert paced.startswith("paceline exec: openai/gpt-6-luna: 7 requests, 0 refused; waits ")
    assert (world.tally()["admitted"], world.tally()["refused_total"]) == (7, 0)
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))),
    ):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="there is no shell sh")
@LONG
def test_what_a_shell_starts_is_paced_once_through_the_gateway_or_in_its_process(world, tmp_path):
    plain, direct, led = tmp_path / "plain.py", script(tmp_path, "ask(3)"), tmp_path / "led.py"
    plain.write_text(PLAIN)
    led.write_text(SDK.replace('base_url=os.environ["URL"] + "/v1", ', "").replace('api_key="k", ', ""))
    line = f"{sys.executable} -E {plain} 2 && {sys.executable} {direct} && {sys.executable} {led}"
    _, err = run("sh", "-c", line, url=world.base_url, environ=real(world), code=3)
    assert "openai/gpt-6-luna: 17 requests, 0 refused" in err
    assert (world.tally()["admitted"], world.tally()["refused_total"]) == (17, 0)


KEY = {"OPENAI_API_KEY": "k"}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no command true")
@LONG
@pytest.mark.parametrize(("environ", "options", "code", "said"), [
    (KEY, (), 0, "\npaceline exec: no request was paced: none to pace came to the gateway"),
    (KEY, ("--strict",), 125, "\npaceline exec: no request was paced: none to pace came to the gateway"),
    (KEY, ("--no-gateway",), 0, "add --gateway"),
    ({}, (), 0, "paceline exec: no gateway for programs that are not Python was started: no key is set"),
    ({}, ("--gateway",), 2, "paceline exec: no key is set"),
    ({}, ("--strict",), 2, "paceline exec: no key is set"),
])  # fmt: skip
def test_a_program_that_sends_nothing_with_a_key_and_without(environ, options, code, said):
    assert said in run("true", environ=environ, options=options, code=code)[1]


@LONG
@pytest.mark.parametrize("way", ["--gateway", "--no-gateway"])
def test_a_program_whose_requests_are_all_refused_by_paceline_was_paced(world, tmp_path, way):
    program = tmp_path / "program.py"
    program.write_text(f"""
import os, httpx2
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
answer = httpx2.post(url + "/chat/completions", headers={{"authorization": "Bearer " + key}}, json={ASK})
print(answer.headers["x-paceline"])
""")
    options = (way, "--strict", "--limit", "m=1 tokens/min")
    out, err = run("--", "python", program, environ=real(world), options=options)
    assert out == "never_fits\n"
    assert err.splitlines()[-1].startswith("paceline exec: no request was sent: paceline refused them")
    assert world.tally()["admitted"] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there is no shell sh")
@LONG
def test_an_empty_path_finds_a_program_in_this_folder_and_paces_it(tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho $OPENAI_BASE_URL")
    program.chmod(0o755)
    assert "http://127.0.0.1:" in run("program", environ={**KEY, "PATH": ""}, cwd=tmp_path)[0]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no shell sh")
@LONG
def test_a_program_runs_where_standard_error_is_closed():
    line = f"{sys.executable} -m paceline exec -- echo hi 2>&-"
    assert run("sh", "-c", line, environ=KEY)[0] == "hi\n"


SENDS = """#!/bin/sh
exec "$PY" -I -S - "$@" <<'END'
import json, os, re, sys, urllib.request
options = " ".join(sys.argv[1:])
found = re.search('base_url="(.*?)"', options)
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages" if found is None else found[1] + "/responses"
body = json.dumps({"model": "m", "max_tokens": 20, "input": "hi", "messages": [{"role": "user", "content": "hi"}]}).encode()
login = {"authorization": "Bearer sk-ant-oat01-mine", "content-type": "application/json"}
print(urllib.request.urlopen(urllib.request.Request(url, body, login)).status, options.endswith("exec hi"))
END
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no shell sh")
@pytest.mark.parametrize("name", ["claude", "codex"])
@LONG
def test_the_login_of_a_program_passes_if_asked_for(tmp_path, name):
    program, settings = tmp_path / name, tmp_path / "p.toml"
    program.write_text(SENDS)
    program.chmod(0o755)
    answer = {"content": [{"type": "text", "text": "hi"}], "usage": {"input_tokens": 9, "output_tokens": 1}}
    answer["output"] = [{"type": "message"}]
    with OddServer(lambda *_: (200, JSON, answer)) as server:
        at = f'base_url = "{server.base_url}"'
        settings.write_text(f"[upstreams.anthropic]\n{at}\n[upstreams.chatgpt]\n{at}\n")
        command, options = ("nice", str(program), "exec", "hi"), ("--login", "--config", str(settings))
        out, err = run("--", *command, environ={"PY": sys.executable}, options=options)
    assert out.split() == ["200", "True"]
    told, *_, counted = err.splitlines()
    assert told.startswith(f"paceline exec: {name}'s own login goes to 127.0.0.1 as {name} sends it")
    assert re.fullmatch(r"paceline exec: (anthropic|chatgpt)@[0-9a-f]{6}/m: 1 request, 0 refused; .*", counted)
    _, err = run("--", str(program), environ={"PY": "true"}, options=())
    assert f"to pace the login that {name} has: `paceline exec --login -- {name}`" in err
    for options, environ in ((("--no-gateway",), {}), ((), {"ANTHROPIC_API_KEY": "k", "CODEX_API_KEY": "k"})):
        _, err = run("--", str(program), environ=environ, options=("--login", *options), code=2)
        assert err.startswith("paceline exec: --login")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no command touch")
def test_a_program_is_not_started_beside_a_file_that_leads_its_key_away(tmp_path):
    (tmp_path / "paceline.toml").write_text('[upstreams.openai]\nbase_url = "http://elsewhere.example"')
    _, err = run("touch", "ran", code=2, cwd=tmp_path, environ=KEY)
    setting = "paceline.toml: upstreams.openai.base_url"
    assert err.startswith(f"paceline exec: {setting}: a key would go to elsewhere.example")
    assert not (tmp_path / "ran").exists()


@LONG
def test_pytest_and_modules_are_paced(world, tmp_path):
    script(tmp_path, "def test_one(): ask(3)", "test_one.py")
    out, err = run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path, url=world.base_url, cwd=tmp_path)
    assert "1 passed" in out
    assert "openai/gpt-6-luna: 3 requests, 0 refused" in err


@LONG
@pytest.mark.parametrize("method", METHODS)
def test_what_was_not_paced_is_named_once_for_all_processes(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
        import multiprocessing, sys, warnings
        import httpx2
        warnings.simplefilter("ignore")

        def send(_=0):
            transport = httpx2.MockTransport(lambda request: httpx2.Response(200, json={{}}))
            with httpx2.Client(transport=transport) as client:
                client.post("https://api.openai.com/v1/videos", json={{"prompt": "x"}})

        if __name__ == "__main__":
            send()
            with multiprocessing.get_context({method!r}).Pool(1) as pool:
                pool.map(send, range(2))
                pool.close()
                pool.join()
            try:
                import dspy
            except ImportError:
                pass
        """)
    )
    (tmp_path / "dspy.py").write_text("")
    _, err = run("python", program)
    assert "paceline exec: no request was paced\n" in err
    assert "paceline exec: not paced: 3 x POST api.openai.com/v1/videos (openai)\n" in err
    assert "paceline exec: not paced: what dspy sent\n" in err


def test_the_summary_adds_up_what_was_not_paced_in_all_processes():
    xai, urllib = ["xai", "api.x.ai", "gRPC"], ["openai", "api.openai.com", "POST /v1/responses by urllib"]
    assert summary([{"unpaced": [[*xai, 1], [*urllib, 2]]}, {"unpaced": [[*xai, 3]]}])[1:] == [
        "not paced: 2 x POST api.openai.com/v1/responses by urllib (openai)",
        "not paced: 4 x gRPC api.x.ai (xai)",
    ]


def test_a_process_that_sends_nothing_imports_no_paceline_and_runs_the_user_s_own_sitecustomize(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.own = __file__")
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    line = "import sys; print(sys.own); print([n for n in sys.modules if n.startswith('paceline')], sys.path)"
    out, err = run("python", "-c", line, environ={"PYTHONPATH": paths})
    own, found = out.splitlines()
    assert own == str(tmp_path / "sitecustomize.py")
    assert found.startswith("[] ")
    assert "launcher" not in found
    assert "no Python process of the command imported an HTTP library" in err
    assert "paceline exec: to pace it through a gateway, add --gateway" in err


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("https://x/a", "https://x/a"), ("https://x/?a=1&b=2", '"https://x/?a=1&b=2"'), ("", '""'), ("50%", '"50%%cd:~,%"'),
        ('a "b & c" d', '"a ""b & c"" d"'), ("x\\", '"x\\\\"'), ('\\"', '"\\\\"""'),
    ],
)  # fmt: skip
def test_cmd_reads_each_argument_of_its_file_as_one(word, quoted):
    assert command._for_windows(["npx.cmd", word]) == f'"npx.cmd" {quoted}'


@pytest.mark.skipif(sys.platform != "win32", reason="there is no command cmd")
def test_a_cmd_file_gets_its_arguments_as_they_are(tmp_path):
    words = ["https://x/?a=1&b=2", 'say "a & b|c" > d', "a^b", "x\\", "(y)", "\u00fc"]
    words += [] if is_wine() else ["100%", "%PATH%"]
    (tmp_path / "show.py").write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))")
    (tmp_path / "tool.cmd").write_text(f'@"{sys.executable}" "%~dp0show.py" %*\n')
    out, _ = run(tmp_path / "tool", *words, options=("--no-gateway",))
    assert json.loads(out) == words


@pytest.mark.skipif(sys.platform == "win32", reason="there is no command env")
@LONG
def test_an_interpreter_without_paceline_says_so(tmp_path):
    (tmp_path / "httpx.py").write_text("")
    bare = getattr(sys, "_base_executable", sys.executable)
    lines = "import sys; sys.path.insert(0, '.'); import httpx; print('went on')"
    out, err = run("env", f"PYTHONPATH={SITE}", bare, "-c", lines, cwd=tmp_path)
    assert out == "went on\n"
    assert "is not paced: No module named 'paceline'; install paceline there" in err
    assert f"1 process not paced, the first one: {bare}: No module named 'paceline'\n" in err
    environ, options = {"OPENAI_API_KEY": "k"}, ("--gateway",)
    out, err = run("env", f"PYTHONPATH={SITE}", bare, "-c", lines, cwd=tmp_path, environ=environ, options=options)
    assert out == "went on\n"
    assert "\npaceline exec: no request was paced: none to pace came to the gateway" in err


@LONG
def test_a_paced_process_needs_the_standard_library_alone(tmp_path):
    """Its environment needs paceline and none of its extras: those of the command are where the command is."""
    (tmp_path / "httpx.py").write_text("")
    (tmp_path / "limits.yaml").write_text(
        "limits: {gpt-6-luna: 5 requests/s, gemini/*: 100 requests/day}\nlanes: {a: {weight: 2}}\nretry: {faults: true}\n"
        "starts: {gemini: {max_starts: 7, time_window: 60}}\nconcurrency: {openai: 3}\nbreaker: {failures: 3}\n"
    )
    line = (
        "import httpx, sys; print({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names"
        " - {'__main__', 'sitecustomize', 'httpx', 'paceline'})"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path(paceline.__file__).parents[1])])
    options = ("--strict", "--config", str(tmp_path / "limits.yaml"))
    out, _ = run("python", "-S", "-c", line, environ={"PYTHONPATH": paths}, options=options)
    assert out == "set()\n"


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send another one a signal")
@pytest.mark.parametrize("options", [(), pytest.param(("--gateway",), marks=LONG)])
def test_signals_reach_the_program(options):
    numbers = [int(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    lines = f"""
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {numbers})
os.write(1, b"ready\\n")
for _ in {numbers}:
    os.write(1, b"%d\\n" % signal.sigwait({numbers}))
sys.exit(7)
"""
    process = start("python", "-c", lines, environ=KEY, options=options)
    bound = threading.Timer(60, process.kill)
    bound.start()
    assert process.stdout.readline() == "ready\n"
    for number in numbers:
        process.send_signal(number)
        assert process.stdout.readline() == f"{number}\n"
    process.communicate(timeout=60)
    bound.cancel()
    assert process.returncode == 7


class Ready(subprocess.Popen):
    """A process that has written a line."""

    def __init__(self, *args, **options):
        super().__init__(*args, stdout=subprocess.PIPE, **options)
        with self.stdout as ready:
            ready.readline()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGUSR1")
def test_a_signal_while_the_command_is_started_reaches_it(monkeypatch):
    class Late(Ready):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(command.subprocess, "Popen", Late)
    lines = "import signal, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7)); print(flush=True); time.sleep(30)"
    assert command._run([sys.executable, "-c", lines], os.environ) == 7


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGUSR1")
def test_a_signal_that_ends_no_wait_reaches_it(monkeypatch):
    """Its handler runs in the main thread, whose wait does not end when another thread gets the signal."""

    waits = threading.Event()

    def signalled():
        waits.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    class Waiting(threading.Thread):
        def join(self, timeout=None):
            waits.set()  # the other thread does not go on before this one waits: none is switched to meanwhile
            super().join(timeout)

    other = threading.Thread(target=signalled, daemon=True)
    monkeypatch.setattr(command, "Thread", Waiting)
    monkeypatch.setattr(command.subprocess, "Popen", Ready)
    line = (
        "import signal, sys; ours = [signal.SIGUSR1]; signal.pthread_sigmask(signal.SIG_BLOCK, ours); signal.alarm(9);"
        " print(flush=True); sys.exit(7 if signal.sigwait(ours) else 0)"
    )
    before, switched_s = signal.signal(signal.SIGUSR1, lambda *_: None), sys.getswitchinterval()
    sys.setswitchinterval(BOUND_S)
    try:
        other.start()
        assert command._run([sys.executable, "-c", line], os.environ) == 7
        join(other)
    finally:
        sys.setswitchinterval(switched_s)
        signal.signal(signal.SIGUSR1, before)


@LONG
@pytest.mark.parametrize(
    ("end", "code"), [("os.kill(os.getpid(), 9)", 9 if os.name == "nt" else 137), ("os._exit(126)", 126)]
)
def test_a_process_that_ends_at_once_is_counted(world, tmp_path, end, code):
    program = script(tmp_path, f"ask(2); {end}")
    _, err = run("python", program, url=world.base_url, code=code)
    assert "openai/gpt-6-luna: 2 requests, 0 refused" in err


@pytest.mark.skipif("fork" not in METHODS, reason="no forks here")
@LONG
def test_workers_of_a_pool_are_counted_and_a_process_that_is_forked_for_nothing_is_none(world, tmp_path):
    program = script(
        tmp_path,
        """
        import multiprocessing, subprocess
        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(2) as pool:  # which ends its workers by a signal
                pool.map(ask, [1, 1, 1])
            subprocess.run(["true"], preexec_fn=lambda: None)
        """,
    )
    _, err = run("python", program, url=world.base_url)
    assert err == "paceline exec: openai/gpt-6-luna: 3 requests, 0 refused" + err[err.index("; waits") :]


@LONG
@pytest.mark.parametrize(
    ("options", "end", "code"), [((), "", 0), (("--strict",), "", 125), (("--strict",), "; sys.exit(3)", 3)]
)
def test_an_error_at_the_start_is_not_the_program_s_unless_that_is_asked_for(tmp_path, options, end, code):
    (tmp_path / "httpx.py").write_text("")
    line = f"import os, sys; open(os.environ['PACELINE_EXEC'], 'wb').write(b'x'); import httpx; print('went on'){end}"
    paths = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    out, err = run("python", "-c", line, environ={"PYTHONPATH": paths}, code=code, options=options)
    assert out == "went on\n"
    assert "is not paced: " in err
    assert "install paceline" not in err


@LONG
def test_errors_before_the_start(tmp_path):
    _, err = run("no-such-command", code=127, environ=KEY)
    assert err == "paceline exec: no such command: no-such-command\n"
    (text := tmp_path / "text.txt").write_text("no program")
    _, err = run(text, code=126)
    assert f"paceline exec: {text} cannot be started: " in err
    _, err = run("python", "-c", "print('ran')", code=2, options=("--limit", "gpt-6-luna=many"))
    assert err.startswith("paceline exec: ")
    out, err = run("python", "-c", "print('ran')", code=2, options=("--store", "memory:"))
    assert out == ""
    assert "is no store, and the processes must share one" in err
    _, err = run(code=2)
    assert "missing argument" in err


@LONG
def test_a_process_that_outlives_the_command_goes_on(world, tmp_path):
    late = script(tmp_path, "time.sleep(1.5); ask(2); open(sys.argv[1], 'w').write('sent')", "late.py")
    program = script(tmp_path, f"import subprocess; subprocess.Popen([sys.executable, {str(late)!r}, sys.argv[1]])")
    run("python", program, tmp_path / "sent", url=world.base_url)
    until((tmp_path / "sent").exists)
    assert world.tally()["refused_total"] == 0


LEAVES = """
import json, os, pathlib, subprocess, sys, time, urllib.request

begun = pathlib.Path(sys.argv[1])
if sys.argv[2:]:
    body = json.dumps({"model": "gpt-6-luna", "messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as stream:
        stream.readline()
        begun.touch()
        stream.read()
else:
    subprocess.Popen([sys.executable, "-S", "-E", __file__, begun, "asks"], stderr=subprocess.DEVNULL)
    while not begun.exists():
        time.sleep(0.01)
"""


@LONG
def test_requests_of_a_process_that_the_command_leaves_behind_are_told(tmp_path):
    end = threading.Event()
    part = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
    with OddServer(lambda *_: (200, {"content-type": "text/event-stream"}, [part, end])) as server:
        program = tmp_path / "left.py"
        program.write_text(LEAVES)
        environ = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.base_url + "/v1"}
        options = ("--gateway", "--limit", "*=100 requests/min")
        _, err = run("--", "python", "-S", "-E", program, tmp_path / "begun", environ=environ, options=options)
        end.set()
    told = "the command has ended, and requests of processes that it left behind are cut off: 1"
    assert [line.removeprefix("paceline exec: ") for line in err.splitlines()][1:-1] == [told]


@pytest.mark.parametrize("connects", [False, True])
def test_attempts_without_a_connection_or_an_answer_are_told_and_are_no_waits(connects):
    tally = ChildTally()
    once = paceline.RetryPolicy(max_attempts=1)
    limiter = paceline.Limiter({"127.0.0.1/m": "1000 requests/s"}, events=tally.count, retry=once)
    with socket.create_server(("127.0.0.1", 0)) as server, httpx.Client(timeout=BOUND_S) as client:
        limiter.attach(client)
        port = server.getsockname()[1]
        if connects:  # and breaks off
            thread = started(lambda: [server.accept()[0].close() for _ in range(3)])
        else:
            server.close()
        for _ in range(3):
            with pytest.raises(httpx.TransportError):
                client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=ASK)
        if connects:
            join(thread)
    [line] = summary([tally.record()])
    answered, lacking = (3, "an answer; waits") if connects else (0, "a connection")
    told = f"127.0.0.1/m: {answered} requests, 0 refused, 3 attempts without {lacking}"
    assert line.partition(" 0.")[0] == told
