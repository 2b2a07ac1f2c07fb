"""The public class ``Limiter``."""
