"""Regressions: linear, logistic, with a horseshoe, and of several levels."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array

from benchmarks.harness.posteriordb.ports import port

__all__: list[str] = []


def flat(size: int) -> dist.Distribution:
    """No prior on a real vector."""
    return dist.ImproperUniform(dist.constraints.real, (), event_shape=(size,))


def design(*columns) -> Array:
    """Covariates (N, K), of which the first are ones where one is the number 1."""
    return jnp.stack(jnp.broadcast_arrays(*columns), axis=1).astype(float)


def linear(y, *columns, scale: dist.Distribution | None = None) -> None:
    """Normal law about an intercept and columns times beta, flat unless the scale has a prior."""
    x = design(1, *columns)
    beta = numpyro.sample("beta", flat(x.shape[1]))
    no_prior = dist.ImproperUniform(dist.constraints.positive, (), event_shape=())
    sigma = numpyro.sample("sigma", scale or no_prior)
    numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def logistic(y, *columns) -> None:
    """Logistic regression with flat priors, the intercept apart."""
    x = design(*columns)
    alpha = numpyro.sample("alpha", dist.ImproperUniform(dist.constraints.real, (), ()))
    beta = numpyro.sample("beta", flat(x.shape[1]))
    numpyro.sample("y", dist.Bernoulli(logits=alpha + x @ beta), obs=y)


def centred(x) -> np.ndarray:
    """Less its mean."""
    return x - np.mean(x)


def standardized(x) -> np.ndarray:
    """Of mean 0 and standard deviation 1, that with the divisor N - 1 of Stan."""
    return centred(x) / np.std(x, ddof=1)


# Earnings, of 1192 Americans


@port("earnings-earn_height")
def earn_height(earn, height):
    """Earnings on height: D = 3."""
    linear(earn, height)


@port("earnings-log10earn_height")
def log10earn_height(earn, height):
    """Decimal logarithm of earnings on height: D = 3."""
    linear(np.log10(earn), height)


@port("earnings-logearn_height")
def logearn_height(earn, height):
    """Log earnings on height: D = 3."""
    linear(np.log(earn), height)


@port("earnings-logearn_height_male")
def logearn_height_male(earn, height, male):
    """Log earnings on height and sex: D = 4."""
    linear(np.log(earn), height, male)


@port("earnings-logearn_interaction")
def logearn_interaction(earn, height, male):
    """Log earnings on height, sex and their product: D = 5."""
    linear(np.log(earn), height, male, height * male)


@port("earnings-logearn_interaction_z")
def logearn_interaction_z(earn, height, male):
    """Log earnings on standardized height, sex and their product: D = 5."""
    z_height = standardized(height)
    linear(np.log(earn), z_height, male, z_height * male)


@port("earnings-logearn_logheight_male")
def logearn_logheight_male(earn, height, male):
    """Log earnings on log height and sex: D = 4."""
    linear(np.log(earn), np.log(height), male)


# Test scores of 434 children


@port("kidiq-kidscore_interaction")
def kidscore_interaction(kid_score, mom_hs, mom_iq):
    """Score on both of the mother, and their product: D = 5."""
    linear(kid_score, mom_hs, mom_iq, mom_hs * mom_iq, scale=dist.HalfCauchy(2.5))


@port("kidiq-kidscore_momhs")
def kidscore_momhs(kid_score, mom_hs):
    """Score on whether the mother went to high school: D = 3."""
    linear(kid_score, mom_hs, scale=dist.HalfCauchy(2.5))


@port("kidiq-kidscore_momiq")
def kidscore_momiq(kid_score, mom_iq):
    """Score on the mother's intelligence quotient: D = 3."""
    linear(kid_score, mom_iq, scale=dist.HalfCauchy(2.5))


@port("kidiq-kidscore_momhsiq")
def kidscore_momhsiq(kid_score, mom_hs, mom_iq):
    """Score on both: D = 4."""
    linear(kid_score, mom_hs, mom_iq, scale=dist.HalfCauchy(2.5))


