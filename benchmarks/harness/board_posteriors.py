"""The posteriors of the leaderboard: NumPyro models with their data, and what is compared.

Four are those of posteriordb, with its reference; of the others a reference is made by
``python benchmarks/leaderboard.py --reference NAME...``: long chains of NUTS on the same posterior
written as it is easiest for NUTS, or the exact moments where they are known.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp

from benchmarks import hierarchies
from benchmarks.harness import data, large_models, posteriordb
from benchmarks.harness import hierarchies as hierarchical_models
from benchmarks.harness.models import breast_cancer_data, logistic_regression

__all__ = ["POSTERIORS", "PUBLISHED", "Posterior"]


class Posterior(NamedTuple):
    """A model and its data.

    kind
        What it is.
    make
        Makes model and arguments.
    easier
        Model of the same arguments and posterior whose draws have the sites of `make`'s too, for
        the reference; None for the model itself.
    exact
        Means and standard deviations of unconstrained sites where they are known.
    compared
        From the sites of a draw to what is compared, where sites are not identified; None for
        the unconstrained sites.
    """

    kind: str
    make: Callable[[], tuple[Callable, tuple]]
    easier: Callable | None = None
    exact: dict | None = None
    compared: Callable[[dict], dict] | None = None


def vector(name: str, law: dist.Distribution, size: int):
    """A site of `size` independent draws."""
    return numpyro.sample(name, law.expand([size]).to_event(1))


# regressions


def linear(x, y) -> None:
    """Normal linear regression."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    slope = vector("slope", dist.Normal(0, 1), x.shape[1])
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(intercept + x @ slope, sigma), obs=y)


def robust(x, y) -> None:
    """Regression with Student's t errors, whose degrees of freedom are sampled."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    slope = vector("slope", dist.Normal(0, 1), x.shape[1])
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    df = numpyro.sample("df", dist.Gamma(2, 0.1))
    numpyro.sample("y", dist.StudentT(df, intercept + x @ slope, sigma), obs=y)


def poisson(x, y) -> None:
    """Counts with a log link."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 3))
    slope = vector("slope", dist.Normal(0, 1), x.shape[1])
    numpyro.sample("y", dist.Poisson(jnp.exp(intercept + x @ slope)), obs=y)


def negative_binomial(x, y) -> None:
    """Counts with a log link and a dispersion."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 3))
    slope = vector("slope", dist.Normal(0, 1), x.shape[1])
    shape = numpyro.sample("shape", dist.HalfNormal(10))
    mean = jnp.exp(intercept + x @ slope)
    numpyro.sample("y", dist.NegativeBinomial2(mean, shape), obs=y)


def ordinal(x, y) -> None:
    """Ordered logistic regression with four levels."""
    slope = vector("slope", dist.Normal(0, 1), x.shape[1])
    first = numpyro.sample("first", dist.Normal(0, 2))
    gaps = vector("gaps", dist.HalfNormal(2), 2)
    cutpoints = first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(gaps)])
    numpyro.sample("y", dist.OrderedLogistic(x @ slope, cutpoints), obs=y)


def survival(x, time, is_event) -> None:
    """Weibull durations, some of which are censored."""
    slope = vector("slope", dist.Normal(0, 1), x.shape[1])
    intercept = numpyro.sample("intercept", dist.Normal(0, 2))
    shape = numpyro.sample("shape", dist.HalfNormal(2))
    log_ratio = jnp.log(time) - intercept - x @ slope
    log_hazard = jnp.log(shape) - jnp.log(time) + shape * log_ratio
    numpyro.factor("y", jnp.sum(is_event * log_hazard - jnp.exp(shape * log_ratio)))


def standardized_diabetes() -> tuple[np.ndarray, np.ndarray]:
    """Covariates and progression of scikit-learn's diabetes data."""
    x, y = map(data.standardized, data.diabetes())
    return x.astype(np.float32), y.astype(np.float32)


def swiss_notes() -> tuple[np.ndarray, np.ndarray]:
    """Swiss bank notes, standardized."""
    x, y = data.swiss()
    return data.standardized(x).astype(np.float32), y.astype(np.int32)


