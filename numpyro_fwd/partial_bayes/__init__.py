"""Models of which some parameters are trained and others sampled."""
