"""Runs the command as `python -m cronoq.cli`."""

from . import main

main()
