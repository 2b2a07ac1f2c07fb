"""Programs that run in processes of their own."""

import subprocess
import sys
import textwrap


def python(code, *arguments):
    """What a Python prints that runs ``code``, standard error last. It has to end well, and within two minutes."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
