"""Chains and rows over the devices of a mesh, in one process or in many.

The engine is JAX's own: ``jax.distributed``, arrays with a sharding, and what XLA sends between
devices. Here is what a run needs around it: processes that find each other and agree, a mesh, rows
and chains that are divided over it, and draws that every process can read.
"""

import hashlib
import json
import operator
import zlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from blackjax_ext.meshes import CHAINS, ROWS, num_shards, on_host
from numpyro_fwd.bridge.numpyro_private import hide_bars
from numpyro_fwd.types import Args

PACKAGES = ("jax", "jaxlib", "numpyro", "blackjax", "numpyro-fwd")
# bytes of what each process says of itself; a longer text is compared, not shown
MAX_BYTES_SHOWN = 2**12
DIGEST = 32


def join_processes(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    seconds: int = 60,
    **options: Any,
) -> None:
    """Let this process be one of many; call it before any other use of JAX.

    It calls ``jax.distributed.initialize`` with time limits: a process that is missing, or that
    dies, is an error in all others. CPUs communicate through Gloo. Packages must have the same
    versions everywhere. Only the first process shows progress bars of NumPyro and of this package.

    Parameters
    ----------
    coordinator_address
        ``"host:port"`` of the first process, the same in all; None for what JAX finds on SLURM,
        Kubernetes, under Open MPI, or in ``JAX_COORDINATOR_ADDRESS``.
    num_processes, process_id
        How many there are, and which of them this is, from 0; None as above.
    seconds
        Time limit for the other processes to start, and between their heartbeats.
    options
        Of ``jax.distributed.initialize``.

    Raises
    ------
    ValueError
        In every process, if versions differ; it says where.
    RuntimeError
        From JAX, if JAX has been used before; importing BlackJAX before this package uses it.
    """
    options.setdefault("initialization_timeout", seconds)
    options.setdefault("heartbeat_timeout_seconds", seconds)
    options.setdefault("shutdown_timeout_seconds", seconds)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(coordinator_address, num_processes, process_id, **options)
    except RuntimeError as error:
        error.add_note(
            "join_processes must come before all that uses JAX. Importing BlackJAX uses it, unless "
            "numpyro_fwd or blackjax_ext is imported first."
        )
        raise
    if jax.process_index():
        hide_bars()
    check_agreement({})


def make_mesh(*, chains: int = 1, rows: int = -1) -> Mesh:
    """A mesh of all devices with the axes "chains" and "rows", for ``jax.set_mesh``.

    Devices of one process are neighbours along the rows, since sums over rows are sent most often.

    Parameters
    ----------
    chains, rows
        Over how many devices the chains (or particles) and the rows of the data are divided; -1 for
        all that the other leaves.

    Returns
    -------
    A mesh. Its axes are of the type Auto: NumPyro does not work on those of the type Explicit.

    Raises
    ------
    ValueError, TypeError
        For numbers that are not positive, or whose product is not that of the devices.

    Examples
    --------
    >>> import jax
    >>> from numpyro_fwd import make_mesh
    >>> mesh = make_mesh(chains=1, rows=jax.device_count())
    >>> mesh.axis_names
    ('chains', 'rows')
    """
    num_devices = jax.device_count()
    sizes = {CHAINS: operator.index(chains), ROWS: operator.index(rows)}
    unknown = [name for name, size in sizes.items() if size == -1]
    known = [size for size in sizes.values() if size != -1]
    product = int(np.prod(known))
    if any(size < 1 for size in known) or len(unknown) == 2 or num_devices % product:
        raise ValueError(wrong_mesh(sizes, num_devices))
    sizes |= dict.fromkeys(unknown, num_devices // product)
    if int(np.prod(list(sizes.values()))) != num_devices:
        raise ValueError(wrong_mesh(sizes, num_devices))
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * 2)


def wrong_mesh(sizes: dict[str, int], num_devices: int) -> str:
    """Describe what is wrong with the numbers of devices of a mesh."""
    given = " and ".join(f"{name}={size}" for name, size in sizes.items())
    return (
        f"chains and rows must be positive (or one of them -1) and multiply to the {num_devices} "
        f"devices that there are; got {given}."
    )


