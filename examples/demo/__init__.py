"""The demonstration: ``python -m examples.demo``, from the folder above ``examples``."""
