"""One small request a model, to find out what a provider really allows, and whether the configuration says so."""
