"""Radon in houses of counties: pooled or by county, with centred and with non-centred effects."""

from collections.abc import Callable

import numpyro
import numpyro.distributions as dist

from benchmarks.harness.posteriordb.ports import port

__all__: list[str] = []


def radon(program: str) -> Callable[[Callable], Callable]:
    """Enters a port of both data, of Minnesota and of all states."""
    return port(f"radon_all-radon_{program}", f"radon_mn-radon_{program}")


def measured(log_radon, mean, sigma_y) -> None:
    """Log radon of houses."""
    with numpyro.plate("houses", len(log_radon)):
        numpyro.sample("log_radon", dist.Normal(mean, sigma_y), obs=log_radon)


def scale(of: str):
    """A scale with a half-normal prior."""
    return numpyro.sample(f"sigma_{of}", dist.HalfNormal(1))


def location(name: str):
    """A coefficient with a vague normal prior."""
    return numpyro.sample(name, dist.Normal(0, 10))


def centred(name: str, J: int):
    """Coefficients of counties about their mean."""
    mu, sigma = location(f"mu_{name}"), scale(name)
    with numpyro.plate(f"counties_{name}", J):
        return numpyro.sample(name, dist.Normal(mu, sigma))


def noncentred(name: str, J: int):
    """The same by standard normal deviates."""
    mu, sigma = location(f"mu_{name}"), scale(name)
    with numpyro.plate(f"counties_{name}", J):
        raw = numpyro.sample(f"{name}_raw", dist.Normal(0, 1))
    return numpyro.deterministic(name, mu + sigma * raw)


@radon("pooled")
def radon_pooled(floor_measure, log_radon):
    """One line for all counties: D = 3."""
    alpha, beta = location("alpha"), location("beta")
    measured(log_radon, alpha + beta * floor_measure, scale("y"))


@radon("county_intercept")
def radon_county_intercept(J, county_idx, floor_measure, log_radon):
    """An intercept for each county, without pooling: D = J + 2."""
    alpha = numpyro.sample("alpha", dist.Normal(0, 10).expand([J]))
    beta = location("beta")
    measured(log_radon, alpha[county_idx - 1] + beta * floor_measure, scale("y"))


@radon("partially_pooled_centered")
def radon_partially_pooled_centered(J, county_idx, log_radon):
    """Intercepts of counties only, centred: D = J + 3."""
    measured(log_radon, centred("alpha", J)[county_idx - 1], scale("y"))


@radon("partially_pooled_noncentered")
def radon_partially_pooled_noncentered(J, county_idx, log_radon):
    """Intercepts of counties only, non-centred: D = J + 3."""
    measured(log_radon, noncentred("alpha", J)[county_idx - 1], scale("y"))


@radon("variable_intercept_centered")
def radon_variable_intercept_centered(J, county_idx, floor_measure, log_radon):
    """Intercepts of counties and a common slope, centred: D = J + 4."""
    alpha, beta = centred("alpha", J), location("beta")
    measured(log_radon, alpha[county_idx - 1] + beta * floor_measure, scale("y"))


@radon("variable_intercept_noncentered")
def radon_variable_intercept_noncentered(J, county_idx, floor_measure, log_radon):
    """Intercepts of counties and a common slope, non-centred: D = J + 4."""
    alpha, beta = noncentred("alpha", J), location("beta")
    measured(log_radon, alpha[county_idx - 1] + beta * floor_measure, scale("y"))


@radon("variable_slope_centered")
def radon_variable_slope_centered(J, county_idx, floor_measure, log_radon):
    """A common intercept and slopes of counties, centred: D = J + 4."""
    alpha, beta = location("alpha"), centred("beta", J)
    measured(log_radon, alpha + beta[county_idx - 1] * floor_measure, scale("y"))


@radon("variable_slope_noncentered")
def radon_variable_slope_noncentered(J, county_idx, floor_measure, log_radon):
    """A common intercept and slopes of counties, non-centred: D = J + 4."""
    alpha, beta = location("alpha"), noncentred("beta", J)
    measured(log_radon, alpha + beta[county_idx - 1] * floor_measure, scale("y"))


@radon("variable_intercept_slope_centered")
def radon_variable_intercept_slope_centered(J, county_idx, floor_measure, log_radon):
    """Intercepts and slopes of counties, centred: D = 2 J + 5."""
    alpha, beta = centred("alpha", J)[county_idx - 1], centred("beta", J)[county_idx - 1]
    measured(log_radon, alpha + beta * floor_measure, scale("y"))


@radon("variable_intercept_slope_noncentered")
def radon_variable_intercept_slope_noncentered(J, county_idx, floor_measure, log_radon):
    """Intercepts and slopes of counties, non-centred: D = 2 J + 5."""
    alpha, beta = noncentred("alpha", J)[county_idx - 1], noncentred("beta", J)[county_idx - 1]
    measured(log_radon, alpha + beta * floor_measure, scale("y"))


@radon("hierarchical_intercept_centered")
def radon_hierarchical_intercept_centered(J, county_idx, log_uppm, floor_measure, log_radon):
    """Intercepts of counties and a covariate of counties, centred: D = J + 5."""
    alpha = centred("alpha", J)[county_idx - 1]
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([2]))
    measured(log_radon, alpha + log_uppm * beta[0] + floor_measure * beta[1], scale("y"))


@radon("hierarchical_intercept_noncentered")
def radon_hierarchical_intercept_noncentered(J, county_idx, log_uppm, floor_measure, log_radon):
    """Intercepts of counties and a covariate of counties, non-centred: D = J + 5."""
    alpha = noncentred("alpha", J)[county_idx - 1]
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([2]))
    measured(log_radon, alpha + log_uppm * beta[0] + floor_measure * beta[1], scale("y"))


@port("radon_mod-radon_county")
def radon_county(J, county, y):
    """Intercepts of counties only, with uniform priors on scales: D = 389."""
    mu_a = numpyro.sample("mu_a", dist.Normal(0, 1))
    sigma_a = numpyro.sample("sigma_a", dist.Uniform(0, 100))
    sigma_y = numpyro.sample("sigma_y", dist.Uniform(0, 100))
    with numpyro.plate("counties", J):
        a = numpyro.sample("a", dist.Normal(mu_a, sigma_a))
    with numpyro.plate("houses", len(y)):
        numpyro.sample("y", dist.Normal(a[county - 1], sigma_y), obs=y)
