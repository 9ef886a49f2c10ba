"""What serves code cells inside a box: one process a context, which keeps its kernel and speaks in lines of JSON.

Runs as an ordinary command of the box, with what the box has: Python's standard library, and for Jupyter kernels `pyzmq`.
Nothing of it is trusted outside, and it trusts nothing that its kernel says beyond being shown as that.
"""
