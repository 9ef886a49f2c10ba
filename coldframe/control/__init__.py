"""Decides and remembers, and never touches the kernel."""
