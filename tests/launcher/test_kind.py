"""Which commands `paceline exec` takes for Python."""

import os
import sys

import pytest

from paceline.launcher.kind import is_python

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="there are no first lines there")


def program(folder, head, name="tool"):
    path = folder / name
    path.write_text(head + "\necho 'python is not meant here'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "command",
    ["python x.py", "python3.13 x.py", "python3.14t", "pythonw.exe", "pypy3", "py -3", "uv run x", "uvx tool", "/usr/bin/python3"],
)  # fmt: skip
def test_interpreters_and_their_tools_are_python(command):
    assert is_python(command.split())


@pytest.mark.parametrize("command", ["node x.js", "no-such-command", "pythonic", "sh -c python", "curl python"])
def test_other_commands_are_not(command):
    assert not is_python(command.split())


@POSIX
@pytest.mark.parametrize(
    "head",
    [
        "#!/usr/bin/env python3",
        "#!/opt/venv/bin/python",
        "#!/usr/bin/env -S uv run --script",
        "#!/bin/sh\n'''exec' \"/a long path/bin/python\" \"$0\" \"$@\"\n' '''",
        '#!/usr/bin/env bash\nset -e\nprogram="${0##*/}"\nexec "/root/.pyenv/libexec/pyenv" exec "$program" "$@"',
    ],
)
def test_a_script_or_an_installed_program_is_python_by_its_head(tmp_path, head):
    assert is_python([program(tmp_path, head), "--option"])


@POSIX
@pytest.mark.parametrize("head", ["#!/usr/bin/env node", "#!/bin/sh\npython x.py", "\x7fELF python"])
def test_other_programs_are_not_by_theirs(tmp_path, head):
    assert not is_python([program(tmp_path, head)])


def test_a_folder_and_a_file_that_cannot_be_run_are_not(tmp_path):
    assert not is_python([str(tmp_path)])
    assert not is_python([str(tmp_path / "absent")])


@POSIX
def test_a_command_that_runs_another_one_is_what_that_one_is(tmp_path, monkeypatch):
    program(tmp_path, "#!/usr/bin/env node", "node")
    program(tmp_path, "#!/bin/sh", "python")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    assert is_python(["env", "A=B", "nice", "-n", "5", "python", "x.py"])
    assert not is_python(["env", "A=B", "node", "python"])
    assert not is_python(["env"])
