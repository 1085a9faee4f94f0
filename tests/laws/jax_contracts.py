"""What jax asks of a sampler: batching, compilation, dtypes, keys, bad numbers, resuming."""

from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np

from tests.laws import steps
from tests.laws.samplers import CASES

START = np.array([0.4, -0.7, 1.1])


def logdensity(x):
    """A skewed density with curvature everywhere."""
    return jnp.sum(x - jnp.exp(x)) - 0.1 * jnp.sum(x) ** 2


def start(case, dtype=None, fn=logdensity, position=START, step_size=0.7):
    """A sampler and its first state."""
    sampler = CASES[case].on(fn, step_size)
    position = jax.tree.map(lambda x: jnp.asarray(x, dtype), position)
    return sampler, sampler.init(position, jax.random.key(1) if CASES[case].keyed else None)


def assert_same(a, b, **tolerance):
    """Raise unless two pytrees have the same structure, dtypes and values."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, **({"rtol": 0, "atol": 0} | tolerance))


def vmap_is_loop(case):
    """A batch of chains does what each does alone."""
    sampler, _ = start(case)
    positions = START + np.linspace(-1.0, 1.0, 6)[:, None]
    keys = jax.random.split(jax.random.key(2), (6, 3))

    def chain(position, keys):
        state = sampler.init(position, keys[0] if CASES[case].keyed else None)
        for key in keys[1:]:
            state, info = sampler.step(key, state)
        return state, info

    batch = jax.jit(jax.vmap(chain))(positions, keys)
    chain = jax.jit(chain)
    for i, (position, key) in enumerate(zip(positions, keys, strict=True)):
        alone = chain(position, key)
        assert_same(jax.tree.map(itemgetter(i), batch), alone, rtol=1e-9, atol=1e-9)


def compiles_once(case, dtype):
    """The first state has the types of every later one, so one program serves all steps."""
    sampler, state = start(case, dtype)
    traces = []

    def step(key, state):
        traces.append(key)
        return sampler.step(key, state)

    step = jax.jit(step)
    for key in jax.random.split(jax.random.key(3), 4):
        state, _ = step(key, state)
    assert len(traces) == 1, f"{case} is compiled {len(traces)} times in 4 steps"


def keeps_dtype(case, dtype):
    """Position, log density and everything else in the state stay of the dtype of the position."""
    sampler, state = start(case, dtype)
    new_state, info = jax.jit(sampler.step)(jax.random.key(4), state)
    for each in (state, new_state):
        leaves = [leaf for leaf in jax.tree.leaves(each) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        found = {str(leaf.dtype) for leaf in leaves}
        assert found == {str(dtype)}, f"dtype: {case} holds {found} for a {dtype} position"
    assert info.acceptance_rate.dtype == dtype, f"dtype: {info.acceptance_rate.dtype} rate"
    assert info.is_accepted.dtype == info.is_divergent.dtype == bool


def uses_keys_once(case):
    """No key is used twice, in init or in a step."""
    with jax.debug_key_reuse(True):
        sampler = CASES[case].on(logdensity, 0.7)

        def chain(key):
            key_init, key_step = jax.random.split(key)
            state = sampler.init(jnp.asarray(START), key_init if CASES[case].keyed else None)
            return sampler.step(key_step, state)

        jax.block_until_ready(jax.jit(chain)(jax.random.key(5)))


def rejects_nan(case, is_nan_at_start):
    """A NaN at either end is rejected, says so, and leaves the position where it was."""

    def broken(x):
        # NaN at the start alone, or everywhere else
        at_start = jnp.all(x == jnp.asarray(START, x.dtype))
        return jnp.where(at_start == is_nan_at_start, jnp.nan, 0.0) + logdensity(x)

    sampler, state = start(case, fn=broken)
    step = jax.jit(sampler.step)
    if not CASES[case].keyed and not is_nan_at_start:
        # the step that draws the first tangent, where the chain stands
        drawn, _ = step(jax.random.key(9), state)
        assert_same(drawn.position, state.position)
        state = drawn
    for key in jax.random.split(jax.random.key(6), 3):
        new_state, info = step(key, state)
        assert not info.is_accepted, f"NaN: {case} accepted"
        assert info.is_divergent, f"NaN: {case} does not report a divergence"
        assert info.acceptance_rate == 0.0, f"NaN: acceptance rate {info.acceptance_rate}"
        kept = [name for name in state._fields if name not in MOVING]
        assert_same(*({name: getattr(each, name) for name in kept} for each in (new_state, state)))


# what a step may change where the chain stays: its count, what it knows of the place, the momentum
MOVING = {"exponent", "iteration", "is_current", "metric", "momentum"}


def escapes(case, num_steps=60):
    """A start of log density minus infinity next to the support ends up inside it."""

    def half_line(x):
        return jnp.where(jnp.all(x > 0), -jnp.sum(x) - jnp.sum((x - x[0]) ** 2), -jnp.inf)

    sampler, state = start(case, fn=half_line, position=np.array([0.1, -0.05, 0.1]))
    assert np.isneginf(state.logdensity)
    states, _ = steps.run(sampler, state, num_steps)
    assert np.isfinite(states.logdensity[-1]), f"{case} stays at log density -inf"
    assert np.all(states.position[-1] > 0)
    assert not np.isnan(np.asarray(states.position)).any()


def resumes(case):
    """A state that went through numpy continues bit for bit."""
    sampler, state = start(case, jnp.float32)
    keys = jax.random.split(jax.random.key(7), 6)
    step = jax.jit(sampler.step)
    middle = None
    for i, key in enumerate(keys):
        middle = jax.tree.map(np.array, state) if i == 3 else middle
        state, _ = step(key, state)
    saved_keys = np.array(jax.random.key_data(keys[3:]))
    restored = jax.tree.map(jnp.asarray, middle)
    for key in jax.random.wrap_key_data(saved_keys):
        restored, _ = step(key, restored)
    assert_same(restored, state)


def takes_any_pytree(case):
    """Leaves of any shape in any container give the chain of the flat vector."""
    tree = {"a": (np.array(START[0]), [START[1:2]]), "b": START[2:].reshape(1, 1)}

    def on_tree(position):
        (a, [b]), c = position["a"], position["b"]
        return logdensity(jnp.concatenate([a[None], b, c[0]]))

    (sampler, state), (flat_sampler, flat_state) = (
        start(case, fn=on_tree, position=tree),
        start(case),
    )
    shapes = jax.tree.map(jnp.shape, state.position)
    for key in jax.random.split(jax.random.key(8), 4):
        state, _ = jax.jit(sampler.step)(key, state)
        flat_state, _ = jax.jit(flat_sampler.step)(key, flat_state)
    assert jax.tree.map(jnp.shape, state.position) == shapes
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.position)])
    np.testing.assert_allclose(found, flat_state.position, rtol=1e-9)
