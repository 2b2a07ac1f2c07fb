"""What paceline costs and how fast it goes, with its peers beside it: ``python -m benchmarks``."""
