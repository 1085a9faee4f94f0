"""Models of a hundred to two thousand parameters, as they are written first, and data for them.

Data are generated from fixed seeds. Where a model takes `is_centred`, the other form has the same
posterior, and is the one in which NUTS makes the reference.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.linalg import cho_solve

from benchmarks.harness.hierarchies import NOISE, effect

Arrays = tuple[np.ndarray, ...]


def rows_in_groups(rng: np.random.Generator, num_groups: int, most: int) -> np.ndarray:
    """The group of each row; groups have 1 to `most` rows, most of them few."""
    sizes = 1 + (most * rng.beta(0.5, 2.0, size=num_groups)).astype(int)
    return np.repeat(np.arange(num_groups), sizes).astype(np.int32)


def floats(*arrays: np.ndarray) -> Arrays:
    """In single precision, but integers as they are."""
    is_real = [np.issubdtype(a.dtype, np.floating) for a in arrays]
    kinds = [np.float32 if each else np.int32 for each in is_real]
    return tuple(a.astype(kind) for a, kind in zip(arrays, kinds, strict=True))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Probability of logits."""
    return 1 / (1 + np.exp(-x))


# hierarchies


def counties(floor, uranium, county, y, is_centred: bool = True) -> None:
    """Radon in houses of 85 counties: intercepts explained by uranium, and slopes of the floor."""
    level, slope, of_floor = (
        numpyro.sample(name, dist.Normal(0, 5)) for name in ("level", "slope", "of_floor")
    )
    names = ("of_intercepts", "of_slopes", "sigma")
    of_intercepts, of_slopes, sigma = (numpyro.sample(n, dist.HalfCauchy(1)) for n in names)
    a = effect("a", level + slope * uranium, of_intercepts, len(uranium), is_centred)
    b = effect("b", of_floor, of_slopes, len(uranium), is_centred)
    numpyro.sample("y", dist.Normal(a[county] + b[county] * floor, sigma), obs=y)


def counties_data() -> Arrays:
    """900 houses or so, generated as the radon data look: half of the counties have few."""
    rng = np.random.default_rng(11)
    county = rows_in_groups(rng, 85, 60)
    floor, uranium = 1.0 * (rng.random(county.size) < 0.2), rng.normal(size=85)
    a = 1.4 + 0.3 * uranium + 0.15 * rng.normal(size=85)
    b = -0.7 + 0.3 * rng.normal(size=85)
    y = a[county] + b[county] * floor + 0.75 * rng.normal(size=county.size)
    return floats(floor, uranium, county, y)


