"""What has become of the attempts of a pool, for its status and its metrics."""

from __future__ import annotations

from collections import defaultdict

from paceline.core.waits import Waits


class Record:
    """The sums over all attempts of a pool.

    Attributes:
        counts: How many attempts were granted, settled, cancelled, refused (by kind), expired and lost, how many
            overtook others, and how often the store was lost.
        finishes: How many answers there were, by how far the model has come.
        waits: The waits of all granted attempts.
        saved_tokens: The cached tokens of the requests whose cache would not have lived through the work that they
            overtook.
        estimates: Per unit the sums of the reserved amounts and of those that the answers report, over all attempts of
            a given or estimated size with a known true cost.
    """

    def __init__(self) -> None:
        self.counts: defaultdict[str, int] = defaultdict(int)  # three times as fast as a Counter
        self.finishes: defaultdict[str, int] = defaultdict(int)
        self.waits = Waits()
        self.saved_tokens = 0
        self.estimates: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
