"""The conformance suite: one list of scenarios that the SDK of every language has to pass."""
