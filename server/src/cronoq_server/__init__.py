"""The version of the cronoq server, in the one place that packaging and the wire read."""

__version__ = "0.3.0"
