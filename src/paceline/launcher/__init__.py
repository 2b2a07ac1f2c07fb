"""``paceline exec``: a command whose Python processes are paced, without a change in them."""
