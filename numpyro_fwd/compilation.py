"""Compiled programs that outlive the process that compiled them."""

import os
from pathlib import Path

import jax

DEFAULT_FOLDER = "~/.cache/numpyro_fwd/jax"


def keep_compiled(directory: str | os.PathLike[str] | None = None) -> Path:
    """Keep the programs that JAX compiles in `directory`, for later runs and processes.

    Most of the wait for a posterior of moderate size is compilation. NumPyro compiles the loop of a
    run again in every process, and in every call of ``MCMC.run``. With this, a program that has
    been compiled before (the same model, data, options and versions) is read from disk. With
    ``MCMC(..., jit_model_args=True)`` the data need not be the same, only of the same shapes. It is
    JAX's own cache (``jax_compilation_cache_dir``), in which programs of any size and compile time
    are kept.

    Parameters
    ----------
    directory
        Where they are kept, created if needed; None for the environment variable
        ``JAX_COMPILATION_CACHE_DIR``, or else ``~/.cache/numpyro_fwd/jax``.

    Returns
    -------
    The directory. Call it before the first run: JAX stays with the first directory that it has
    used in a process.

    Raises
    ------
    ValueError
        If the directory is not one of this machine, but the address of a store.

    Notes
    -----
    Compiled programs contain data that are constants in them: the arguments of a model without
    ``jit_model_args=True``, and arrays that a model uses without taking them as arguments. Protect
    the directory as you protect the data. It grows until you delete it, which you may at any time
    (JAX's limit, ``jax_compilation_cache_max_size``, needs a directory that never had more).

    Examples
    --------
    >>> import tempfile
    >>> from numpyro_fwd import keep_compiled
    >>> directory = keep_compiled(tempfile.mkdtemp())
    >>> directory.is_dir()
    True
    """
    chosen = directory or os.environ.get("JAX_COMPILATION_CACHE_DIR") or DEFAULT_FOLDER
    if "://" in os.fspath(chosen):
        raise ValueError(
            f"directory must be a folder of this machine; got {os.fspath(chosen)!r}. For another "
            "place set JAX's own options, jax_compilation_cache_dir and those beside it."
        )
    path = Path(chosen).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path