def shard_rows(data: Any, mesh: Mesh | None = None, *, of_process: bool = False) -> Any:
    """Arrays whose rows are divided over the axis "rows" of a mesh: arguments of a model.

    Parameters
    ----------
    data
        A pytree of arrays that lead with the rows: of NumPy, of JAX, or mapped from a file, of
        which a process then reads its own part alone.
    mesh
        Of :func:`make_mesh`; None for that of ``jax.set_mesh``.
    of_process
        False if every process gives all rows; True if each gives those of its own devices, as many
        as the others, in the order of the processes.

    Returns
    -------
    A pytree of arrays of JAX with all rows.

    Raises
    ------
    ValueError
        For an array whose rows are not a multiple of the devices that they are divided over; for
        a leaf that has no rows; in every process, for shapes that differ between them; without a
        mesh.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from numpyro_fwd import make_mesh, shard_rows
    >>> mesh = make_mesh()
    >>> x, y = shard_rows((np.ones((8, 3)), np.ones(8)), mesh)
    >>> x.shape
    (8, 3)
    """
    mesh = the_mesh(mesh)
    sharding = NamedSharding(mesh, P(ROWS))
    num = mesh.shape[ROWS]
    check_agreement({"rows": jax.tree.map(kind, data), "mesh": str(mesh.shape)})
    # processes along the chains hold the same rows
    share = len(set(parts_of_processes(mesh))) if of_process else 1

    def put(path, leaf):
        if not getattr(leaf, "shape", ()):
            raise ValueError(no_rows(jax.tree_util.keystr(path), leaf))
        num_rows = leaf.shape[0] * share
        if num_rows % num:
            raise ValueError(indivisible(jax.tree_util.keystr(path), num_rows, num))
        if of_process:
            shape = (num_rows, *leaf.shape[1:])
            local = np.asarray(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype))
            return jax.make_array_from_process_local_data(sharding, local, shape)
        return from_all(leaf, sharding)

    return jax.tree_util.tree_map_with_path(put, data)


def from_all(leaf: Any, sharding: NamedSharding) -> Array:
    """An array of which every process has all rows and reads its own."""
    if isinstance(leaf, Array) and not is_local(leaf):
        return jax.device_put(leaf, sharding)
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return jax.make_array_from_callback(
        leaf.shape, sharding, lambda index: np.asarray(leaf[index], dtype)
    )


def parts_of_processes(mesh: Mesh) -> list[tuple[int, ...]]:
    """For each process, which shards of the rows its devices hold."""
    held: dict[int, set[int]] = {}
    along = mesh.axis_names.index(ROWS)
    for place, device in np.ndenumerate(mesh.devices):
        held.setdefault(device.process_index, set()).add(place[along])
    return [tuple(sorted(held.get(p, ()))) for p in range(jax.process_count())]


def no_rows(name: str, leaf: Any) -> str:
    """Advice for numbers that are no rows."""
    return (
        f"data{name} must be an array that leads with the rows; got {kind(leaf)}. Pass what is the "
        "same for all rows to the model as it is, beside what shard_rows returns."
    )


def indivisible(name: str, num_rows: int, num: int) -> str:
    """Advice on how to make rows divisible."""
    rest = num_rows % num
    return (
        f"data{name} must have a number of rows that is a multiple of the {num} devices along the "
        f'axis "rows" of the mesh; got {num_rows:,}. Append {num - rest} rows of negligible weight '
        "(copies of others, and numpyro.handlers.scale(scale=weight[rows]) around the observed "
        f"site with weights 1 and 1e-30), leave out {rest}, or take a mesh with another number."
    )


def the_mesh(mesh: Mesh | None) -> Mesh:
    """`mesh`, or that of ``jax.set_mesh``; ValueError unless it has rows of the type Auto."""
    mesh = jax.sharding.get_mesh() if mesh is None else mesh
    if ROWS not in mesh.axis_names:
        raise ValueError(
            f'mesh must have an axis "rows", as that of make_mesh() does; got {mesh.axis_names}.'
        )
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if any(kind is not AxisType.Auto for kind in types.values()):
        raise ValueError(
            "mesh must have axes of the type Auto, as that of make_mesh() has, because NumPyro "
            f"does not work on others; got {types}."
        )
    return mesh


def gather(tree: Any) -> Any:
    """Arrays of NumPy with all values in every process, as of ``gather(mcmc.get_samples())``.

    A collective where processes hold parts: each of them must call it. Elsewhere a conversion.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from numpyro_fwd import gather
    >>> gather({"a": jnp.arange(3)})["a"].tolist()
    [0, 1, 2]
    """
    return on_host(tree)


