"""An anchor that all chains share does not blind R-hat to other modes.

Chains are in the better mode, or in more than one, or it is said. And where there is one mode,
nothing is said: warnings are errors.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import MCMC

from numpyro_fwd import AMAGOLD, SGHMC
from numpyro_fwd.kernels import anchored_rows, other_modes, subsampled_rows

SAID = "paths to the anchor"
WAYS = {
    "full": AMAGOLD,
    "sghmc": SGHMC,
    "subsampled": lambda model: AMAGOLD(model, acceptance="subsampled"),
}


class TwoParts(dist.Distribution):
    """Two unit normals with known weights of 0.6 and 0.4."""

    support = dist.constraints.real

    def __init__(self, first, second):
        self.first, self.second = first, second
        super().__init__(jnp.broadcast_shapes(jnp.shape(first), jnp.shape(second)))

    def log_prob(self, value):
        first, second = (-0.5 * (value - mean) ** 2 for mean in (self.first, self.second))
        return jnp.logaddexp(jnp.log(0.6) + first, jnp.log(0.4) + second)


def mixture(y, names=("a", "b")):
    """The labels of the parts fit the data in one order, and less well in the other."""
    first, second = (numpyro.sample(name, dist.Normal(0, 3)) for name in names)
    with numpyro.plate("rows", len(y), subsample_size=20) as rows:
        numpyro.sample("y", TwoParts(first, second), obs=y[rows])


def parts(num_rows, seed):
    rng = np.random.default_rng(seed)
    first = np.arange(num_rows) < 0.7 * num_rows
    return jnp.asarray(rng.normal(np.where(first, -1.0, 2.0)), jnp.float32)


def heavy(y, name="m", wide=10.0):
    """A location of heavy-tailed rows in two heaps: two modes."""
    m = numpyro.sample(name, dist.Normal(0, wide))
    with numpyro.plate("rows", len(y), subsample_size=5) as rows:
        numpyro.sample("y", dist.StudentT(1.0, m, 0.5), obs=y[rows])


def heaps(num_lower, num_upper):
    lower, upper = (0.3 * (np.arange(num) % 7 - 3) for num in (num_lower, num_upper))
    return jnp.asarray(np.concatenate([lower - 5, upper + 5]), jnp.float32)


def starts(way, model, *args, seed=0, **kwargs):
    """Where four chains start, (4, D), and what was said."""
    keys = jax.random.split(jax.random.key(seed), 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = WAYS[way](model).init(keys, 100, None, args, kwargs)
    said = "\n".join(str(each.message) for each in caught if SAID in str(each.message))
    return np.asarray(jax.vmap(lambda z: ravel_pytree(z)[0])(state.z)), said


@pytest.mark.first
@pytest.mark.parametrize(("num_rows", "seed"), [(300, 0), (3000, 1)])
def test_chains_are_where_labels_fit(num_rows, seed):
    """3,000 rows are more than the paths read."""
    names = ("a", "b") if seed else ("upper", "lower")  # sorted, the other way round
    x, said = starts("full", mixture, parts(num_rows, seed), seed=seed, names=names)
    fits = (x[:, 0] < x[:, 1]) == (names == ("a", "b"))
    assert fits.all() or said or fits.any()
    assert fits.all() or "in a, b" in said or "in upper, lower" in said


@pytest.mark.long
@pytest.mark.parametrize(("way", "seed"), [(way, i % 2) for i, way in enumerate(WAYS)])
def test_modes_that_matter_are_said(way, seed):
    x, said = starts(way, heavy, heaps(6, 5), seed=seed, name="place" if seed else "m")
    assert "2 modes that matter" in said and f"in {'place' if seed else 'm'}." in said
    is_apart = (x > 0).any() and (x < 0).any()
    assert is_apart == (way != "subsampled")
    assert ("R-hat does not tell" in said) == (way == "subsampled")


@pytest.mark.long
def test_modes_of_more_rows_than_paths_read():
    assert "2 modes that matter" in starts("full", heavy, heaps(2100, 2100))[1]
    x, said = starts("full", heavy, heaps(2520, 1680))
    assert (x < 0).all() and not said


@pytest.mark.long
def test_runs_of_two_modes_do_not_mix():
    mcmc = MCMC(
        AMAGOLD(heavy),
        num_warmup=50,
        num_samples=50,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    with pytest.warns(UserWarning, match=SAID):
        mcmc.run(jax.random.key(2), heaps(6, 5))
    assert split_gelman_rubin(np.asarray(mcmc.get_samples(group_by_chain=True)["m"])) > 1.1


def planted_nothing(run, z, first, passes_of):
    """No search beside that for the anchor."""
    return other_modes.Modes([first], [])


@pytest.mark.parametrize("way", ["full", "subsampled"])
def test_planted_no_look_elsewhere(way, monkeypatch):
    for way_of_rows in (anchored_rows, subsampled_rows):
        monkeypatch.setattr(way_of_rows, "look_elsewhere", planted_nothing)
    with pytest.raises(AssertionError):
        test_modes_that_matter_are_said(way, 0)


def test_planted_labels_that_do_not_fit(monkeypatch):
    """Some search for an anchor ends in the lesser mode."""
    monkeypatch.setattr(anchored_rows, "look_elsewhere", planted_nothing)
    with pytest.raises(AssertionError):
        for seed in range(2):
            test_chains_are_where_labels_fit(300, seed)


def regression(kind, x, y):
    b = numpyro.sample("b", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    cuts = scale = None
    if kind == "ordered":
        first = numpyro.sample("first", dist.Normal(-1, 1))
        cuts = jnp.stack([first, first + numpyro.sample("gap", dist.LogNormal(0, 1))])
    if kind in ("normal", "robust"):
        scale = numpyro.sample("scale", dist.HalfNormal(2))
    with numpyro.plate("rows", len(y), subsample_size=20) as rows:
        eta = x[rows] @ b
        law = {
            "logistic": lambda: dist.Bernoulli(logits=eta),
            "poisson": lambda: dist.Poisson(jnp.exp(eta)),
            "ordered": lambda: dist.OrderedLogistic(eta, cuts),
            "normal": lambda: dist.Normal(eta, scale),
            "robust": lambda: dist.StudentT(4.0, eta, scale),
        }[kind]()
        numpyro.sample("y", law, obs=y[rows])


def responses(kind, num_rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, 3)).astype(np.float32)
    eta = x @ np.array([1.0, -0.5, 0.0])
    y = {
        "logistic": lambda: rng.random(num_rows) < 1 / (1 + np.exp(-eta)),
        "poisson": lambda: rng.poisson(np.exp(eta)),
        "ordered": lambda: np.digitize(eta + rng.logistic(size=num_rows), [-1.0, 1.0]),
        "normal": lambda: eta + rng.normal(size=num_rows),
        "robust": lambda: eta + rng.standard_t(4, size=num_rows),
    }[kind]()
    dtype = int if kind in ("ordered", "poisson") else np.float32
    return jnp.asarray(x), jnp.asarray(y.astype(dtype))


@pytest.mark.first
@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "num_rows"),
    [("logistic", 60), ("poisson", 3000), ("ordered", 3000), ("normal", 60), ("robust", 3000)],
)
def test_regressions_have_one_mode(kind, num_rows):
    x, y = responses(kind, num_rows, 0)
    _, said = starts("full", regression, x=x, y=y, kind=kind, seed=1)
    assert not said