def trees() -> tuple[np.ndarray, np.ndarray]:
    """Number of trees in the cells of Barro Colorado."""
    count, *covariates = data.barro_colorado()
    return data.standardized(np.stack(covariates, 1)).astype(np.float32), count.astype(np.int32)


def graded() -> tuple[np.ndarray, np.ndarray]:
    """200 rows of four grades, generated."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 3))
    y = x @ [1.0, -0.5, 0.0] + rng.logistic(size=200)
    return x.astype(np.float32), np.digitize(y, [-1.0, 0.5, 2.0]).astype(np.int32)


def durations() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """200 Weibull durations, generated; what lasts longer than 2 is censored."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(200, 3))
    time = np.exp(x @ [0.5, -0.3, 0.0]) * rng.weibull(1.5, size=200)
    found = (x, np.minimum(time, 2.0), time < 2.0)
    return tuple(each.astype(np.float32) for each in found)


# hierarchies

HITS = [18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7]


def horseshoe() -> None:
    """Regression of 60 rows on 10 covariates, two of which matter."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 10))
    y = x[:, 0] - 0.5 * x[:, 1] + 0.5 * rng.normal(size=60)
    tau = numpyro.sample("tau", dist.HalfCauchy(0.2))
    scale = numpyro.sample("scale", dist.HalfCauchy(1).expand([10]).to_event(1))
    beta = tau * scale * numpyro.sample("z", dist.Normal(0, 1).expand([10]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def volatility() -> None:
    """Stochastic volatility of 60 returns, log variances a random walk."""
    rng = np.random.default_rng(1)
    y = np.exp(0.5 * np.cumsum(0.2 * rng.normal(size=60))) * rng.normal(size=60)
    tau = numpyro.sample("tau", dist.HalfNormal(0.5))
    h = tau * jnp.cumsum(numpyro.sample("z", dist.Normal(0, 1).expand([60]).to_event(1)))
    numpyro.sample("y", dist.Normal(0, jnp.exp(h / 2)), obs=y)


def baseball(hits) -> None:
    """Hits in 45 at-bats of 18 players (Efron and Morris 1975), partially pooled."""
    m = numpyro.sample("m", dist.Uniform(0, 1))
    kappa = numpyro.sample("kappa", dist.Pareto(1, 1.5))
    law = dist.Beta(m * kappa, (1 - m) * kappa)
    phi = numpyro.sample("phi", law.expand([len(hits)]).to_event(1))
    numpyro.sample("hits", dist.Binomial(45, phi), obs=hits)


def schools_easier() -> None:
    """The eight schools, non-centred, with theta."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    z = vector("z", dist.Normal(0, 1), 8)
    theta = numpyro.deterministic("theta", mu + tau * z)
    numpyro.sample("y", dist.Normal(theta, hierarchies.SIGMA).to_event(1), obs=hierarchies.Y)


def radon(floor, county, y) -> None:
    """Intercepts of 20 counties, centred."""
    mu, slope = (numpyro.sample(name, dist.Normal(0, 2)) for name in ("mu", "slope"))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    a = vector("a", dist.Normal(mu, tau), 20)
    numpyro.sample("y", dist.Normal(a[county] + slope * floor, sigma), obs=y)


def houses() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """150 houses in 20 counties of unequal size, generated as the radon data look."""
    rng = np.random.default_rng(5)
    county = np.sort((20 * rng.beta(1, 2, size=150)).astype(np.int32))
    floor = (rng.random(150) < 0.2).astype(np.float32)
    a = 1.5 + 0.3 * rng.normal(size=20)
    y = a[county] - 0.7 * floor + 0.7 * rng.normal(size=150)
    return floor, county, y.astype(np.float32)


