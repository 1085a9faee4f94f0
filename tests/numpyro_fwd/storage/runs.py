"""Small runs on disk; ``python -m tests.numpyro_fwd.storage.runs path max_draws`` is one."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import xarray
from numpyro.infer import AIES, MCMC, NUTS

import numpyro_fwd
from numpyro_fwd import Until, sample_to

KERNELS = {
    "NUTS": NUTS,
    "MALA": numpyro_fwd.MALA,
    "AMAGOLD": numpyro_fwd.AMAGOLD,
    "AIES": AIES,
}


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    return jnp.asarray(x), jnp.asarray(x @ [1.0, -1.0] + rng.normal(size=60))


def model(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    numpyro.deterministic("sum", slopes.sum() + scale)
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x @ slopes, scale), obs=y)


def on_minibatches(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(0, 2).expand([2]).to_event(1))
    numpyro.deterministic("sum", slopes.sum())
    with numpyro.plate("rows", len(y), subsample_size=20) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ slopes, 1.0), obs=y[rows])


def mcmc_of(name="MALA", *, num_chains=2, chain_method="vectorized", **options):
    its_model = options.pop("model", on_minibatches if name == "AMAGOLD" else model)
    kernel_options = options.pop("kernel", {})
    options = {"num_warmup": 40, "num_samples": 25, "progress_bar": False, **options}
    return MCMC(
        KERNELS[name](its_model, **kernel_options),
        num_chains=num_chains,
        chain_method=chain_method,
        **options,
    )


def run(path, max_draws=25, mcmc=None, *, seed=0, arguments=None, **options):
    until = options.pop("until", None) or Until(max_draws=max_draws)
    options = {"draws_per_write": 10, "until": until, **options}
    key = jax.random.key(seed)
    return sample_to(path, mcmc or mcmc_of(), key, *(arguments or data()), **options)


def read(path):
    """The store as ArviZ reads it."""
    return xarray.open_datatree(path, engine="zarr")


def draws_of(path):
    """All arrays of a store by name."""
    return {
        f"{group}/{name}": np.asarray(one)
        for group, stored in read(path).children.items()
        for name, one in stored.variables.items()
    }


def assert_same(path, other):
    left, right = draws_of(path), draws_of(other)
    assert left.keys() == right.keys()
    for name, values in left.items():
        np.testing.assert_array_equal(values, right[name], err_msg=name, strict=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), mcmc_of(num_warmup=2000))
