"""What a failure of Redis means, and what would be right."""

from __future__ import annotations

import re

_SAID_MAX = 300

_ADVICE = {
    "NOAUTH": "it wants another user or password: write redis://:PASSWORD@HOST or redis://USER:PASSWORD@HOST",
    "NOPERM": "this user may not do that: allow ~paceline:* and +eval +evalsha +get +set +time",
    "OOM": "its memory is full: raise its maxmemory",
    "READONLY": "it is a replica now: give the master's address, or let Sentinels find it with redis+sentinel://",
    "LOADING": "it is still reading its data: wait until it has",
    "CLUSTERDOWN": "the cluster does not serve all keys: look at CLUSTER INFO",
    "MOVED": "it is one node of a cluster: write redis+cluster:// instead of redis://",
    "NOMASTER": "no Sentinel that answers knows this master: is its name right, and are the addresses?",
    "NOSENTINEL": "this is no Sentinel: for a Redis itself write redis://HOST:PORT",
    "NOSCRIPTS": "this is a Sentinel, or has no scripts: for Sentinels write redis+sentinel://HOST:PORT/MASTER",
    "NOREDIS": "this is no Redis: is the port right?",
    "NODB": "it has no database of that number: give a lower one, and keep apart what shares it with ?prefix=NAME",
    "NONAMEABLE": "the name of the pool, or a unit, has half a character: give it another",
    "WRONGTYPE": "its key is in use for something else: keep them apart with ?prefix=NAME",
    "MISCONF": "it cannot save its data and refuses writes: look at its disk and its log",
    "NOREPLICAS": "too few replicas follow it and it refuses writes: look at them",
    "BUSY": "another program's script keeps it busy: end that with SCRIPT KILL",
    "SILENT": "is it overloaded, or stopped, or the network slow?",
    "NONAME": "nobody knows this host: is its name right?",
    "NOTLS": "is it overloaded, or stopped, or the network slow? If it has no TLS, write redis instead of rediss",
    "TLS": "no agreement on TLS: does it speak TLS (else write redis instead of rediss), and is its certificate's authority in ?ssl_ca_certs=FILE?",
    "UNREACHABLE": "is it running there, and may this machine connect to it?",
    "RESET": "is it running there? If it wants TLS, write rediss instead of redis",
    "SCRIPT": "if that stays, delete its keys paceline:*; what was used so far is forgotten then",
}
_CODES = re.compile(r"\b(OOM|READONLY|WRONGTYPE|MISCONF|NOREPLICAS|NOPERM|CLUSTERDOWN|MOVED|BUSY)\b")
"""With which a server's answer can start, or, of an old server, that of a script."""

_SAID = {
    re.compile(r"unknown command .?SENTINEL"): "NOSENTINEL",
    re.compile(r"unknown command .?EVAL"): "NOSCRIPTS",
    re.compile(r"DB index|SELECT is not allowed"): "NODB",
    re.compile(r"surrogates not allowed"): "NONAMEABLE",
    re.compile(r"handshake operation timed out"): "NOTLS",
}
"""What tells more than the class of an exception does."""

_OF_CLASS = {
    "AuthenticationError": "NOAUTH",
    "AuthenticationWrongNumberOfArgsError": "NOAUTH",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTERDOWN",
    "SlotNotCoveredError": "CLUSTERDOWN",
    "MovedError": "MOVED",
    "MasterNotFoundError": "NOMASTER",
    "gaierror": "NONAME",
    "UnicodeError": "NONAME",
    "SSLError": "TLS",
    "InvalidResponse": "NOREDIS",
    "ConnectionResetError": "RESET",
    "TimeoutError": "SILENT",
    "ConnectionError": "UNREACHABLE",
}
"""By the name of an exception of redis-py or of the system, or of one that it is made of."""


def explain(error: BaseException) -> str:
    """What happened, and what would be right where that can be told."""
    said = str(error).partition(" : <")[0]  # not redis-py's objects,
    said = said.partition(", with args")[0][:_SAID_MAX] or type(error).__name__  # nor what we have sent
    kind = _kind(error, said)
    return f"{said.rstrip('. ')}: {_ADVICE[kind]}" if kind else said


def _kind(error: BaseException, said: str) -> str | None:
    if match := _CODES.search(said):
        return match[1]
    chain = [error]
    while cause := chain[0].__cause__ or chain[0].__context__:
        chain.insert(0, cause)
    for link in chain:
        for pattern, kind in _SAID.items():
            if pattern.search(str(link)):
                return kind
    names = (name for link in chain for cls in type(link).__mro__ if (name := cls.__name__) in _OF_CLASS)
    for name in names:
        return _OF_CLASS[name]
    return "SCRIPT" if "script" in said else None
