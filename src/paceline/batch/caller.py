"""How a user has called a run, by the command or from Python: the names of options in messages, and the call with a repair."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from paceline.batch.requests import keyless

_ARGUMENTS: Final = {"column": "prompt", "template": "prompt"}
"""The names of options that are others in Python."""


@dataclass(frozen=True, slots=True)
class Command:
    """A call of the command.

    Attributes:
        noun: What it is called.
        words: The words after the program's name.
        name: The name of the subcommand.
    """

    noun: ClassVar[str] = "command"
    words: tuple[str, ...] = ()
    name: str = "run"

    def option(self, name: str) -> str:
        """What the user writes to give an option."""
        return f"--{name.replace('_', '-')}"

    def giving(self, name: str, value: str | bool) -> str:
        """What the user writes to give an option this value."""
        return self.option(name) if value is True else f"{self.option(name)} {value}"

    def again(self, source: str, **changed: Any) -> str:
        """The same call of ``source`` with these options as well, which works as it is printed; without those that are ``None``.

        An option that was given is replaced, and another one is added at the end.
        """
        words, left = list(self.words or (source,)), {self.option(name): value for name, value in changed.items()}
        for option in [option for option in left if any(word.partition("=")[0] == option for word in words)]:
            at = next(at for at, word in enumerate(words) if word.partition("=")[0] == option)
            value = left.pop(option)
            if value is not True:
                words[at : at + 1 + ("=" not in words[at])] = [] if value is None else [option, str(value)]
        for option, value in left.items():
            words += [option] if value is True else [] if value is None else [option, str(value)]
        return shlex.join(["paceline", self.name, *map(_without_key, words)])


@dataclass(frozen=True, slots=True)
class Call:
    """A call of ``paceline.run``.

    Attributes:
        noun: What it is called.
    """

    noun: ClassVar[str] = "call"

    def option(self, name: str) -> str:
        """See :meth:`Command.option`."""
        return f"{_ARGUMENTS.get(name, name)}="

    def giving(self, name: str, value: str | bool) -> str:
        """See :meth:`Command.giving`."""
        return f"{self.option(name)}{value!r}"

    def again(self, source: str, **changed: Any) -> str:
        """See :meth:`Command.again`. The other arguments, which may be long or secret, are three dots."""
        told = [self.giving(name, value) for name, value in changed.items() if value is not None]
        return f"paceline.run({', '.join([source, '...', *told])})"


Caller = Command | Call
"""How a user has called a run."""


def _without_key(word: str) -> str:
    """A word without the password of an URL in it."""
    return keyless(word) if "://" in word else word
