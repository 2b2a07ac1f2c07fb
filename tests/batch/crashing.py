"""A process that is killed at a step that another party can see."""

from paceline.batch.api import Web
from paceline.batch.journal import BatchJournal
from paceline.batch.results import ResultsFile


class CrashError(BaseException):
    """The process was killed."""


class Crashing:
    """Kills the process at the ``at``-th step that another party can see: before or after a call, a write or a sync."""

    STEPS = ((BatchJournal, "_write"), (Web, "_send"), (ResultsFile, "append"), (ResultsFile, "sync"))

    def __init__(self, monkeypatch, at):
        self.left, self.crashed = at, False
        for owner, name in self.STEPS:
            monkeypatch.setattr(owner, name, self.around(getattr(owner, name), awaits=name == "_send"))

    def step(self):
        self.left -= 1
        self.crashed = self.crashed or self.left < 0
        if self.crashed:  # and no other task does anything after it
            raise CrashError

    def around(self, method, *, awaits):
        async def sends(*args, **options):
            self.step()
            answer = await method(*args, **options)
            self.step()
            return answer

        def does(*args, **options):
            self.step()
            answer = method(*args, **options)
            self.step()
            return answer

        return sends if awaits else does
