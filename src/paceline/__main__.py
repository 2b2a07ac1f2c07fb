"""``python -m paceline``: the command, where its script is not on the path."""

from paceline.cli import main

if __name__ == "__main__":
    main()
