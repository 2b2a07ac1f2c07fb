"""``paceline serve``: a reverse proxy that keeps what passes at the pace of the limits."""