def item_response(y) -> None:
    """Two parameters for each item, and an ability of each person."""
    ability = vector("ability", dist.Normal(0, 1), y.shape[0])
    difficulty = vector("difficulty", dist.Normal(0, 2), y.shape[1])
    discrimination = vector("discrimination", dist.LogNormal(0, 0.5), y.shape[1])
    logits = discrimination * (ability[:, None] - difficulty)
    numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def answers() -> tuple[np.ndarray]:
    """Answers of 30 persons to 10 items, generated."""
    rng = np.random.default_rng(6)
    logits = np.exp(0.3 * rng.normal(size=10)) * (rng.normal(size=(30, 1)) - rng.normal(size=10))
    return ((rng.random((30, 10)) < 1 / (1 + np.exp(-logits))).astype(np.int32),)


# time series

NILE = (
    "1120 1160 963 1210 1160 1160 813 1230 1370 1140 995 935 1110 994 1020 960 1180 799 958 "
    "1140 1100 1210 1150 1250 1260 1220 1030 1100 774 840 874 694 940 833 701 916 692 1020 "
    "1050 969 831 726 456 824 702 1120 1100 832 764 821 768 845 864 862 698 845 744 796 1040 "
    "759 781 865 845 944 984 897 822 1010 771 676 649 846 812 742 801 1040 860 874 848 890 "
    "744 749 838 1050 918 986 797 923 975 815 1020 906 901 1170 912 746 919 718 714 740"
)


def nile() -> tuple[np.ndarray]:
    """Flow of the Nile at Aswan, 1871 to 1970 (Cobb 1978), standardized."""
    return (data.standardized(np.array(NILE.split(), float)).astype(np.float32),)


def autoregression(y) -> None:
    """Two lags."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    phi = vector("phi", dist.Normal(0, 0.5), 2)
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    mean = mu + phi[0] * y[1:-1] + phi[1] * y[:-2]
    numpyro.sample("y", dist.Normal(mean, sigma), obs=y[2:])


def local_level(y) -> None:
    """A level that is a random walk, integrated out by Kalman's filter."""
    level = numpyro.sample("level", dist.Normal(0, 2))
    walk = numpyro.sample("walk", dist.HalfNormal(0.5))
    noise = numpyro.sample("noise", dist.HalfNormal(1))

    def step(carry, y):
        mean, variance, total = carry
        spread = variance + noise**2
        total += -0.5 * (y - mean) ** 2 / spread - 0.5 * jnp.log(spread)
        gain = variance / spread
        return (mean + gain * (y - mean), (1 - gain) * variance + walk**2, total), None

    (_, _, total), _ = jax.lax.scan(step, (level, walk**2, jnp.zeros_like(level)), y)
    numpyro.factor("y", total)


def hidden_markov(y) -> None:
    """Two hidden states, summed out by the forward algorithm."""
    stay = vector("stay", dist.Beta(8, 2), 2)
    low = numpyro.sample("low", dist.Normal(-1, 1))
    gap = numpyro.sample("gap", dist.LogNormal(0.5, 0.5))
    sigma = vector("sigma", dist.HalfNormal(1), 2)
    log_move = jnp.log(
        jnp.stack([jnp.stack([stay[0], 1 - stay[0]]), jnp.stack([1 - stay[1], stay[1]])])
    )
    emission = dist.Normal(jnp.stack([low, low + gap]), sigma).log_prob(y[:, None])

    def step(alpha, e):
        return logsumexp(alpha[:, None] + log_move, axis=0) + e, None

    alpha, _ = jax.lax.scan(step, emission[0] - jnp.log(2.0), emission[1:])
    numpyro.factor("y", logsumexp(alpha))


def switching() -> tuple[np.ndarray]:
    """120 observations of a chain that stays with probabilities 0.9 and 0.8, generated."""
    rng = np.random.default_rng(7)
    states = [0]
    for u in rng.random(119):
        states.append(int(u > 0.9) if states[-1] == 0 else int(u < 0.8))
    return ((np.array([-1.0, 1.5])[states] + 0.7 * rng.normal(size=120)).astype(np.float32),)


# others


