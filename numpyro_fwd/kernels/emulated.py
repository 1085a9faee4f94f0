"""One evaluation of a dear function a draw: trajectories on an emulator of what it returns."""

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpyro.infer import init_to_sample

from blackjax_ext.adaptation import report
from blackjax_ext.adaptation.algorithm import Algorithm, Stepper
from blackjax_ext.adaptation.run import bind, ravel_each
from blackjax_ext.checks import check_count
from blackjax_ext.emulators.evaluations import Dear, Evaluations, slopes_of
from blackjax_ext.emulators.marking import active_coordinates, split
from blackjax_ext.emulators.polynomials import Emulator, emulated_density
from blackjax_ext.emulators.rounds import SLOW, Emulation, learn
from blackjax_ext.mcmc.emulated import emulated
from blackjax_ext.meshes import is_first_process, on_host
from blackjax_ext.metrics.factors import factorize
from blackjax_ext.raising import forgiving
from blackjax_ext.types import Function
from numpyro_fwd.bridge.arguments import evaluating, program_with
from numpyro_fwd.bridge.fingerprints import describe_program, fingerprint
from numpyro_fwd.bridge.priors import draw_prior
from numpyro_fwd.kernels.anchored_rows import is_known, zeros_like
from numpyro_fwd.kernels.base import BlackJAXKernel
from numpyro_fwd.kernels.options import KernelOptions
from numpyro_fwd.kernels.strategy import Run, Source, Start, ravel_one, split_keys
from numpyro_fwd.types import Model

NUM_STARTS = 16  # of paths to a mode, at most
MOST = 0.99  # of the mass around all modes: others, far away, move means and sds
# of the posterior lacking: 16 estimates are .08 to .33 with a Cauchy prior (another emulator of it
# said .03), and at most .049 with a logistic one
FAR = 0.05
NARROW = 10.0  # units of rounding of a correlation, below which a direction has no width
EXACT = 0.1  # nats of error, below which moves are rejected for failures alone
LOW = 0.5  # acceptance from which on the emulator is worth no more than a random walk


class Learned(NamedTuple):
    """What chains share: the emulator, and what was learned with it.

    emulator
        Of outputs.
    covariance, step_size
        Of the emulated posterior, and of trajectories on it.
    draws
        Of the emulated posterior, (N, D).
    num_steps
        Leapfrog steps of the trajectories that they were made by.
    report
        What it took, as numbers.
    """

    emulator: Emulator
    covariance: Array
    step_size: Array
    draws: Array
    num_steps: Array
    report: "EmulatorReport"


class EmulatorReport(NamedTuple):
    """What an emulator took and how right it is; printed, a sentence.

    num_solves, num_jvps, num_failed
        Evaluations of marked functions before the first draw, directional derivatives, and
        evaluations that were not finite.
    num_rounds
        Rounds in which it was learned.
    acceptance
        Of the exact test, as it was estimated in the last round.
    error
        sd of the emulated log density, in nats.
    """

    num_solves: int
    num_jvps: int
    num_failed: int
    num_rounds: int
    acceptance: float
    error: float

    def __str__(self) -> str:
        return (
            f"emulator from {self.num_solves:,} solves ({self.num_failed:,} failed) and "
            f"{self.num_jvps:,} JVPs in {self.num_rounds} rounds: error {self.error:.2g} nats, "
            f"expected acceptance {self.acceptance:.2f}."
        )