@port("kidiq_with_mom_work-kidscore_interaction_c")
def kidscore_interaction_c(kid_score, mom_hs, mom_iq):
    """Score on both, centred, and their product: D = 5."""
    mom_hs, mom_iq = centred(mom_hs), centred(mom_iq)
    linear(kid_score, mom_hs, mom_iq, mom_hs * mom_iq)


@port("kidiq_with_mom_work-kidscore_interaction_c2")
def kidscore_interaction_c2(kid_score, mom_hs, mom_iq):
    """Score on both, less round numbers, and their product: D = 5."""
    mom_hs, mom_iq = mom_hs - 0.5, mom_iq - 100
    linear(kid_score, mom_hs, mom_iq, mom_hs * mom_iq)


@port("kidiq_with_mom_work-kidscore_interaction_z")
def kidscore_interaction_z(kid_score, mom_hs, mom_iq):
    """Score on both, by two standard deviations, and their product: D = 5."""
    mom_hs, mom_iq = standardized(mom_hs) / 2, standardized(mom_iq) / 2
    linear(kid_score, mom_hs, mom_iq, mom_hs * mom_iq)


@port("kidiq_with_mom_work-kidscore_mom_work")
def kidscore_mom_work(kid_score, mom_work):
    """Score on three of four kinds of the mother's work: D = 5."""
    linear(kid_score, mom_work == 2, mom_work == 3, mom_work == 4)


# Yields of 46 mesquite bushes


@port("mesquite-mesquite")
def mesquite(weight, diam1, diam2, canopy_height, total_height, density, group):
    """Weight of leaves on six measurements: D = 8."""
    linear(weight, diam1, diam2, canopy_height, total_height, density, group)


@port("mesquite-logmesquite")
def logmesquite(weight, diam1, diam2, canopy_height, total_height, density, group):
    """The same with logarithms of all but the group: D = 8."""
    sizes = np.log([diam1, diam2, canopy_height, total_height, density])
    linear(np.log(weight), *sizes, group)


@port("mesquite-logmesquite_logvolume")
def logmesquite_logvolume(weight, diam1, diam2, canopy_height):
    """Log weight on log volume of the canopy: D = 3."""
    linear(np.log(weight), np.log(diam1 * diam2 * canopy_height))


@port("mesquite-logmesquite_logva")
def logmesquite_logva(weight, diam1, diam2, canopy_height, group):
    """Log weight on log volume and area of the canopy, and group: D = 5."""
    area = diam1 * diam2
    linear(np.log(weight), np.log(area * canopy_height), np.log(area), group)


@port("mesquite-logmesquite_logvash")
def logmesquite_logvash(weight, diam1, diam2, canopy_height, total_height, group):
    """Log weight on log volume, area, shape and height, and group: D = 7."""
    area = diam1 * diam2
    sizes = np.log([area * canopy_height, area, diam1 / diam2, total_height])
    linear(np.log(weight), *sizes, group)


@port("mesquite-logmesquite_logvas")
def logmesquite_logvas(weight, diam1, diam2, canopy_height, total_height, density, group):
    """The same with log density: D = 8."""
    area = diam1 * diam2
    sizes = np.log([area * canopy_height, area, diam1 / diam2, total_height, density])
    linear(np.log(weight), *sizes, group)


# National election studies, wells in Bangladesh, and others with flat priors


@port(*(f"nes{year}-nes" for year in range(1972, 2001, 4)))
def nes(partyid7, real_ideo, race_adj, educ1, gender, income, age_discrete):
    """Party of voters on ideology, race, age, education, sex and income: D = 10."""
    ages = [age_discrete == group for group in (2, 3, 4)]
    linear(partyid7, real_ideo, race_adj, *ages, educ1, gender, income)


