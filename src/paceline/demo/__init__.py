"""One batch, twice: as SDKs send it by themselves, and at the pace of a limiter. The package of ``paceline demo``."""
