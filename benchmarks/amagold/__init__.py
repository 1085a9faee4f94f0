"""Minibatch samplers. Imports nothing, so that `__main__` runs before jax starts its threads."""
