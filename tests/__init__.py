"""Tests, one folder per house."""
