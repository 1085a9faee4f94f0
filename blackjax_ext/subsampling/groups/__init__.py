"""Rows in groups: thousands of them, moved each by its own test given what all rows see."""
