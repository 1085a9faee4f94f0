"""Differential equations, and a curve in closed form."""

from collections.abc import Callable

import diffrax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from benchmarks.harness.posteriordb.ports import port

__all__: list[str] = []

TOLERANCE = 1e-6  # relative and absolute, those of Stan's rk45
MAX_STEPS = 4096


def solved(field: Callable, initial, start, times, args, solver: diffrax.AbstractSolver):
    """States (T, ...) at `times`, infinite from where the solver gave up."""
    dtype = jnp.result_type(float)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        solver,
        t0=jnp.asarray(start, dtype),
        t1=jnp.asarray(times[-1], dtype),
        dt0=None,
        y0=jnp.asarray(initial, dtype),
        args=args,
        saveat=diffrax.SaveAt(ts=jnp.asarray(times, dtype)),
        stepsize_controller=diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE),
        max_steps=MAX_STEPS,
        throw=False,
    ).ys


def or_rejected(states, is_valid):
    """The states; ones and a log density of -inf where some are invalid, as Stan rejects."""
    is_valid = (jnp.isfinite(states) & is_valid).all()
    numpyro.factor("is_valid", jnp.where(is_valid, 0.0, -jnp.inf))
    return jnp.where(is_valid, states, 1.0)


@port("hudson_lynx_hare-lotka_volterra")
def lotka_volterra(ts, y_init, y):
    """Pelts of hares and lynxes by the equations of Lotka and Volterra: D = 8."""

    def field(t, z, theta):
        alpha, beta, gamma, delta = theta
        return jnp.stack([(alpha - beta * z[1]) * z[0], (delta * z[0] - gamma) * z[1]])

    mean, sd = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    theta = numpyro.sample("theta", dist.TruncatedNormal(mean, sd, low=0.0))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1, 1).expand([2]))
    z_init = numpyro.sample("z_init", dist.LogNormal(jnp.log(10.0), 1).expand([2]))
    z = solved(field, z_init, 0, ts, theta, diffrax.Tsit5())
    z = numpyro.deterministic("z", or_rejected(z, z > 0))
    numpyro.sample("y_init", dist.LogNormal(jnp.log(z_init), sigma), obs=y_init)
    numpyro.sample("y", dist.LogNormal(jnp.log(z), sigma), obs=y)


@port("one_comp_mm_elim_abs-one_comp_mm_elim_abs")
def one_comp_mm_elim_abs(t0, D, V, times, C_hat):
    """Concentration of a drug by absorption and Michaelis-Menten elimination: D = 4."""
    k_a = numpyro.sample("k_a", dist.HalfCauchy(1))
    K_m = numpyro.sample("K_m", dist.HalfCauchy(1))
    V_m = numpyro.sample("V_m", dist.HalfCauchy(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1))

    def field(t, y, theta):
        k_a, K_m, V_m = theta
        return jnp.exp(-k_a * t) * D * k_a / V - V_m / V * y / (K_m + y)

    C = solved(field, 0.0, t0, times, (k_a, K_m, V_m), diffrax.Kvaerno5())
    C = or_rejected(C, C > 0)
    numpyro.sample("C_hat", dist.LogNormal(jnp.log(C), sigma), obs=C_hat)


@port("sir-sir")
def sir(t, y0, stoi_hat, B_hat):
    """Cholera by susceptible, infected and recovered people and bacteria in the water: D = 4."""
    beta = numpyro.sample("beta", dist.HalfCauchy(2.5))
    gamma = numpyro.sample("gamma", dist.HalfCauchy(1))
    xi = numpyro.sample("xi", dist.HalfCauchy(25))
    delta = numpyro.sample("delta", dist.HalfCauchy(1))
    kappa = 1_000_000

    def field(t, y, theta):
        beta, gamma, xi, delta = theta
        susceptible, infected, _, bacteria = y
        caught = beta * bacteria / (bacteria + kappa) * susceptible
        healed = gamma * infected
        return jnp.stack([-caught, caught - healed, healed, xi * infected - delta * bacteria])

    y = solved(field, y0, 0, t, (beta, gamma, xi, delta), diffrax.Tsit5())
    means = jnp.stack([-jnp.diff(y[:, 0], prepend=y0[0]), y[:, 3]])
    cases, bacteria = or_rejected(means, means > 0)
    numpyro.sample("stoi_hat", dist.Poisson(cases), obs=stoi_hat)
    numpyro.sample("B_hat", dist.LogNormal(jnp.log(bacteria), 0.15), obs=B_hat)


@port("soil_carbon-soil_incubation")
def soil_incubation(totalC_t0, t0, ts, eCO2mean):
    """Carbon dioxide out of soil by two pools that feed each other: D = 6."""
    k1 = numpyro.sample("k1", dist.HalfNormal(1))
    k2 = numpyro.sample("k2", dist.HalfNormal(1))
    alpha21 = numpyro.sample("alpha21", dist.HalfNormal(1))
    alpha12 = numpyro.sample("alpha12", dist.HalfNormal(1))
    gamma = numpyro.sample("gamma", dist.Beta(10, 1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1))

    def field(t, carbon, theta):
        k1, k2, alpha21, alpha12 = theta
        first, second = k1 * carbon[0], k2 * carbon[1]
        return jnp.stack([alpha12 * second - first, alpha21 * first - second])

    initial = totalC_t0 * jnp.stack([gamma, 1 - gamma])
    carbon = solved(field, initial, t0, ts, (k1, k2, alpha21, alpha12), diffrax.Tsit5())
    carbon = or_rejected(carbon, True)
    eCO2_hat = numpyro.deterministic("eCO2_hat", totalC_t0 - carbon.sum(1))
    numpyro.sample("eCO2mean", dist.Normal(eCO2_hat, sigma), obs=eCO2mean)


@port("loss_curves-losscurve_sislob")
def losscurve_sislob(growthmodel_id, n_cohort, cohort_id, t_idx, t_value, premium, loss):
    """Losses of insurers by growth curves of cohorts: D = 15."""
    omega = numpyro.sample("omega", dist.LogNormal(0, 0.5))
    theta = numpyro.sample("theta", dist.LogNormal(0, 0.5))
    mu_LR = numpyro.sample("mu_LR", dist.Normal(0, 0.5))
    sd_LR = numpyro.sample("sd_LR", dist.LogNormal(0, 0.5))
    with numpyro.plate("cohorts", n_cohort):
        LR = numpyro.sample("LR", dist.LogNormal(mu_LR, sd_LR))
    loss_sd = numpyro.sample("loss_sd", dist.LogNormal(0, 0.7))
    power = (t_value / theta) ** omega
    gf = -jnp.expm1(-power) if growthmodel_id == 1 else power / (1 + power)
    cohort, paid = cohort_id - 1, premium[cohort_id - 1]
    with numpyro.plate("losses", len(loss)):
        law = dist.Normal(LR[cohort] * paid * gf[t_idx - 1], loss_sd * paid)
        numpyro.sample("loss", law, obs=loss)
