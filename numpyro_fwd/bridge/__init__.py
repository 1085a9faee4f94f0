"""Everything that is read from a NumPyro model."""