def over_chains(tree: Any) -> Any:
    """Arrays that lead with the chains, divided over the axis "chains" of the mesh if it has one.

    Raises
    ------
    ValueError
        For a number of chains that is not a multiple of the devices along it.
    """
    num = num_shards(CHAINS)
    if num == 1:
        return tree
    size = jax.tree.leaves(tree)[0].shape[0]
    if size % num:
        raise ValueError(
            f"num_chains must be a multiple of the {num} devices along the axis "
            f'"chains" of the mesh; got {size}. Take {size + num - size % num}, or a mesh with '
            "another number."
        )
    return shard_chains(tree)


@jax.jit
def shard_chains(tree: Any) -> Any:
    """Arrays with their first axis along that of the chains."""
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, P(CHAINS)), tree)


def is_local(leaf: Any) -> bool:
    """Whether this process holds all of an array; of a traced one it cannot be asked."""
    return isinstance(leaf, Tracer) or not isinstance(leaf, Array) or leaf.is_fully_addressable


def check_run(name: str, rng_key: Any, num_warmup: int, model_args: Args, kwargs: Any) -> None:
    """Raise ValueError in every process if they do not begin the same run.

    Shapes and dtypes of the arguments of the model are compared, and values where every process has
    all of them.
    """
    leaves = jax.tree_util.tree_leaves_with_path((model_args, kwargs or {}))
    if jax.process_count() == 1 or any(isinstance(x, jax.core.Tracer) for _, x in leaves):
        return
    arguments = {
        ("model_args", "model_kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:]): (
            f"{kind(leaf)} {content(leaf)}"
        )
        for path, leaf in leaves
    }
    key = f"{kind(rng_key)} {content(rng_key)}"
    mesh = dict(jax.sharding.get_abstract_mesh().shape)
    check_agreement(
        {"kernel": name, "num_warmup": num_warmup, "rng_key": key, "mesh": mesh, **arguments}
    )


def kind(leaf: Any) -> str:
    """Dtype and shape of an array, the type of anything else."""
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}{tuple(leaf.shape)}"


def content(leaf: Any) -> str:
    """A checksum of an array of this process, the value of a number or of text."""
    if isinstance(leaf, (bool, int, float, complex, str, bytes)):
        return repr(leaf)
    if not hasattr(leaf, "dtype") or not is_local(leaf):
        return ""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return "" if array.dtype == object else f"{zlib.crc32(array.tobytes()):08x}"


def check_agreement(facts: dict[str, Any]) -> None:
    """Raise ValueError in every process unless these facts, and versions, are the same in all.

    A collective, of a few kilobytes whatever the facts are, so that those who disagree still meet.
    """
    if jax.process_count() == 1:
        return
    own = {**versions_and_precision(), **facts}
    text = json.dumps(own, default=str)
    said = hashlib.sha256(text.encode()).digest() + text.encode()[: MAX_BYTES_SHOWN - DIGEST]
    block = np.zeros(MAX_BYTES_SHOWN, np.uint8)
    block[: len(said)] = np.frombuffer(said, np.uint8)
    texts = multihost_utils.process_allgather(block)
    others = [p for p in range(len(texts)) if not np.array_equal(texts[p], texts[0])]
    if others:
        first, other = (texts[p, DIGEST:].tobytes().rstrip(b"\0") for p in (0, others[0]))
        raise ValueError(
            "processes must run the same program on data of the same shapes; processes "
            f"{others} do not agree with process 0. {explain_difference(first, others[0], other)}"
        )


def explain_difference(first: bytes, p: int, other: bytes) -> str:
    """Describe where the facts of two processes are different, as far as is known."""
    try:
        here, elsewhere = json.loads(first), json.loads(other)
    except ValueError:  # a long text that is cut
        here, elsewhere = {"facts": first.decode()[:500]}, {"facts": other.decode()[:500]}
    names = [name for name in {**here, **elsewhere} if here.get(name) != elsewhere.get(name)]
    return " ".join(
        f"{name} is {here.get(name)} in process 0 and {elsewhere.get(name)} in process {p}."
        for name in names
    )


def versions_and_precision() -> dict[str, str]:
    """Versions of what computes, and whether in double precision."""
    facts = {"double precision": str(jax.dtypes.canonicalize_dtype(float) == np.float64)}
    for name in PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:  # a checkout that is not installed
            facts[name] = "not installed"
    return facts
