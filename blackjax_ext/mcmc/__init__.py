"""Markov chain Monte Carlo kernels, one file per algorithm."""
