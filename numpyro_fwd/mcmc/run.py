"""NumPyro's MCMC, whose runs compile once, can be watched, and keep their draws when stopped.

NumPyro makes the loop over the steps of a run anew in each run, and XLA compiles it. Here chains
advance in pieces of a few tenths of a second, all by one program, for warm-up and draws. Programs
are kept with the `MCMC`, and taken again where shapes and the model are the same, which is seen by
tracing anew its energy and what becomes of a draw.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpyro.infer
from jax import Array

from numpyro_fwd.bridge.numpyro_private import is_under_jax_transform
from numpyro_fwd.mcmc.convergence import Until, check_until
from numpyro_fwd.mcmc.handle import Control, Handle, interrupts
from numpyro_fwd.mcmc.loop import WATCHED, Loop, Plan, is_here
from numpyro_fwd.mcmc.memory import Memory
from numpyro_fwd.mcmc.programs import Chains, Collected, Known, without_sites
from numpyro_fwd.mcmc.progress import Line, Progress


class MCMC(numpyro.infer.MCMC):
    """``numpyro.infer.MCMC`` whose runs compile once, can be watched, and can be stopped.

    Arguments, attributes and results are NumPyro's, besides those below. A second `run` takes the
    programs of the first where keys or the values of the data are all that is new, for the kernels
    of this package and for NumPyro's HMC and NUTS. Other kernels may keep data in what they
    compile, and are compiled in each run.

    The line of progress shows divergences, gradients of a draw, and the worst R-hat and ESS so far.
    Ctrl-C during the draws ends the run and keeps the draws; during the warm-up it is an error, as
    there are none.

    Draws are those of NumPyro's MCMC with the same key; sites that are transformed may differ in
    their last digit, since many draws are transformed at once. A `chain_method` that is a function,
    and runs within other programs (``jax.jit``, ``jax.vmap``), are NumPyro's own.

    Parameters
    ----------
    sampler, options
        As of NumPyro's MCMC.
    until
        When a run stops, in place of `num_samples`; see :class:`numpyro_fwd.Until`.
    callback
        Called with a :class:`numpyro_fwd.mcmc.Progress` after each piece of a third of a second.
        If it raises an error, the run ends, keeps its draws, and raises it. To end a run early,
        it may raise one of its own.

    Raises
    ------
    ValueError, TypeError
        As NumPyro's MCMC, for an argument outside its range.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> import numpyro_fwd
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
    ...     numpyro.sample("y", dist.Normal(mean, 1), obs=y)
    >>> kernel = numpyro_fwd.MALA(model)
    >>> mcmc = numpyro_fwd.MCMC(kernel, num_warmup=300, num_samples=300, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), jnp.array([1.0, 2.0, 3.0]))
    >>> mcmc.run(jax.random.key(1), jnp.array([4.0, 5.0, 6.0]))  # the loop is compiled already
    >>> bool(abs(mcmc.get_samples()["mean"].mean() - 5.0) < 0.3)
    True
    """

    def __init__(
        self,
        sampler: Any,
        *,
        until: Until | None = None,
        callback: Callable[[Progress], Any] | None = None,
        **options: Any,
    ):
        super().__init__(sampler, **options)
        self.until, self.callback = until, callback
        check_until(until, self.num_chains)
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be a function or None; got {callback!r}.")
        self._known = Known()
        self._handle: Handle | None = None

    def run(
        self,
        rng_key: Array,
        *args: Any,
        extra_fields: Sequence[str] = (),
        init_params: Any = None,
        blocking: bool = True,
        **kwargs: Any,
    ) -> Handle | None:
        """Run the chains; see NumPyro's ``MCMC.run``.

        With ``blocking=False`` they run in a thread, and what is returned is a
        :class:`numpyro_fwd.mcmc.Handle`.
        """
        options = {"extra_fields": extra_fields, "init_params": init_params}
        if self._handle is not None and self._handle.is_running:
            raise RuntimeError("a run of this MCMC goes on: wait for it, or stop it.")
        if callable(self.chain_method) or is_under_jax_transform():
            super().run(rng_key, *args, **options, **kwargs)
            return None
        self._args, self._kwargs = args, kwargs
        check_names(extra_fields)
        memory = Memory(self._sample_field)
        control = Control(is_watched=not blocking)
        run = partial(self._run, control, memory, rng_key, tuple(extra_fields), init_params)
        if blocking:
            run()
            return None
        self._handle = Handle(run, control, memory)
        return self._handle

    def _run(
        self,
        control: Control,
        memory: Memory,
        rng_key: Array,
        extra_fields: tuple[str, ...],
        init_params: Any,
    ) -> None:
        """Run the chains of these arguments."""
        try:
            cached = self._get_cached_init_state(rng_key, self._args, self._kwargs)
            if self._warmup_state is not None:
                self._set_collection_params(0, self.num_samples, self.num_samples, "sample")
            chains = Chains(self, self._known, self._args, self._kwargs)
            state = chains.begin(rng_key, init_params, cached)
            loop = self._loop(chains, state, extra_fields, memory, control)
            phase = self._collection_params["phase"]
            line = Line(self.progress_bar, loop.plan.num_steps, 0)
            with interrupts(control), line:
                loop.go(line, phase)
                self._last_state = loop.state
                if not memory.blocks:
                    memory.blocks.append(loop.finished(0))
                names = self._names(extra_fields)
                if loop.done.draws or not control.is_interrupted:
                    self._states, self._states_flat = memory.all(names), None
            if control.is_interrupted:
                say_stopped(loop, phase == "warmup")
            if loop.error is not None:
                raise loop.error
        finally:
            self._set_collection_params()

    def _loop(
        self,
        chains: Chains,
        state: Any,
        extra_fields: tuple[str, ...],
        memory: Memory,
        control: Control,
    ) -> Loop:
        """The loop of a run, or of its warm-up alone."""
        params, thinning = self._collection_params, self.thinning
        lower, upper, size = params["lower"], params["upper"], params["collection_size"]
        is_whole = upper > lower and params["phase"] != "warmup"
        until = check_until(self.until if is_whole else None, self.num_chains)
        num_draws = until.max_draws
        if until.is_open:
            num_draws = (upper - lower) // thinning
        plan = Plan(lower, (upper - lower) % thinning, thinning, num_draws)
        room = num_draws or (upper - lower if size is None else size) // thinning
        if is_here(state):
            # draws of each chain on the device at once: those of programs of longer runs, too
            room = min(room, 1000)
        names = self._names(extra_fields)
        watched = [name for name in WATCHED if hasattr(getattr(state, name, None), "shape")]
        fields = tuple(dict.fromkeys((*names, *watched)))
        collected = Collected(fields, without_sites(self.sampler, extra_fields), max(room, 1))
        loop = Loop(chains, collected, plan, until, memory, control, self.callback)
        loop.begin(state)
        return loop

    def _names(self, extra_fields: tuple[str, ...]) -> list[str]:
        """Fields that the user gets."""
        names = dict.fromkeys((self._sample_field, *self._default_fields, *extra_fields))
        return [name for name in names if not name.startswith(f"~{self._sample_field}.")]

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the compiled programs."""
        return {**super().__getstate__(), "_known": Known(), "_handle": None}


