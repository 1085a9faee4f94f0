"""What a step evaluates, and that it is done by forward mode alone."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive
from jax.interpreters import ad, batching

from tests.laws import steps
from tests.laws.samplers import CASES
from tests.laws.targets import LOOP

# the identity, which shows in a program where a density is evaluated
EVALUATION = Primitive("evaluation")
EVALUATION.def_impl(lambda x: x)
EVALUATION.def_abstract_eval(lambda x: x)
batching.defvectorized(EVALUATION)
ad.primitive_jvps[EVALUATION] = lambda primals, tangents: (EVALUATION.bind(*primals), *tangents)


def evaluations(program) -> int:
    """How often a program evaluates the density: a scan as often as it turns, other loops once."""
    count = 0
    for equation in program.eqns:
        turns = equation.params["length"] if equation.primitive.name == "scan" else 1
        parts = jax.tree.leaves(equation.params, is_leaf=lambda x: isinstance(x, ClosedJaxpr))
        inner = [part.jaxpr if isinstance(part, ClosedJaxpr) else part for part in parts]
        inner = [part for part in inner if isinstance(part, Jaxpr)]
        count += (equation.primitive is EVALUATION) + turns * sum(map(evaluations, inner))
    return count


class Counts(dict):
    """Orders of the derivatives of a density while a step is traced."""

    def __init__(self):
        super().__init__(order=0)

    def density(self, x):
        """A density whose evaluations show in a program."""
        return self._value(EVALUATION.bind(x), 0)

    def _value(self, x, order):
        """The ``order``-th derivative of ``-exp(x)``, summed; knows when it is differentiated."""
        value = jax.custom_jvp(lambda x: -jnp.sum(jnp.exp(x)))

        @value.defjvp
        def derivative(primals, directions):
            self["order"] = max(self["order"], order + 1)
            (x,), (direction,) = primals, directions
            return self._value(x, order), self._slope(x, direction, order + 1)

        return value(x)

    def _slope(self, x, direction, order):
        """The derivative along `direction`, itself differentiable in x."""
        slope = jax.custom_jvp(lambda x, direction: -jnp.sum(direction * jnp.exp(x)))

        @slope.defjvp
        def derivative(primals, directions):
            self["order"] = max(self["order"], order + 1)
            x, direction = primals
            change, _ = directions
            return slope(x, direction), self._slope(x, direction * change, order + 1)

        return slope(x, direction)


def costs_what_it_says(case):
    """Evaluations of the density in one step, and the highest order of derivative taken of it."""
    counts = Counts()
    sampler = CASES[case].on(counts.density)
    state = sampler.init(jnp.zeros(3), jax.random.key(0) if CASES[case].keyed else None)
    counts.update(order=0)
    program = jax.make_jaxpr(sampler.step)(jax.random.key(1), state).jaxpr
    expected, order = CASES[case].costs
    # transposition hides the rules that count orders: in reverse mode the calls are counted alone
    found = evaluations(program), counts["order"] if CASES[case].forward_only else order
    assert found == (expected, order), f"cost: {case} has {found} (evaluations, order)"


def shares_the_primal(case):
    """The number of exponentials in the program of a step: one primal for all tangents."""
    sampler = CASES[case].on(lambda x: -jnp.sum(jnp.exp(x)))
    state = sampler.init(jnp.zeros(3), jax.random.key(0) if CASES[case].keyed else None)
    program = str(jax.make_jaxpr(sampler.step)(jax.random.key(1), state))
    batched = [line for line in program.splitlines() if " = exp " in line and "[2,3]" in line]
    assert not batched, f"cost: {case} evaluates the density once for each tangent"


def deep(weights):
    """Log density of a network at 2,000 rows: a reverse pass keeps every layer."""
    values = jnp.linspace(-1.0, 1.0, 2_000 * 20).reshape(2_000, 20)
    for layer in weights:
        values = jax.nn.relu(values @ layer)
    return -jnp.sum(values**2)


def temporary_bytes(function, *arguments) -> int:
    """Temporary memory of the compiled `function`, by XLA's analysis."""
    compiled = jax.jit(function).lower(*arguments).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def saves_memory(case, limit):
    """A step needs at most `limit` of the memory of a gradient."""
    weights = [jnp.eye(20)] * 32
    sampler = CASES[case].on(deep)
    state = sampler.init(weights, jax.random.key(0) if CASES[case].keyed else None)
    step = temporary_bytes(sampler.step, jax.random.key(1), state)
    ratio = step / temporary_bytes(jax.value_and_grad(deep), weights)
    assert ratio < limit, f"memory: a step of {case} has {ratio:.2f} of a gradient's"


def samples_without_reverse_mode(case, num_steps=50):
    """A density on which ``jax.grad`` raises is sampled."""
    sampler = CASES[case].build(LOOP, jnp.float32)
    state = sampler.init(jnp.zeros(3), jax.random.key(2) if CASES[case].keyed else None)
    states, info = steps.run(sampler, state, num_steps)
    assert 0.2 < np.mean(info.acceptance_rate) < 0.95
    assert len(np.unique(jax.tree.leaves(states.position)[0][:, 0])) > num_steps / 5
    assert not np.any(info.is_divergent)


def calls_reverse_mode(case):
    """A sampler that has no step size for the density without reverse mode has a reason."""
    sampler = CASES[case].on(LOOP.logdensity)

    def chain(key):
        return sampler.step(key, sampler.init(jnp.zeros(3), key if CASES[case].keyed else None))

    try:
        jax.make_jaxpr(chain)(jax.random.key(3))
    except ValueError as error:
        assert "Reverse-mode differentiation does not work" in str(error)
    else:
        raise AssertionError(f"{case} needs no reverse mode: give it a step size for the loop")
