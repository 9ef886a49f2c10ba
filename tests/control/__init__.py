"""Tests of what decides and remembers."""
