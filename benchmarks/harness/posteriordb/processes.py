"""Eight schools, Gaussian processes, splines, a map, an epidemic and a neural network."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from benchmarks.harness.posteriordb.ports import port

__all__: list[str] = []


@port("eight_schools-eight_schools_noncentered")
def eight_schools_noncentered(y, sigma):
    """Eight schools (Rubin 1981), non-centered: D = 10."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    trans = numpyro.sample("theta_trans", dist.Normal(0, 1).expand([y.shape[0]]))
    theta = numpyro.deterministic("theta", mu + tau * trans)
    numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


@port("gp_pois_regr-gp_regr")
def gp_regr(x, y):
    """Gaussian process regression: D = 3."""
    rho = numpyro.sample("rho", dist.Gamma(25, 4))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    squares = (x[:, None] - x) ** 2
    cov = alpha**2 * jnp.exp(-0.5 * squares / rho**2) + sigma * jnp.eye(x.shape[0])
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros_like(x), cov), obs=y)


@port("eight_schools-eight_schools_centered")
def eight_schools_centered(J, y, sigma):
    """Eight schools (Rubin 1981), centered: D = 10."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([J]))
    numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def squared_exponential(x, scale, length):
    """The covariance of a smooth process at points of a line."""
    return scale**2 * jnp.exp(-0.5 * (x[:, None] - x) ** 2 / length**2)


@port("gp_pois_regr-gp_pois_regr")
def gp_pois_regr(N, x, k):
    """Counts whose log rate is a Gaussian process: D = 13."""
    rho = numpyro.sample("rho", dist.Gamma(25, 4))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2))
    f_tilde = numpyro.sample("f_tilde", dist.Normal(0, 1).expand([N]))
    cov = squared_exponential(x, alpha, rho) + 1e-10 * jnp.eye(N)
    f = numpyro.deterministic("f", jnp.linalg.cholesky(cov) @ f_tilde)
    numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=k)


def half_student(scale):
    """Student's t with three degrees of freedom, its positive half."""
    return dist.TruncatedDistribution(dist.StudentT(3, 0, scale), low=0)


def basis_process(name, basis, frequencies):
    """A Gaussian process by eigenfunctions of the Laplacian, as `brms` writes it."""
    sdgp = numpyro.sample(f"sdgp{name}", half_student(36))
    lscale = numpyro.sample(f"lscale{name}", dist.InverseGamma(1.124909, 0.0177))
    zgp = numpyro.sample(f"zgp{name}", dist.Normal(0, 1).expand([basis.shape[1]]))
    power = jnp.sqrt(2 * jnp.pi) * lscale * jnp.exp(-0.5 * (lscale * frequencies[:, 0]) ** 2)
    return basis @ (sdgp * jnp.sqrt(power) * zgp)


@port("mcycle_gp-accel_gp")
def accel_gp(Y, Xgp_1, slambda_1, Xgp_sigma_1, slambda_sigma_1):
    """Acceleration in crashes, Gaussian processes for mean and scale: D = 66."""
    mean = numpyro.sample("Intercept", dist.StudentT(3, -13, 36))
    log_scale = numpyro.sample("Intercept_sigma", dist.StudentT(3, 0, 10))
    mean += basis_process("_1", Xgp_1, slambda_1)
    log_scale += basis_process("_sigma_1", Xgp_sigma_1, slambda_sigma_1)
    numpyro.sample("Y", dist.Normal(mean, jnp.exp(log_scale)), obs=Y)


def spline(name, linear, basis):
    """A penalised spline, as `brms` writes it: its linear part is free."""
    flat = dist.ImproperUniform(constraints.real, (), (linear.shape[1],))
    b = numpyro.sample(f"bs{name}", flat)
    z = numpyro.sample(f"zs{name}_1_1", dist.Normal(0, 1).expand([basis.shape[1]]))
    sd = numpyro.sample(f"sds{name}_1_1", half_student(36))
    return linear @ b + basis @ (sd * z)


