"""The demonstration: ``python -m numpyro_fwd``."""
