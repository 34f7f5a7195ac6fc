"""Decides whether what would be released works for somebody who has only that."""
