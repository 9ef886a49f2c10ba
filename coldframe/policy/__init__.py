"""Judgement as pure functions: labels, rules, shell reading, floor, hooks."""