def lynx_hare_rk4(years, pelts) -> None:
    """The model of :func:`benchmarks.harness.models.lynx_hare`, solved with steps of a tenth year.

    Fixed steps have a reverse mode, so that all samplers see one density.
    """
    location, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    prior = dist.TruncatedNormal(location, scale, low=0.0).to_event(1)
    alpha, beta, gamma, delta = numpyro.sample("theta", prior)
    z_init = vector("z_init", dist.LogNormal(jnp.log(10.0), 1.0), 2)
    sigma = vector("sigma", dist.LogNormal(-1.0, 1.0), 2)

    def field(log_z):
        hare, lynx = jnp.exp(log_z)
        return jnp.stack([alpha - beta * lynx, delta * hare - gamma])

    def step(x, _):
        h = 0.1
        a = field(x)
        b = field(x + 0.5 * h * a)
        c = field(x + 0.5 * h * b)
        d = field(x + h * c)
        return x + h / 6 * (a + 2 * b + 2 * c + d), x

    _, path = jax.lax.scan(step, jnp.log(z_init), length=10 * (len(years) - 1) + 1)
    path = path[::10]
    is_solved = jnp.isfinite(path).all()
    numpyro.factor("solved", jnp.where(is_solved, 0.0, -jnp.inf))
    numpyro.sample("pelts", dist.LogNormal(jnp.where(is_solved, path, 0.0), sigma), obs=pelts)


def lynx_hare_data() -> tuple[np.ndarray, np.ndarray]:
    """Pelts."""
    return tuple(each.astype(np.float32) for each in data.lynx_hare())