@port("mcycle_splines-accel_splines")
def accel_splines(Y, Xs, Zs_1_1, Xs_sigma, Zs_sigma_1_1):
    """Acceleration in crashes, splines for mean and scale: D = 82."""
    mean = numpyro.sample("Intercept", dist.StudentT(3, -13, 36))
    log_scale = numpyro.sample("Intercept_sigma", dist.StudentT(3, 0, 10))
    mean += spline("", Xs, Zs_1_1)
    log_scale += spline("_sigma", Xs_sigma, Zs_sigma_1_1)
    numpyro.sample("Y", dist.Normal(mean, jnp.exp(log_scale)), obs=Y)


@port("state_wide_presidential_votes-hierarchical_gp")
def hierarchical_gp(
    N_states, N_regions, N_years_obs, N_years, state_region_ind, state_ind, region_ind, year_ind, y
):
    """Votes by state, region and year, effects and Gaussian processes by noise: D = 933."""
    normal = dist.Normal(0, 1)
    tot_var = numpyro.sample("tot_var", dist.Gamma(3, 3))
    prop_var = numpyro.sample("prop_var", dist.Dirichlet(jnp.full(17, 2.0)))
    sigma = jnp.sqrt(17 * prop_var * tot_var)
    year = sigma[0] * numpyro.sample("year_std", normal.expand([N_years_obs]))
    region = sigma[1] * numpyro.sample("region_std", normal.expand([N_regions]))
    scales = sigma[2:12][state_region_ind - 1]
    state = scales * numpyro.sample("state_std", normal.expand([N_states]))

    def processes(name, size, sigma_long, sigma_short):
        noise = numpyro.sample(f"GP_{name}_std", normal.expand([N_years, size]))
        long = numpyro.sample(f"length_GP_{name}_long", dist.Weibull(8, 30))
        short = numpyro.sample(f"length_GP_{name}_short", dist.Weibull(3, 30))
        years = jnp.arange(N_years)
        cov = squared_exponential(years, sigma_long, long) + 1e-6 * jnp.eye(N_years)
        cov += squared_exponential(years, sigma_short, short)
        return jnp.linalg.cholesky(cov) @ noise

    GP_region = processes("region", N_regions, sigma[12], sigma[14])
    GP_state = processes("state", N_states, sigma[13], sigma[15])
    mean = numpyro.sample("mu", dist.Normal(0.5, 0.5)) + year[year_ind - 1]
    mean += state[state_ind - 1] + region[region_ind - 1]
    mean += GP_region[year_ind - 1, region_ind - 1] + GP_state[year_ind - 1, state_ind - 1]
    numpyro.sample("y", dist.Normal(mean, sigma[16]), obs=y)


@port("synthetic_grid_RBF_kernels-kronecker_gp")
def kronecker_gp(n1, n2, x1, y):
    """Gaussian process on a grid, a Kronecker product taken apart by eigenvalues: D = 438.

    Stan's sigma1 begins at 0.00001, of which its prior has nearly nothing below.
    """
    var1 = numpyro.sample("var1", dist.LogNormal(0, 1))
    bw1 = numpyro.sample("bw1", dist.HalfCauchy(2.5))
    L = numpyro.sample("L", dist.LKJCholesky(n2, 2))
    sigma1 = numpyro.sample("sigma1", dist.LogNormal(0, 1))
    cov = var1 * jnp.exp(-bw1 * (x1[:, None] - x1) ** 2) + 1e-5 * jnp.eye(n1)
    R1, Q1 = jnp.linalg.eigh(cov)
    R2, Q2 = jnp.linalg.eigh(L @ L.T)
    eigenvalues = R2[:, None] * R1 + sigma1
    rotated = Q2.T @ y @ Q1
    numpyro.factor("y", -0.5 * jnp.sum(rotated**2 / eigenvalues + jnp.log(eigenvalues)))