class Emulating:
    """Strategy of chains that share an emulator, learned once for the data.

    Parameters
    ----------
    seed
        Of the points at which functions are evaluated.
    """

    forgives = True

    def __init__(self, seed: int):
        self.seed = seed
        self.last: tuple[Any, Learned] | None = None  # which chains in sequence share

    def prepare(self, run: Run, z: Any) -> Learned:
        """The emulator: all evaluations but one a draw."""
        with evaluating(run.source.arguments):
            if not is_known(z):
                z = zeros_like(z)
            digest = [int(each) for each in fingerprint(*run.source.arguments)]
            # the program, too: a model may read what is not among its arguments
            made_with = digest, describe_program(program_with(run.arguments, density_of(run), z))
            if self.last is None or self.last[0] != made_with:
                self.last = made_with, self._learned(run, z)
            return self.last[1]

    def start(self, run: Run, rng_key: Array, z: Any, shared: Learned) -> Start:
        """Draws of the emulated posterior."""
        keys, key_draw = split_keys(rng_key)

        def draw(_, key, draws):
            at = jax.vmap(lambda key: jax.random.randint(key, (), 0, len(draws)))(key)
            return draws[at]

        # without a warm-up, too: what it would lead to is known
        is_free = run.is_searching or not (run.num_warmup or run.is_given)
        x = run(draw, key_draw, shared.draws) if is_free else ravel_each(z)
        with evaluating(run.source.arguments):  # under NumPyro's parallel chains, too
            metric = factorize(shared.covariance)
        return Start(x, metric, True, keys, is_structured=True, step_size=shared.step_size)

    def target(self, source: Source, algorithm: Algorithm, shared: Learned) -> Stepper:
        """The algorithm with this emulator."""
        exact = source.logdensity()

        def logdensity_fn(z: Any) -> Array:
            value = exact(z)
            return jnp.where(jnp.isnan(value), -jnp.inf, value)  # a chain may start there

        def emulator_fn(z: Any) -> Array:
            x, unravel = ravel_pytree(z)
            dear = split(lambda x: exact(unravel(x)), x)
            return emulated_density(dear.logdensity_fn, shared.emulator)(x)

        given = algorithm.parameters["walk_probability"]
        # as often as the emulator's moves are rejected: a chain shall not stick where it is wrong
        walk = jnp.maximum(given, 1.0 - shared.report.acceptance)
        steps = jnp.maximum(algorithm.parameters["num_integration_steps"], shared.num_steps)
        options = {"walk_probability": walk, "num_integration_steps": steps}
        having = algorithm.having(emulator_fn=emulator_fn, **options)
        return bind(having, logdensity_fn, "none")

    def _learned(self, run: Run, z: Any) -> Learned:
        unravel = ravel_one(z)

        def dear_of(arrays: Any) -> Dear:
            logdensity_fn = run.at(arrays).logdensity()
            return split(lambda x: logdensity_fn(unravel(x)), like)

        def program(function: Function) -> Function:
            def of_arrays(arrays: Any, *rest: Any) -> Any:
                return function(dear_of(arrays), *rest)

            return run.compiled(forgiving(of_arrays, run.raised))

        key_starts, key_learn = jax.random.split(jax.random.key(self.seed))
        starts = self._starts(run, key_starts, z)
        like = jnp.zeros_like(starts[0])
        dear = dear_of(run.arguments.arrays)
        logdensity_fn = run.at(run.arguments.arrays).logdensity()
        active = active_coordinates(logdensity_fn, unravel(like))
        evaluations = Evaluations(program, active, slopes_of(dear, like), like.dtype)
        found = learn(evaluations, key_learn, np.asarray(starts, float), run.say)
        check_width(found, like.dtype, report.sites_of(z))
        warn_of(found)
        counts = found.num_solves, found.num_jvps, found.num_failed, found.num_rounds
        return Learned(
            evaluations.cast(found.emulator),
            jnp.asarray(found.covariance, like.dtype),
            jnp.asarray(found.step_size, like.dtype),
            jnp.asarray(found.draws, like.dtype),
            jnp.asarray(found.num_steps),
            jax.tree.map(jnp.asarray, EmulatorReport(*counts, found.acceptance, found.error)),
        )

    def _starts(self, run: Run, rng_key: Array, z: Any) -> Array:
        """Where paths begin: where the chains were put, and draws of the prior."""
        x = ravel_each(z)

        def draw(arrays: Any, rng_key: Array) -> Array:
            source = run.at(arrays)
            if source.model is None:
                raise NotImplementedError("a potential has no prior")
            keywords = source.model_kwargs or {}
            drawn = draw_prior(rng_key, source.model, source.model_args, keywords, NUM_STARTS)
            return ravel_each({name: drawn[name] for name in z})

        try:
            others = run(draw, rng_key)
        except (NotImplementedError, KeyError, AttributeError):  # an improper prior, or a potential
            others = jax.random.uniform(rng_key, (NUM_STARTS, x.shape[1]), x.dtype, -2.0, 2.0)
        return jnp.concatenate([x[:1], others, x[1:]])


