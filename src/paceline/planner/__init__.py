"""How long work will take."""