def banana() -> None:
    """A normal law bent along a parabola: a ~ N(0, 1), b ~ N(a^2, 0.3^2)."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("b", dist.Normal(a**2, 0.3))


def latent_gp(x, y) -> None:
    """Counts whose log rate is a Gaussian process, not centred."""
    rho = numpyro.sample("rho", dist.LogNormal(0, 0.3))
    alpha = numpyro.sample("alpha", dist.HalfNormal(1))
    z = vector("z", dist.Normal(0, 1), len(x))
    cov = alpha**2 * jnp.exp(-0.5 * (x[:, None] - x) ** 2 / rho**2) + 1e-3 * jnp.eye(len(x))
    numpyro.sample("y", dist.Poisson(jnp.exp(1 + jnp.linalg.cholesky(cov) @ z)), obs=y)


def counts() -> tuple[np.ndarray, np.ndarray]:
    """15 counts along a line, generated."""
    rng = np.random.default_rng(8)
    x = np.linspace(-3, 3, 15)
    return x.astype(np.float32), rng.poisson(np.exp(1 + np.sin(x))).astype(np.int32)


def of(model: Callable, arguments: Callable[[], tuple] = tuple) -> Callable:
    """What makes a model and its arguments."""
    return lambda: (model, arguments())


def in_both_forms(kind: str, model: Callable, arguments: Callable[[], tuple]) -> Posterior:
    """A posterior whose model can also be written as not centred."""
    return Posterior(kind, of(model, arguments), partial(model, is_centred=False))


def of_hierarchy(kind: str, make_model: Callable, **sizes: int) -> Posterior:
    """The same of a maker of models in both forms."""
    easier = make_model(is_centred=False, **sizes)
    return Posterior(kind, lambda: (make_model(**sizes), ()), easier)


PUBLISHED = {  # names in posteriordb
    "eight_schools": "eight_schools-eight_schools_noncentered",
    "kidscore": "kidiq-kidscore_interaction",
    "mixture": "low_dim_gauss_mix-low_dim_gauss_mix",
    "gp": "gp_pois_regr-gp_regr",
}


def of_posteriordb(name: str) -> Callable:
    """Model and arguments of posteriordb."""
    return lambda: posteriordb.parts_of(PUBLISHED[name])


# of the funnel's other coordinates no finite number of draws has the standard deviation
FUNNEL = {"w": (0.0, 3.0)}
BANANA = {"a": (0.0, 1.0), "b": (1.0, float(np.sqrt(2 + 0.09)))}

# the short first: what is not reached in a night is at the end
POSTERIORS = {
    "eight_schools": Posterior("hierarchy", of_posteriordb("eight_schools")),
    "kidscore": Posterior("regression, flat priors", of_posteriordb("kidscore")),
    "mixture": Posterior("mixture", of_posteriordb("mixture")),
    "gp": Posterior("Gaussian process", of_posteriordb("gp")),
    "schools_centred": Posterior(
        "hierarchy, centred", of(hierarchies.eight_schools), schools_easier
    ),
    "funnel": Posterior("funnel", of(lambda: hierarchies.funnel(10)), exact=FUNNEL),
    "banana": Posterior("banana", of(banana), exact=BANANA),
    "trees": Posterior("Poisson regression", of(poisson, trees)),
    "swiss": Posterior("logistic regression", of(logistic_regression, swiss_notes)),
    "linear": Posterior("linear regression", of(linear, standardized_diabetes)),
    "robust": Posterior("robust regression", of(robust, standardized_diabetes)),
    "negative_binomial": Posterior("overdispersed counts", of(negative_binomial, trees)),
    "survival": Posterior("survival", of(survival, durations)),
    "ordinal": Posterior("ordinal regression", of(ordinal, graded)),
    "autoregression": Posterior("autoregression", of(autoregression, nile)),
    "local_level": Posterior("local level", of(local_level, nile)),
    "hidden_markov": Posterior("hidden Markov", of(hidden_markov, switching)),
    "baseball": Posterior("binomial hierarchy", of(baseball, lambda: (np.array(HITS, np.int32),))),
    "radon": Posterior("varying intercepts", of(radon, houses)),
    "horseshoe": Posterior("horseshoe", of(horseshoe)),
    "lynx_hare": Posterior("differential equation", of(lynx_hare_rk4, lynx_hare_data)),
    "latent_gp": Posterior("latent Gaussian process", of(latent_gp, counts)),
    "breast_cancer": Posterior("logistic regression", of(logistic_regression, breast_cancer_data)),
    "item_response": Posterior("item response", of(item_response, answers)),
    "volatility": Posterior("stochastic volatility", of(volatility)),
    # of more than 64 dimensions
    "catches": in_both_forms(
        "zero-inflated counts", large_models.catches, large_models.catches_data
    ),
    "compositions": Posterior(
        "Dirichlet hierarchy",
        of(large_models.compositions, large_models.compositions_data),
        large_models.compositions_easier,
    ),
    "growth": in_both_forms(
        "correlated slopes, centred", large_models.growth, large_models.growth_data
    ),
    "rare_events": in_both_forms(
        "logistic hierarchy, centred", large_models.rare_events, large_models.rare_events_data
    ),
    "visits": in_both_forms(
        "negative binomial hierarchy, centred", large_models.visits, large_models.visits_data
    ),
    "counties": in_both_forms(
        "intercepts and slopes of 85 counties, centred",
        large_models.counties,
        large_models.counties_data,
    ),
    "crossed": in_both_forms(
        "crossed effects, centred", large_models.crossed, large_models.crossed_data
    ),
    "mark_recapture": in_both_forms(
        "mark and recapture", large_models.mark_recapture, large_models.capture_histories
    ),
    "local_trend": Posterior(
        "state space",
        of(large_models.local_trend, large_models.trend_data),
        large_models.local_trend_easier,
    ),
    "disease_map": in_both_forms(
        "spatial field", large_models.disease_map, large_models.disease_data
    ),
    "horseshoe_200": of_hierarchy(
        "horseshoe of 200 coefficients, centred",
        hierarchical_models.horseshoe,
        num_rows=100,
        size=200,
    ),
    "answers_400": Posterior(  # the form in which NUTS is better
        "item response, 400 persons and 30 items, centred",
        lambda: (hierarchical_models.item_response(), ()),
    ),
    "process_500": in_both_forms(
        "latent Gaussian process of 500 points",
        large_models.ornstein_uhlenbeck,
        large_models.process_data,
    ),
    "returns_1000": in_both_forms(
        "stochastic volatility of 1,000 states", large_models.returns, large_models.returns_data
    ),
    "network": Posterior(
        "neural network",
        of(large_models.network, large_models.network_data),
        compared=large_models.network_functions,
    ),
}
