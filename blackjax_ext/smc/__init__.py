"""Sequential Monte Carlo samplers, one per file, and the parts they share."""