def check_names(extra_fields: Any) -> None:
    """Raise TypeError for what is no sequence of names."""
    is_listed = isinstance(extra_fields, (tuple, list))
    if not is_listed or not all(isinstance(name, str) for name in extra_fields):
        raise TypeError(f"extra_fields must be a tuple or a list of names; got {extra_fields!r}.")


def say_stopped(loop: Loop, is_warmup: bool, remedy: str = "") -> None:
    """Say what a run has that Ctrl-C stopped; KeyboardInterrupt if that is no end of it."""
    done, plan = loop.done, loop.plan
    remedy = remedy or "mcmc.post_warmup_state = mcmc.last_state, and run again"
    if is_warmup and not loop.is_at_end:
        raise KeyboardInterrupt(f"the warm-up was stopped after step {done.steps}.")
    if not done.draws:
        where = f"{done.steps} of {plan.num_warmup} of the warm-up"
        where = where if done.steps < plan.num_warmup else f"{done.steps}, before the first"
        raise KeyboardInterrupt(f"stopped after step {where}: no draws.")
    said = f"and {done.draws} draws of each chain are kept. To go on: {remedy}."
    if loop.is_at_end:
        said = f"in its last piece: all {done.draws} draws of each chain are there."
    warnings.warn(f"the run was stopped, {said}", stacklevel=3)