@port("nes_logit_data-nes_logit_model")
def nes_logit_model(vote, income):
    """Vote on income: D = 2."""
    logistic(vote, income)


@port("sesame_data-sesame_one_pred_a")
def sesame_one_pred_a(watched, encouraged):
    """Whether children watched Sesame Street on whether encouraged to, a linear model: D = 3."""
    linear(watched, encouraged)


@port("wells_data-wells_dist")
def wells_dist(switched, dist):
    """Whether a household changed its well on the distance to another: D = 2."""
    x = design(1, dist)
    beta = numpyro.sample("beta", flat(2))
    numpyro.sample("switched", numpyro.distributions.Bernoulli(logits=x @ beta), obs=switched)


@port("wells_data-wells_dist100_model")
def wells_dist100_model(switched, dist):
    """The same in units of 100 metres: D = 2."""
    logistic(switched, dist / 100)


@port("wells_data-wells_dist100ars_model")
def wells_dist100ars_model(switched, dist, arsenic):
    """Distance and arsenic: D = 3."""
    logistic(switched, dist / 100, arsenic)


@port("wells_data-wells_interaction_model")
def wells_interaction_model(switched, dist, arsenic):
    """Distance, arsenic and their product: D = 4."""
    logistic(switched, dist / 100, arsenic, dist / 100 * arsenic)


@port("wells_data-wells_interaction_c_model")
def wells_interaction_c_model(switched, dist, arsenic):
    """The same, centred: D = 4."""
    dist, arsenic = centred(dist) / 100, centred(arsenic)
    logistic(switched, dist, arsenic, dist * arsenic)


@port("wells_data-wells_dae_model")
def wells_dae_model(switched, dist, arsenic, educ):
    """Distance, arsenic and education: D = 4."""
    logistic(switched, dist / 100, arsenic, educ / 4)


@port("wells_data-wells_dae_c_model")
def wells_dae_c_model(switched, dist, arsenic, educ):
    """Distance and arsenic, centred, their product, and education: D = 5."""
    dist, arsenic = centred(dist) / 100, centred(arsenic)
    logistic(switched, dist, arsenic, dist * arsenic, educ / 4)


@port("wells_data-wells_daae_c_model")
def wells_daae_c_model(switched, dist, arsenic, assoc, educ):
    """The same, and membership of associations: D = 6."""
    dist, arsenic = centred(dist) / 100, centred(arsenic)
    logistic(switched, dist, arsenic, dist * arsenic, assoc, educ / 4)


@port("wells_data-wells_dae_inter_model")
def wells_dae_inter_model(switched, dist, arsenic, educ):
    """Distance, arsenic and education, centred, and their products: D = 7."""
    dist, arsenic, educ = centred(dist) / 100, centred(arsenic), centred(educ) / 4
    logistic(switched, dist, arsenic, educ, dist * arsenic, dist * educ, arsenic * educ)


# With priors


@port("sblrc-blr", "sblri-blr")
def blr(X, y):
    """Simulated linear regression with normal priors: D = 6."""
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([X.shape[1]]))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


@port("kilpisjarvi_mod-kilpisjarvi")
def kilpisjarvi(x, y, pmualpha, psalpha, pmubeta, psbeta):
    """Summer temperatures on years, which are about 4000 and not centred: D = 3."""
    alpha = numpyro.sample("alpha", dist.Normal(pmualpha, psalpha))
    beta = numpyro.sample("beta", dist.Normal(pmubeta, psbeta))
    sigma = numpyro.sample(
        "sigma", dist.ImproperUniform(dist.constraints.positive, (), event_shape=())
    )
    numpyro.sample("y", dist.Normal(alpha + beta * x, sigma), obs=y)


