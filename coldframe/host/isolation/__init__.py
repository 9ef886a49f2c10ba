"""One file per isolation level."""
