"""Holds the privileges and decides nothing."""