@port("diamonds-diamonds")
def diamonds(Y, X):
    """Log prices of 5000 diamonds on correlated covariates, as written by brms: D = 26."""
    x = X[:, 1:] - X[:, 1:].mean(0)
    b = numpyro.sample("b", dist.Normal(0, 1).expand([x.shape[1]]))
    intercept = numpyro.sample("Intercept", dist.StudentT(3, 8, 10))
    sigma = numpyro.sample("sigma", dist.FoldedDistribution(dist.StudentT(3, 0, 10)))
    numpyro.sample("Y", dist.Normal(intercept + x @ b, sigma), obs=Y)


@port("ovarian-logistic_regression_rhs", "prostate-logistic_regression_rhs")
def logistic_regression_rhs(
    x, y, scale_icept, scale_global, nu_global, nu_local, slab_scale, slab_df
):
    """Logistic regression on genes with a regularized horseshoe: D = 3075 and 11935."""
    z = numpyro.sample("z", dist.Normal(0, 1).expand([x.shape[1]]))
    local = dist.FoldedDistribution(dist.StudentT(nu_local, 0, 1))
    lam = numpyro.sample("lambda", local.expand([x.shape[1]]))
    tau = numpyro.sample(
        "tau", dist.FoldedDistribution(dist.StudentT(nu_global, 0, 2 * scale_global))
    )
    caux = numpyro.sample("caux", dist.InverseGamma(0.5 * slab_df, 0.5 * slab_df))
    slab = slab_scale**2 * caux
    shrunk = jnp.sqrt(slab * lam**2 / (slab + tau**2 * lam**2))
    beta = numpyro.deterministic("beta", z * shrunk * tau)
    beta0 = numpyro.sample("beta0", dist.Normal(0, scale_icept))
    numpyro.sample("y", dist.Bernoulli(logits=beta0 + x @ beta), obs=y)


# Of several levels


@port("pilots-pilots")
def pilots(n_groups, n_scenarios, group_id, scenario_id, y):
    """Recovery of pilots by training and airport, crossed and centred: D = 18."""
    mu_a = numpyro.sample("mu_a", dist.Normal(0, 1))
    mu_b = numpyro.sample("mu_b", dist.Normal(0, 1))
    sigma_a = numpyro.sample("sigma_a", dist.Uniform(0, 100))
    sigma_b = numpyro.sample("sigma_b", dist.Uniform(0, 100))
    sigma_y = numpyro.sample("sigma_y", dist.Uniform(0, 100))
    with numpyro.plate("groups", n_groups):
        a = numpyro.sample("a", dist.Normal(10 * mu_a, sigma_a))
    with numpyro.plate("scenarios", n_scenarios):
        b = numpyro.sample("b", dist.Normal(10 * mu_b, sigma_b))
    y_hat = a[group_id - 1] + b[scenario_id - 1]
    with numpyro.plate("flights", len(y)):
        numpyro.sample("y", dist.Normal(y_hat, sigma_y), obs=y)


@port("election88-election88_full")
def election88_full(
    n_age,
    n_edu,
    n_age_edu,
    n_state,
    n_region_full,
    age,
    edu,
    age_edu,
    state,
    region_full,
    black,
    female,
    v_prev_full,
    y,
):
    """Polls before an election by age, education, state and region, centred: D = 90."""

    def effects(name, size, index):
        """Of a voter, that of the group."""
        sigma = numpyro.sample(f"sigma_{name}", dist.Uniform(0, 100))
        with numpyro.plate(f"groups_{name}", size):
            return numpyro.sample(name, dist.Normal(0, sigma))[index - 1]

    x = design(1, black, female, v_prev_full, female * black)
    beta = numpyro.sample("beta", dist.Normal(0, 100).expand([5]))
    y_hat = x @ beta + effects("a", n_age, age) + effects("b", n_edu, edu)
    y_hat += effects("c", n_age_edu, age_edu) + effects("d", n_state, state)
    y_hat += effects("e", n_region_full, region_full)
    with numpyro.plate("voters", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=y_hat), obs=y)
