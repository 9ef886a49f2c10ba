"""A small real machine for tests of control: a temporary directory, plain subprocesses, no walls.

It keeps the contract of `contract/ports.py` (attach by command id, events by sequence, typed errors, the
workspace layout), so a test of control that passes here fails for the same reasons as on a real host. What
it does not do: isolate, limit, record contacts, or list leftovers.
"""