def crossed(subject, item, y, is_centred: bool = True) -> None:
    """Reaction times of subjects to items, an effect for each."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    names = ("of_subjects", "of_items", "sigma")
    of_subjects, of_items, sigma = (numpyro.sample(n, dist.HalfNormal(1)) for n in names)
    a = effect("subject", mu, of_subjects, 120, is_centred)
    b = effect("item", 0.0, of_items, 60, is_centred)
    numpyro.sample("y", dist.Normal(a[subject] + b[item], sigma), obs=y)


def crossed_data() -> Arrays:
    """1,000 of the 7,200 cells, some subjects with many and some with few."""
    rng = np.random.default_rng(12)
    cells = rng.choice(7200, 1000, replace=False, p=np.repeat(rng.dirichlet(np.ones(120)), 60) / 60)
    subject, item = np.divmod(np.sort(cells), 60)
    y = 6 + 0.2 * rng.normal(size=120)[subject] + 0.1 * rng.normal(size=60)[item]
    return floats(subject, item, y + 0.3 * rng.normal(size=1000))


def visits(site, x, y, is_centred: bool = True) -> None:
    """Overdispersed counts at 150 sites."""
    mu, slope = (numpyro.sample(name, dist.Normal(0, 3)) for name in ("mu", "slope"))
    tau = numpyro.sample("tau", dist.HalfCauchy(1))
    shape = numpyro.sample("shape", dist.Gamma(2, 0.1))
    a = effect("a", mu, tau, 150, is_centred)
    numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(a[site] + slope * x), shape), obs=y)


def visits_data() -> Arrays:
    """1 to 15 visits of a site."""
    rng = np.random.default_rng(13)
    site = rows_in_groups(rng, 150, 14)
    x = rng.normal(size=site.size)
    mean = np.exp(1 + 0.5 * rng.normal(size=150)[site] + 0.3 * x)
    return floats(site, x, rng.negative_binomial(3, 3 / (3 + mean)))


def rare_events(hospital, x, y, is_centred: bool = True) -> None:
    """Patients of 150 hospitals, many of which have few patients and no event."""
    mu, slope = (numpyro.sample(name, dist.Normal(0, 5)) for name in ("mu", "slope"))
    tau = numpyro.sample("tau", dist.HalfCauchy(2.5))
    a = effect("a", mu, tau, 150, is_centred)
    numpyro.sample("y", dist.Bernoulli(logits=a[hospital] + slope * x), obs=y)


def rare_events_data() -> Arrays:
    """1 to 60 patients of a hospital, one in ten with the event."""
    rng = np.random.default_rng(14)
    hospital = rows_in_groups(rng, 150, 60)
    x = rng.normal(size=hospital.size)
    logits = -2.5 + 0.6 * rng.normal(size=150)[hospital] + 0.5 * x
    return floats(hospital, x, (rng.random(x.size) < sigmoid(logits)).astype(int))


def catches(boat, x, y, is_centred: bool = True) -> None:
    """Counts of 100 boats, some of which did not fish at all on some days."""
    mu, slope, gate = (numpyro.sample(name, dist.Normal(0, 2)) for name in ("mu", "slope", "gate"))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    a = effect("a", mu, tau, 100, is_centred)
    rate = jnp.exp(a[boat] + slope * x)
    numpyro.sample("y", dist.ZeroInflatedPoisson(jax.nn.sigmoid(gate), rate=rate), obs=y)


def catches_data() -> Arrays:
    """1 to 15 days of a boat, a third of which it stayed at home."""
    rng = np.random.default_rng(15)
    boat = rows_in_groups(rng, 100, 14)
    x = rng.normal(size=boat.size)
    y = rng.poisson(np.exp(0.5 + 0.6 * rng.normal(size=100)[boat] + 0.3 * x))
    return floats(boat, x, y * (rng.random(x.size) > 0.35))


def growth(child, age, y, is_centred: bool = True) -> None:
    """Intercepts and slopes of 60 children, correlated."""
    mu = numpyro.sample("mu", dist.Normal(0, 3).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    scale = tau[:, None] * factor
    if is_centred:
        law = dist.MultivariateNormal(mu, scale_tril=scale)
        a = numpyro.sample("a", law.expand([60]).to_event(1))
    else:
        z = numpyro.sample("a" + NOISE, dist.Normal(0, 1).expand([60, 2]).to_event(2))
        a = numpyro.deterministic("a", mu + z @ scale.T)
    numpyro.sample("y", dist.Normal(a[child, 0] + a[child, 1] * age, sigma), obs=y)


def growth_data() -> Arrays:
    """2 to 9 visits of a child, at ages that are centred."""
    rng = np.random.default_rng(16)
    child = np.repeat(np.arange(60), rng.integers(2, 10, size=60))
    age = rng.uniform(-1, 1, size=child.size)
    cov = np.array([[0.25, 0.05], [0.05, 0.04]])
    a = np.array([1.0, 0.5]) + rng.multivariate_normal(np.zeros(2), cov, size=60)
    y = a[child, 0] + a[child, 1] * age + 0.3 * rng.normal(size=child.size)
    return floats(child, age, y)


def compositions(y) -> None:
    """Shares of four species at 40 places, which vary about common ones."""
    total = numpyro.sample("total", dist.LogNormal(2, 1))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(4)))
    law = dist.Dirichlet(total * shares).expand([len(y)]).to_event(1)
    theta = numpyro.sample("theta", law)
    numpyro.sample("y", dist.Multinomial(y.sum(1), theta), obs=y)


def compositions_easier(y) -> None:
    """The same posterior: places summed out, then drawn from what is known of them."""
    total = numpyro.sample("total", dist.LogNormal(2, 1))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(4)))
    numpyro.sample("y", dist.DirichletMultinomial(total * shares, y.sum(1)), obs=y)
    numpyro.sample("theta", dist.Dirichlet(total * shares + y).to_event(1))


def compositions_data() -> Arrays:
    """5 to 60 individuals of a place."""
    rng = np.random.default_rng(17)
    theta = rng.dirichlet(12 * np.array([0.5, 0.3, 0.15, 0.05]), size=40)
    sizes = rng.integers(5, 61, size=40)
    return floats(np.stack([rng.multinomial(n, p) for n, p in zip(sizes, theta, strict=True)]))


def mark_recapture(is_seen, first, last, is_centred: bool = True) -> None:
    """Cormack, Jolly and Seber: survival between occasions, and animals that differ in shyness.

    After the last time that it is seen an animal has died, or was missed each time.
    """
    num_animals, num_occasions = is_seen.shape
    survival = dist.Beta(1, 1).expand([num_occasions - 1]).to_event(1)
    survival = numpyro.sample("survival", survival)
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    p = jax.nn.sigmoid(effect("a", mu, tau, num_animals, is_centred))
    never = [jnp.ones(num_animals)]  # probability to be never seen after an occasion
    for s in survival[::-1]:
        never.append(1 - s + s * (1 - p) * never[-1])
    never = jnp.stack(never[::-1], 1)
    occasion = jnp.arange(num_occasions)
    is_alive = (first[:, None] < occasion) & (occasion <= last[:, None])
    log_p = jnp.where(is_seen, jnp.log(p)[:, None], jnp.log1p(-p)[:, None])
    log_s = jnp.concatenate([jnp.zeros(1), jnp.log(survival)])
    numpyro.factor("seen", jnp.sum(jnp.where(is_alive, log_p + log_s, 0.0)))
    numpyro.factor("not seen", jnp.sum(jnp.log(never[jnp.arange(num_animals), last])))


def capture_histories() -> Arrays:
    """200 animals on 8 occasions, marked on any of the first 7."""
    rng = np.random.default_rng(18)
    first = rng.integers(0, 7, size=200)
    p = sigmoid(-0.5 + rng.normal(size=200))
    is_alive, occasion = np.ones(200, bool), np.arange(8)
    is_seen = np.zeros((200, 8), bool)
    for t in range(8):
        is_alive &= (t <= first) | (rng.random(200) < 0.8)
        is_seen[:, t] = (t == first) | ((t > first) & is_alive & (rng.random(200) < p))
    return is_seen, *floats(first, np.max(is_seen * occasion, 1))


# time and space


def returns(y, is_centred: bool = True) -> None:
    """Stochastic volatility with 1,000 states (Hoffman and Gelman 2014), as NumPyro's example."""
    step = numpyro.sample("step", dist.Exponential(50.0))
    df = numpyro.sample("df", dist.Exponential(0.1))
    if is_centred:
        log_scale = numpyro.sample("log_scale", dist.GaussianRandomWalk(step, len(y)))
    else:
        z = numpyro.sample("log_scale" + NOISE, dist.Normal(0, 1).expand([len(y)]).to_event(1))
        log_scale = numpyro.deterministic("log_scale", step * jnp.cumsum(z))
    numpyro.sample("y", dist.StudentT(df, 0.0, jnp.exp(log_scale)), obs=y)


