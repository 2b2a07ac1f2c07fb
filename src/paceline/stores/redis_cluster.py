"""Redis Cluster, as far as a store needs it: each of its commands has one key, and every node knows whose that is.

redis-py's own client of clusters sends a command again when a connection breaks, and asks all nodes about all slots
before it says that one is silent. Here nothing is sent twice but what a node has turned away, and a silent node costs
one timeout.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

HOPS_MAX = 5
"""The nodes disagree, or refuse to be connected to: after so many of them it is an error."""

NODES_MAX = 100
"""How many nodes are remembered."""

_REDIRECT = re.compile(r"(?:(MOVED|ASK) )?\d+ (\S*):(\d+)")
_NOT_SENT = (ConnectionRefusedError, socket.gaierror)

Node = tuple[str, int]


class ClusterClient:
    """Finds the node that has a key by asking any node, and remembers it.

    Args:
        connect: Makes a client of one node.
        nodes: Some nodes; those that they name are asked as well.
    """

    def __init__(self, connect: Callable[[str, int], Any], nodes: list[Node]) -> None:
        self._connect = connect
        self._given = nodes
        self._nodes = list(nodes)  # the first is asked who has a key
        self._node_of: dict[str, Node] = {}
        self._clients: dict[Node, Any] = {}

    def execute_command(self, name: str, script: str, count: int, key: str, *arguments: str) -> Any:
        """Run a script on the node that has ``key``."""
        command = (name, script, count, key, *arguments)
        node, asking = self._node_of.get(key, self._nodes[0]), False
        for _ in range(HOPS_MAX - 1):
            try:
                return self._send(node, asking, *command)
            except Exception as error:
                following = self._following(key, node, error)
                if following is None:
                    raise
                node, asking = following
        return self._send(node, asking, *command)

    def _following(self, key: str, node: Node, error: Exception) -> tuple[Node, bool] | None:
        """Whom to ask when ``node`` answered that: if it has certainly done nothing."""
        redirect = _REDIRECT.fullmatch(str(error))
        if redirect is not None:
            named = redirect[2] or node[0], int(redirect[3])  # a host that is left out is its own
            if redirect[1] == "ASK" or type(error).__name__ == "AskError":
                return named, True
            self._remember(key, named)
            return named, False
        if type(error).__name__ != "NoScriptError":
            self._doubt(key, node)
        if isinstance(error.__context__, _NOT_SENT) and node != self._nodes[0]:
            return self._nodes[0], False
        return None

    def _remember(self, key: str, node: Node) -> None:
        self._node_of[key] = node
        if node not in self._nodes:
            if len(self._nodes) >= NODES_MAX:  # a cluster whose addresses change
                self._nodes, self._clients = list(self._given), {}
            self._nodes.append(node)

    def _doubt(self, key: str, node: Node) -> None:
        """Another node may have the key soon, and another one will know."""
        self._node_of.pop(key, None)
        if self._nodes[0] == node:
            self._nodes = [*self._nodes[1:], node]

    def _send(self, node: Node, asking: bool, *command: Any) -> Any:
        client = self._clients.get(node) or self._clients.setdefault(node, self._connect(*node))
        if not asking:
            return client.execute_command(*command)
        pipeline = client.pipeline(transaction=False)
        pipeline.execute_command("ASKING").execute_command(*command)
        answer = pipeline.execute(raise_on_error=False)[1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Close all connections."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()