@port("traffic_accident_nyc-bym2_offset_only")
def bym2_offset_only(N, node1, node2, y, E, scaling_factor):
    """Accidents of schoolchildren on a map of New York (Besag, York and Mollié): D = 3845."""
    beta0 = numpyro.sample("beta0", dist.Normal(0, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    rho = numpyro.sample("rho", dist.Beta(0.5, 0.5))
    theta = numpyro.sample("theta", dist.Normal(0, 1).expand([N]))
    phi = numpyro.sample("phi", dist.ImproperUniform(constraints.real, (), (N,)))
    numpyro.factor("phi_edges", -0.5 * jnp.sum((phi[node1 - 1] - phi[node2 - 1]) ** 2))
    numpyro.factor("phi_sum", dist.Normal(0, 0.001 * N).log_prob(phi.sum()))
    convolved = jnp.sqrt(1 - rho) * theta + jnp.sqrt(rho / scaling_factor) * phi
    rate = jnp.exp(np.log(E) + beta0 + convolved * sigma)
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def delays(weights):
    """The matrix that sums earlier days, each by the weight of its delay of one day or more."""
    delay = np.arange(len(weights))[:, None] - np.arange(len(weights))
    shape = (slice(None), slice(None), *(None,) * (weights.ndim - 1))
    return np.where(delay[shape] > 0, weights[np.maximum(delay - 1, 0)], 0)


@port(
    *(
        f"ecdc{day}-covid19imperial_{version}"
        for day in ("0401", "0501")
        for version in ("v2", "v3")  # one program under two names
    )
)
def covid19imperial(M, P, N0, N, N2, deaths, f, X, EpidemicStart, pop, SI):
    """Covid-19 in 14 countries of Europe (Flaxman et al. 2020): D = 51."""
    kappa = numpyro.sample("kappa", dist.HalfNormal(0.5))
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.positive, (), (M,)))
    numpyro.factor("mu_prior", dist.Normal(3.28, kappa).log_prob(mu).sum())
    alpha = numpyro.sample("alpha_hier", dist.Gamma(0.1667, 1).expand([P])) - np.log(1.05) / 6
    tau = numpyro.sample("tau", dist.Exponential(0.03))
    y = numpyro.sample("y", dist.Exponential(1 / tau).expand([M]))
    phi = numpyro.sample("phi", dist.HalfNormal(5))
    ifr = numpyro.sample("ifr_noise", dist.TruncatedNormal(1, 0.1, low=0).expand([M]))
    Rt = mu * jnp.exp(-X @ alpha).T

    def infect(prediction, inputs):
        day, rate, weights = inputs
        susceptible = 1 - prediction.sum(axis=0) / pop
        return prediction.at[day].set(susceptible * rate * (weights @ prediction)), None

    first = jnp.zeros((N2, M)).at[:N0].set(y)
    days = np.arange(N0, N2)
    prediction, _ = jax.lax.scan(infect, first, (days, Rt[N0:], delays(SI)[N0:]))
    E_deaths = ifr * jnp.einsum("tsm,sm->tm", delays(f), prediction)
    day = np.arange(1, N2 + 1)[:, None]
    seen = (day >= EpidemicStart) & (day <= N)
    law = dist.NegativeBinomial2(jnp.where(seen, E_deaths, 1), phi)
    numpyro.sample("deaths", law.mask(seen), obs=np.where(seen, deaths, 0))


@port("mnist_100-nn_rbm1bJ10")
def nn_rbm1bJ10(M, x, K, y):
    """A hundred handwritten digits, a network of ten hidden units: D = 7951."""
    J, nu = 10, 0.5
    alpha1 = numpyro.sample("alpha1", dist.Normal(0, 1).expand([J]))
    beta1 = numpyro.sample("beta1", dist.Normal(0, 1).expand([K - 1]))

    def weights(name, rows, columns):
        variance = (0.05 / rows ** (1 / nu)) ** 2
        prior = dist.InverseGamma(nu / 2, nu * variance / 2)
        scale = jnp.sqrt(numpyro.sample(f"sigma2_{name}", prior))
        return numpyro.sample(name, dist.Normal(0, scale).expand([rows, columns]))

    hidden = jnp.tanh(alpha1 + x @ weights("alpha", M, J))
    logits = beta1 + hidden @ weights("beta", J, K - 1)
    logits = jnp.pad(logits, ((0, 0), (1, 0)), constant_values=1)
    numpyro.sample("y", dist.Categorical(logits=logits), obs=y - 1)
