"""Ports of sandboxes in a browser: who is let in (`porter.py`), by which door (`enter.py`), and what is said instead (`pages.py`).

What is let in is carried by the relay of the edge; nothing of it passes here.
"""
