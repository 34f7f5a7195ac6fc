"""The server's edge: what callers and workers say becomes events, and effects become answers."""
