"""Coldframe behind the sandbox interfaces of other frameworks, each an optional extra. They run where the SDK does."""
