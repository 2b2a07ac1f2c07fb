"""Work over many items from Python: :func:`~paceline.map` and :func:`~paceline.map_sync`."""
