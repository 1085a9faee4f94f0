"""Algorithms driven by minibatch gradients, one file each, and what they share."""
