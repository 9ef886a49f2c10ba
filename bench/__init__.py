"""The benchmark suite: `python -m bench`, or `coldframe bench` from a checkout. docs/benchmarks.md says how and what."""