def returns_data() -> Arrays:
    """Daily returns in percent, generated."""
    rng = np.random.default_rng(19)
    log_scale = np.cumsum(0.08 * rng.normal(size=1000))
    return floats(np.exp(log_scale) * rng.standard_t(8, size=1000))


def ornstein_uhlenbeck(time, y, is_centred: bool = True) -> None:
    """Counts whose log rate is a Gaussian process of kernel exp(-|t|/length), by its neighbours."""
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    length = numpyro.sample("length", dist.InverseGamma(3, 3))
    amplitude = numpyro.sample("amplitude", dist.HalfNormal(1))
    phi = jnp.concatenate([jnp.zeros(1), jnp.exp(-jnp.diff(time) / length)])
    scale = amplitude * jnp.sqrt(1 - phi**2)
    law = dist.Normal(0, 1).expand([len(y)]).to_event(1)
    if is_centred:
        f = numpyro.sample("f", law.mask(False))
        before = jnp.concatenate([jnp.zeros(1), f[:-1]])
        numpyro.factor("process", dist.Normal(phi * before, scale).log_prob(f).sum())
    else:
        f = recurrence(phi, scale * numpyro.sample("f" + NOISE, law))
        numpyro.deterministic("f", f)
    numpyro.sample("y", dist.Poisson(jnp.exp(mu + f)), obs=y)


