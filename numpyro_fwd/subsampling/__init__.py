"""What only the subsampled test reads from a NumPyro model: rows that see few numbers."""
