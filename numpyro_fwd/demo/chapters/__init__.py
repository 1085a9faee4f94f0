"""The chapters of the demonstration, one file each: a reason to use this package, with NUTS."""

from numpyro_fwd.demo.chapters import epidemic, funnel, many_rows, network, two_modes

__all__ = ["CHAPTERS"]

CHAPTERS = (epidemic, many_rows, funnel, two_modes, network)
