"""What ends the demo early: one error, whose message is all that its reader gets."""


class DemoError(Exception):
    """Something is not as it should be; the message says what."""


class ProcessEnded(DemoError):
    """A process ended that nobody stopped."""
