"""``python -m paceline``: the command, where its script is not on the path."""

from paceline.cli import main

main()
