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


@pytest.mark.parametrize(("command", "python"), [
    *((command, True) for command in ("python x.py", "python3.13 x.py", "python3.14t", "pythonw.exe", "pypy3", "py -3")),
    *((command, True) for command in ("uv run x", "uvx tool", "/usr/bin/python3")),
    *((command, False) for command in ("node x.js", "no-such-command", "pythonic", "sh -c python", "curl python")),
])  # fmt: skip
def test_a_command_is_python_by_its_name(command, python):
    assert is_python(command.split()) is python


@POSIX
@pytest.mark.parametrize(("head", "python"), [
    ("#!/usr/bin/env python3", True),
    ("#!/opt/venv/bin/python", True),
    ("#!/usr/bin/env -S uv run --script", True),
    ("#!/bin/sh\n'''exec' \"/a long path/bin/python\" \"$0\" \"$@\"\n' '''", True),
    ('#!/usr/bin/env bash\nset -e\nprogram="${0##*/}"\nexec "/root/.pyenv/libexec/pyenv" exec "$program" "$@"', True),
    ("#!/usr/bin/env node", False),
    ("#!/bin/sh\npython x.py", False),
    ("\x7fELF python", False),
])  # fmt: skip
def test_a_script_or_an_installed_program_is_python_by_its_head(tmp_path, head, python):
    assert is_python([program(tmp_path, head), "--option"]) is python


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
