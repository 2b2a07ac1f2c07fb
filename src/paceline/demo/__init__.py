"""One batch, twice: as SDKs send it by themselves, and at the pace of a limiter. The rooms of ``paceline demo``."""
