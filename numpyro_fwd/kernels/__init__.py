"""The kernels: one that runs any BlackJAX algorithm, and the named ones as a few lines each."""
