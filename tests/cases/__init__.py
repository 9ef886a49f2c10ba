"""Field failures: what went wrong in other sandboxes, as data, run against a real one through the SDK."""
