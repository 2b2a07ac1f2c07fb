from paceline.testing.pytest_plugin import paceline_emulator  # noqa: F401  (also where the package is not installed)