def density_of(run: Run) -> Function:
    """Log density at the first of chains, from the arrays of the model and positions of all."""

    def density(arrays: Any, z: Any) -> Array:
        return run.at(arrays).logdensity()(jax.tree.map(lambda leaf: leaf[0], z))

    return density


class Emulated(BlackJAXKernel):
    """One evaluation of a dear function a draw, exact: trajectories on an emulator of its outputs.

    For models that call a solver or a simulator, marked by :func:`numpyro_fwd.expensive`. Before
    the warm-up, polynomials are fitted to outputs of the marked functions where the posterior is,
    from a few hundred evaluations and derivatives in forward mode (reverse mode where there is no
    other; values alone where there is none). Prior and likelihood are those of the model. A draw is
    the end of Hamiltonian trajectories on the emulated posterior, accepted or rejected by one
    evaluation of the exact one, or a step of a random walk (:mod:`blackjax_ext.mcmc.emulated`), as
    often as the emulator is expected to be rejected.
    Draws are exact whatever the emulator is; how many of them are accepted depends on it. A solver
    that fails (NaN) is a rejection, and shows as "diverging".

    All chains share the emulator. It is learned once for the same data, also for another run.
    Extra fields: "num_solves", the evaluations by a chain so far, besides those of
    ``emulator(mcmc)``, and "diverging".

    Parameters
    ----------
    model
        NumPyro model that calls at least one function marked by :func:`numpyro_fwd.expensive`.
    num_trajectories
        Trajectories on the emulator for a draw.
    num_integration_steps
        Leapfrog steps of a trajectory, at least; 32 or 128 where chains on the emulated posterior
        disagree with fewer, as along a narrow ridge.
    walk_probability
        Probability of a step of a random walk instead, at least.
    seed
        Of the points at which functions are evaluated before the first draw.
    options
        See :class:`BlackJAXKernel`; `step_size` is a factor of the one that is found.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> from numpyro_fwd import MCMC, Emulated, expensive
    >>> solve = expensive(lambda rate: 10.0 * jnp.exp(-rate * jnp.arange(8.0)))
    >>> def model(y):
    ...     rate = numpyro.sample("rate", dist.HalfNormal(1.0))
    ...     numpyro.sample("y", dist.Normal(solve(rate), 1.0), obs=y)
    >>> kernel = Emulated(model)
    >>> mcmc = MCMC(kernel, num_warmup=50, num_samples=500, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), 10.0 * jnp.exp(-0.5 * jnp.arange(8.0)))
    >>> bool(abs(mcmc.get_samples()["rate"].mean() - 0.5) < 0.1)
    True
    """

    best_accept_prob = 0.95
    option_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            **{"adapt_step_size": False, "adapt_mass_matrix": False},
            "init_strategy": init_to_sample,
        }
    )
    advice = (
        "Look at print(mcmc.sampler.emulator(mcmc)): where the emulator is expected to be accepted "
        "less than half of the time, take numpyro_fwd.AutoNUTS or RandomWalk; else give a larger "
        "walk_probability."
    )

    def __init__(
        self,
        model: Model | None = None,
        *,
        num_trajectories: int = 8,
        num_integration_steps: int = 8,
        walk_probability: float = 0.02,
        seed: int = 0,
        **options: Unpack[KernelOptions],
    ):
        check_count("seed", seed, least=0, most=2**32 - 1, of="of 32 bits")
        self._seed = seed
        checked: dict[str, Any] = {
            "num_trajectories": num_trajectories,
            "num_integration_steps": num_integration_steps,
            "walk_probability": walk_probability,
        }
        super().__init__(
            model,
            emulated,
            differentiation="none",
            emulator_fn=None,  # the strategy's
            **emulated.checked(checked),
            **{**self.option_defaults, **options},
        )

    def _reset(self) -> None:
        super()._reset()
        self._strategy = Emulating(self._seed)

    def emulator(self, mcmc: Any) -> EmulatorReport:
        """What the emulator of a run took, and how right it is: print it.

        `mcmc` is one that has run, or what ``numpyro_fwd.sample_to`` returned.
        """
        if mcmc.last_state is None:
            raise ValueError("mcmc must have run: the emulator is learned before the warm-up.")
        if not isinstance(getattr(mcmc.last_state, "shared", None), Learned):
            raise TypeError(
                "mcmc must be a run of Emulated, whose chains share an emulator; got one of "
                f"{type(mcmc.sampler).__name__}."
            )
        report = jax.tree.map(
            lambda leaf: on_host(leaf).ravel()[0].item(), mcmc.last_state.shared.report
        )
        return EmulatorReport(*report)


