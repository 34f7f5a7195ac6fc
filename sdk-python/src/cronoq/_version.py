"""The version of the Python SDK, in the one place that packaging reads."""

__version__ = "0.3.0"
