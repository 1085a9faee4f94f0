"""Docstrings of named kernels, with every argument and an example, each written in one place."""

import inspect

from blackjax_ext.top_level import section_entries
from numpyro_fwd.kernels.options import KernelOptions, options_of

EXAMPLE = """
Examples
--------
>>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
>>> from numpyro.infer import MCMC
>>> from numpyro_fwd import {name}
>>> def model(y):
...     mean = numpyro.sample("mean", dist.Normal(0, 10))
...     numpyro.sample("y", dist.Normal(mean, 1), obs=y)
>>> mcmc = MCMC({name}(model), num_warmup=300, num_samples=1000, progress_bar=False)
>>> mcmc.run(jax.random.key(0), jnp.array([1.0, 2.0, 3.0]))
>>> bool(abs(mcmc.get_samples()["mean"].mean() - 2.0) < 0.2)
True
"""
EXAMPLE_OF_ROWS = """
Examples
--------
>>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
>>> from numpyro.infer import MCMC
>>> from numpyro_fwd import {name}
>>> def model(y):
...     mean = numpyro.sample("mean", dist.Normal(0, 10))
...     with numpyro.plate("rows", len(y), subsample_size=100) as rows:
...         numpyro.sample("y", dist.Normal(mean, 1), obs=y[rows])
>>> y = 2.0 + jax.random.normal(jax.random.key(0), (1000,))
>>> mcmc = MCMC({name}(model), num_warmup=100, num_samples=300, progress_bar=False)
>>> mcmc.run(jax.random.key(1), y)
>>> bool(abs(mcmc.get_samples()["mean"].mean() - y.mean()) < 0.02)
True
"""


def describe(kernel: type) -> None:
    """Write into a kernel's docstring what `options` stands for, and an example if it has none."""
    if not kernel.__doc__:  # python -OO
        return
    text = inspect.cleandoc(kernel.__doc__)
    if "\noptions\n" not in text:
        return
    shared: dict[str, str] = {}
    for options in (KernelOptions, *options_of(kernel)):
        if "\nAttributes\n" in inspect.cleandoc(options.__doc__ or ""):
            shared |= section_entries(options.__doc__ or "", "Attributes")
    own = section_entries(text, "Parameters")
    said = {name for names in own for name in names.split(", ")}
    names = [name for name in inspect.signature(kernel).parameters if name not in said]
    listed = "\n".join(f"{name}{shared[name]}" for name in names if name in shared)
    text = text.replace(f"options{own['options']}", listed)
    if "\nExamples\n" not in text:
        example = EXAMPLE_OF_ROWS if "num_integration_steps" in names else EXAMPLE
        text = f"{text}\n{example.format(name=kernel.__name__)}"
    kernel.__doc__ = text