def check_width(found: Emulation, dtype: Any, sites: report.SiteSizes) -> None:
    """Raise ValueError for an emulated posterior that has no width in one of its directions."""
    sd = np.sqrt(np.diag(found.covariance))
    values, vectors = np.linalg.eigh(found.covariance / np.outer(sd, sd))
    if values[0] > NARROW * float(jnp.finfo(dtype).eps):
        return
    along = np.flatnonzero(np.abs(vectors[:, 0]) > 0.2)
    raise ValueError(
        "the emulated posterior has no width in one direction, of the sites "
        f"{report.listed(report.names_of(sites, along))} (eigenvalue {values[0]:.1g} of their "
        "correlations), as where paths to the mode end at a scale of zero of a centred hierarchy. "
        "Write it with numpyro.infer.reparam.LocScaleReparam(0), leave out a parameter that "
        "others determine, take numpyro.enable_x64(), or numpyro_fwd.AutoNUTS."
    )


def warn_of(found: Emulation) -> None:
    """Warn of an emulator that is rarely right, or right in one of several places."""
    if not is_first_process():
        return
    if found.share < MOST:
        warnings.warn(
            "Paths to the mode ended in several places, or along a narrow ridge, and the emulator "
            f"is that of the highest, around which {found.share:.0%} of their mass is, by normal "
            "approximations: where it does not reach the others, draws lack them, and R-hat does "
            "not tell. Take numpyro_fwd.LangevinSMC, or a prior that rules them out.",
            stacklevel=2,
        )
    elif found.lacking > FAR:  # what other modes have is lacking, too
        warnings.warn(
            f"The emulator lacks about {found.lacking:.0%} of the posterior, far from the points "
            "that it was fitted to, as where tails are heavy or outputs rough: draws may lack it, "
            "too, and R-hat does not tell. Take numpyro_fwd.AutoNUTS, or a long run and more "
            "walk_probability.",
            stacklevel=2,
        )
    elif found.r_hat > SLOW:  # 1.98 for Beta(0.2, 0.2): 120 effective draws of 4,000
        warnings.warn(
            "Trajectories on the emulated posterior mix slowly: R-hat of eight short chains is "
            f"{found.r_hat:.2f}, as where it is narrow and curved, or has heavy tails, and the "
            "emulator may have been learned on a part of it, which R-hat does not tell. Take "
            "numpyro_fwd.AutoNUTS(model, target_accept_prob=0.99), or compare with it.",
            stacklevel=2,
        )
    if found.acceptance >= LOW:
        return
    cause = "the marked functions are not like polynomials of low degree where the posterior is"
    is_rough = EXACT <= found.error < np.inf  # infinite where each of the last points has failed
    if found.num_failed and not is_rough:
        cause = (
            f"the marked functions, or the density with their outputs, fail at {found.num_failed:,}"
            " of these, where they would be accepted"
        )
    warnings.warn(
        f"The emulator is expected to be accepted in {found.acceptance:.0%} of draws, after "
        f"{found.num_rounds} rounds and {found.num_solves:,} solves: {cause}. "
        "Draws are exact, but there will "
        "be few effective ones. Take numpyro_fwd.AutoNUTS (by JVPs where reverse mode fails) or "
        "numpyro_fwd.RandomWalk, or mark functions whose outputs are smoother.",
        stacklevel=2,
    )