def recurrence(phi, x):
    """f[t] = phi[t] f[t - 1] + x[t], in a few passes."""

    def both(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    return jax.lax.associative_scan(both, (phi, x))[1]


def process_data() -> Arrays:
    """500 counts at irregular times."""
    rng = np.random.default_rng(20)
    time = np.sort(rng.uniform(0, 50, size=500))
    cov = 0.5 * np.exp(-np.abs(time[:, None] - time) / 1.5)
    f = np.linalg.cholesky(cov + 1e-9 * np.eye(500)) @ rng.normal(size=500)
    return floats(time, rng.poisson(np.exp(1 + f)))


def disease_map(expected, x, y, is_centred: bool = True) -> None:
    """Besag, York and Mollié 1991: cases in the cells of a grid.

    Neighbours are alike, and each cell has an effect of its own. The field's sum is near zero, as
    Stan's users have it.
    """
    mu, slope = (numpyro.sample(name, dist.Normal(0, 2)) for name in ("mu", "slope"))
    names = ("of_field", "of_cells")
    of_field, of_cells = (numpyro.sample(name, dist.HalfNormal(1)) for name in names)
    flat = dist.Normal(0, 1).expand(y.shape).to_event(2).mask(False)
    field = numpyro.sample("field" if is_centred else "field" + NOISE, flat)
    squares = jnp.sum(jnp.diff(field, axis=0) ** 2) + jnp.sum(jnp.diff(field, axis=1) ** 2)
    # of the noise's volume the field has of_field ** y.size
    scale, rank = (of_field, y.size - 1) if is_centred else (1.0, -1)
    numpyro.factor("neighbours", -0.5 * squares / scale**2 - rank * jnp.log(of_field))
    field = field if is_centred else numpyro.deterministic("field", of_field * field)
    numpyro.factor("sum", dist.Normal(0, 0.001 * y.size).log_prob(field.sum()))
    cell = effect("cell", 0.0, of_cells, y.size, is_centred)
    rate = expected * jnp.exp(mu + slope * x + field + cell.reshape(y.shape))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def disease_data() -> Arrays:
    """Cases in 12 x 16 cells, 2 to 20 of which are expected."""
    rng = np.random.default_rng(21)
    shape = (12, 16)
    row, column = np.meshgrid(np.arange(12) / 12, np.arange(16) / 16, indexing="ij")
    expected, x = rng.uniform(2, 20, size=shape), rng.normal(size=shape)
    log_rate = 0.5 * np.sin(5 * row) * np.cos(4 * column) + 0.2 * x + 0.15 * rng.normal(size=shape)
    return floats(expected, x, rng.poisson(expected * np.exp(log_rate)))


TREND = np.array([[1.0, 1.0], [0.0, 1.0]], np.float32)


def scales_of_trend() -> tuple:
    """Scales of the steps of level and slope, and of the noise."""
    names = ("of_level", "of_slope", "noise")
    priors = (dist.HalfNormal(0.5), dist.HalfNormal(0.1), dist.HalfNormal(1))
    return tuple(map(numpyro.sample, names, priors))


def local_trend(y) -> None:
    """A level with a slope, which both wander, and observations of the level."""
    of_level, of_slope, noise = scales_of_trend()
    scale = jnp.diag(jnp.stack([of_level, of_slope]))
    state = numpyro.sample("state", dist.GaussianStateSpace(len(y), TREND, scale_tril=scale))
    numpyro.sample("y", dist.Normal(state[:, 0], noise), obs=y)


def local_trend_easier(y) -> None:
    """The same posterior: states integrated out, then drawn from what is known of them.

    A draw of the prior moves by the gain times what its observations are off.
    """
    of_level, of_slope, noise = scales_of_trend()
    n = len(y)
    sums = np.tril(np.ones((n, n)))
    twice = sums @ sums - sums  # of the steps of the slope, in the level
    with_level = of_level**2 * (sums @ sums.T) + of_slope**2 * (twice @ twice.T)
    with_slope = of_slope**2 * (sums @ twice.T)
    factor = jnp.linalg.cholesky(with_level + noise**2 * jnp.eye(n))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(n), scale_tril=factor), obs=y)
    z = numpyro.sample("state" + NOISE, dist.Normal(0, 1).expand([3, n]).to_event(2))
    slope = of_slope * jnp.cumsum(z[1])
    level = of_level * jnp.cumsum(z[0]) + jnp.cumsum(slope) - slope
    off = cho_solve((factor, True), y - level - noise * z[2])
    state = jnp.stack([level + with_level @ off, slope + with_slope @ off], 1)
    numpyro.deterministic("state", state)


