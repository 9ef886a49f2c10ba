"""One process per measured system. Peers run in environments of their own, so these files need nothing of ours but `wire`."""
