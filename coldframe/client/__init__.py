"""The other end: the SDK."""
