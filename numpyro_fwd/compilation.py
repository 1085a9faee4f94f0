"""Compiled programs that outlive the process that compiled them."""

import os
from contextlib import suppress
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

__all__ = ["keep_compiled"]

DEFAULT_FOLDER = "~/.cache/numpyro_fwd/jax"
MAX_BYTES = 2 * 2**30
NO_LIMIT = -1


def keep_compiled(directory: str | os.PathLike[str] | None = None) -> Path:
    """Keep the programs that JAX compiles in `directory`, for later runs and processes.

    Most of the wait for a posterior of moderate size is compilation. NumPyro compiles the loop of a
    run again in every process, and in every call of ``MCMC.run``. With this, a program that has
    been compiled before (the same model, data, options and versions) is read from disk. With
    ``MCMC(..., jit_model_args=True)`` the data need not be the same, only of the same shapes. It is
    JAX's own cache (``jax_compilation_cache_dir``) with limits that suit sampling: programs of any
    size and compile time are kept. Where the directory has more than two gigabytes when this is
    called, what was used least recently is removed.

    Parameters
    ----------
    directory
        Where they are kept, created if needed; None for the environment variable
        ``JAX_COMPILATION_CACHE_DIR``, or else ``~/.cache/numpyro_fwd/jax``.

    Returns
    -------
    The directory. Call it before the first run.

    Raises
    ------
    ValueError
        If the directory is not one of this machine, but the address of a store.

    Notes
    -----
    Compiled programs contain data that are constants in them: the arguments of a model without
    ``jit_model_args=True``, and arrays that a model uses without taking them as arguments. Protect
    the directory as you protect the data.

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
    trim(path, MAX_BYTES)
    jax.config.update("jax_compilation_cache_dir", str(path))
    # JAX's own limit would read the whole directory for each program that it writes, and could
    # write none where one has been kept without a limit
    jax.config.update("jax_compilation_cache_max_size", NO_LIMIT)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # or else JAX stays with the first directory that it has used
    return path


def trim(directory: Path, max_bytes: int) -> None:
    """Remove the programs that were used least recently until `max_bytes` are left.

    Empty files, left by a process that was stopped as it wrote, go first: JAX can read no program
    from them and would not write it again. Other processes may trim at the same time.
    """
    kept = []
    for file in directory.glob("*-cache"):
        with suppress(FileNotFoundError):
            facts = file.stat()
            used = max(facts.st_atime, facts.st_mtime)
            kept.append((used if facts.st_size else 0.0, facts.st_size, file))
    excess = sum(size for _, size, _ in kept) - max_bytes
    for _, size, file in sorted(kept):
        if size and excess <= 0:
            break
        file.unlink(missing_ok=True)
        file.with_name(file.name.removesuffix("-cache") + "-atime").unlink(missing_ok=True)
        excess -= size