def trend_data() -> Arrays:
    """140 observations."""
    rng = np.random.default_rng(22)
    slope = np.cumsum(0.05 * rng.normal(size=140))
    level = np.cumsum(slope + 0.2 * rng.normal(size=140))
    return floats(level + 0.5 * rng.normal(size=140))


# regression


WIDTH = 42


def network(x, y) -> None:
    """Two hidden layers of 42 units: 2,017 weights."""
    sizes = (x.shape[1], WIDTH, WIDTH, 1)
    weights = []
    for i, shape in enumerate(pairwise(sizes)):
        law = dist.Normal(0, 1 / np.sqrt(shape[0])).expand(shape).to_event(2)
        weights.append(numpyro.sample(f"weight_{i}", law))
        law = dist.Normal(0, 1).expand([shape[1]]).to_event(1)
        weights.append(numpyro.sample(f"bias_{i}", law))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(network_output(weights, x), sigma), obs=y)


def network_output(weights: list, x):
    """Of each row."""
    for w, b in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = jnp.tanh(x @ w + b)
    return (x @ weights[-2] + weights[-1])[:, 0]


def network_data() -> Arrays:
    """50 rows of three covariates."""
    rng = np.random.default_rng(23)
    x = rng.normal(size=(50, 3))
    y = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.2 * rng.normal(size=50)
    return floats(x, y)


def network_functions(sites: dict) -> dict:
    """What does not depend on the order of the units: outputs at 30 points, and the noise."""
    points = np.random.default_rng(24).normal(size=(30, 3))
    names = [f"{kind}_{i}" for i in range(3) for kind in ("weight", "bias")]
    outputs = network_output([sites[name] for name in names], jnp.asarray(points))
    return {"outputs": outputs, "log_sigma": jnp.log(sites["sigma"])}
