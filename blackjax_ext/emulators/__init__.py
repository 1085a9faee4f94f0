"""Emulators of functions that are dear to evaluate, and how they are learned."""
