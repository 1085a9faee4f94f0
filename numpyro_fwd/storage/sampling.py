"""Draws on disk: what a user calls."""

import os
from typing import Any

import jax
from jax import Array
from numpyro.infer import MCMC

from numpyro_fwd.bridge.arguments import check_arguments
from numpyro_fwd.mcmc.until import Until, check_until, check_whole_number
from numpyro_fwd.storage.folder import Folder, store_package
from numpyro_fwd.storage.run import Stored, StoredRun


def sample_to(
    path: str | os.PathLike[str],
    mcmc: MCMC,
    rng_key: Array,
    *args: Any,
    draws_per_write: int = 1000,
    until: Until | None = None,
    extra_fields: tuple[str, ...] = (),
    init_params: Any = None,
    **kwargs: Any,
) -> Stored:
    r"""Run an ``MCMC`` with its draws on disk, or continue such a run.

    Draws are appended to a Zarr store in ArviZ's layout, which ``xarray.open_datatree`` and
    ``az.from_zarr`` read while it grows, and the kernel's state is saved after each write, at most
    four times a second. A run that was interrupted, by Ctrl-C or by ``kill -9`` at any moment,
    continues when the same call is made again: its draws are those of a run that was never
    interrupted, bit for bit. Memory does not depend on the number of draws.

    Parameters
    ----------
    path
        Folder of the store: new, empty, or that of the run to continue.
    mcmc
        Any kernel, all chain methods. Its options count as in ``mcmc.run``, those of
        ``numpyro_fwd.MCMC`` too, and draws are the same, but for `num_samples` where `until` says
        when to stop. A `post_warmup_state` takes the place of the warm-up.
    rng_key
        Key of the run, or a key for each chain.
    args, kwargs
        Arguments of the model.
    draws_per_write
        Draws of each chain in a file of the store, 1 or more. There is a file for each site and
        each such number of draws. Draws are written at least every five seconds or so.
    until
        When to stop; None for that of `mcmc`. It may change from call to call.
    extra_fields
        Fields of the kernel's state to be stored besides ``diverging``, ``potential_energy``,
        ``energy``, ``accept_prob`` and ``num_steps``, which are where the state has them;
        ``"~z.a"`` leaves out site ``a``, as in ``MCMC.run``. They have ArviZ's names in
        ``sample_stats``.
    init_params
        Where to begin, as in ``MCMC.run``.

    Returns
    -------
    What is stored and why the call ended, as :class:`~numpyro_fwd.storage.Stored`.

    Raises
    ------
    ValueError
        If the run on `path` is one of other data, another model, other options or other versions
        of JAX and NumPyro; if its store is truncated; for arguments out of range. By name.
    FileExistsError
        If there is something else on `path`.
    OSError
        If nothing can be written to `path`, or the disk is full: what was written is readable, and
        the same call continues the run once there is room.
    RuntimeError
        If another call writes to `path`.
    ImportError
        If a package of the extra "store" is missing.

    Notes
    -----
    Sites have the shape (chains, draws, \*shape), with plates as dimensions; a ``/`` in a name is
    a ``.`` in the store. Draws are written while the next piece is computed. What is on the disk
    survives the end of the process at any moment. After a power failure the last files may be lost,
    which the next call reports.

    Examples
    --------
    >>> import tempfile, jax, numpyro, xarray, numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> from numpyro_fwd import MALA, Until, sample_to
    >>> def model(y):
    ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
    ...     numpyro.sample("y", dist.Normal(mean, 1), obs=y)
    >>> mcmc = MCMC(MALA(model), num_warmup=200, num_samples=1000, progress_bar=False)
    >>> y, path = jax.numpy.array([1.0, 2.0, 3.0]), tempfile.mkdtemp()
    >>> sample_to(path, mcmc, jax.random.key(0), y, until=Until(max_draws=300)).num_draws
    300
    >>> stored = sample_to(path, mcmc, jax.random.key(0), y, until=Until(max_draws=500))
    >>> xarray.open_datatree(path, engine="zarr").posterior["mean"].shape
    (1, 500)
    """
    if not isinstance(mcmc, MCMC):
        raise TypeError(f"mcmc must be a numpyro.infer.MCMC; got {type(mcmc).__name__}.")
    if jax.process_count() > 1:
        raise ValueError(
            f"sample_to writes from one process, and there are {jax.process_count()}: call "
            "mcmc.run in all of them, and write what numpyro_fwd.gather(mcmc.get_samples()) gives "
            "in one."
        )
    check_whole_number("draws_per_write", draws_per_write)
    until = getattr(mcmc, "until", None) if until is None else until
    until = check_until(until, mcmc.num_chains)
    check_extra_fields(extra_fields)
    check_arguments(args, kwargs)
    store_package("zarr")  # before anything is written
    folder = Folder(path)
    with folder.claimed():
        run = StoredRun(folder, mcmc, until, int(draws_per_write))
        run.prepare(rng_key, tuple(extra_fields), init_params, args, kwargs)
        return run.go_on()


def check_extra_fields(extra_fields: object) -> None:
    """Raise TypeError unless these are names."""
    if not isinstance(extra_fields, (tuple, list)) or not all(
        isinstance(name, str) for name in (*extra_fields,)
    ):
        raise TypeError(f"extra_fields must be a tuple of names; got {extra_fields!r}.")
