"""Samplers that are made from their ``init`` and ``build_kernel``."""

import copy
import inspect
import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import blackjax_ext
from blackjax_ext.mcmc import alsmmala, mala, smmala
from blackjax_ext.top_level import Algorithm, top_level

SAMPLERS = [
    name for name in blackjax_ext.__all__ if isinstance(getattr(blackjax_ext, name), Algorithm)
]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_is_pickled_by_its_name(name):
    sampler = getattr(blackjax_ext, name)
    assert pickle.loads(pickle.dumps(sampler)) is sampler
    assert copy.deepcopy(sampler) is sampler


# of the others each has a target of its own, and says all itself
@pytest.mark.parametrize(
    "name", sorted({*SAMPLERS} - {"group_sweeps", "langevin_smc", "open_horizon_smc"})
)
def test_every_argument_is_described_once(name):
    sampler = getattr(blackjax_ext, name)
    lines = sampler.__doc__.splitlines()
    section = lines[lines.index("Parameters") : lines.index("Returns")]
    said = [name for line in section[2:] if line and line[0] != " " for name in line.split(", ")]
    assert said == list(inspect.signature(sampler).parameters)
    assert sum(line == "Returns" for line in lines) == 1


def test_arguments_that_checks_replace_are_those_of_the_sampler():
    @top_level(smmala.init, smmala.build_kernel)
    def constant(metric_fn):
        """SMMALA with a constant metric."""
        assert metric_fn is smmala.METRIC
        return {"metric_fn": lambda *_: 4.0 * jnp.eye(2)}

    precision = constant(lambda x: -0.5 * jnp.sum(x**2), 1.0).init(jnp.ones(2)).metric.precision(2)
    np.testing.assert_allclose(precision, 4.0 * jnp.eye(2), rtol=1e-6)


def test_internal_arguments_are_not_those_of_the_sampler():
    """What steps of many chains are given is no option of a chain."""
    assert not {"refresh", "is_current"} & set(inspect.signature(alsmmala.alsmmala).parameters)
    assert "is_current" in inspect.signature(alsmmala.build_kernel()).parameters


@pytest.mark.parametrize("step_size", [0.0, -1.0, float("nan")])
def test_the_step_size_is_checked(step_size):
    with pytest.raises(ValueError, match="step_size must be positive"):
        blackjax_ext.mala(mala.init, step_size)


def test_an_unknown_argument_raises_by_name():
    with pytest.raises(TypeError, match=r"mala\(\) got an unexpected keyword argument 'floor'"):
        blackjax_ext.mala(mala.init, 1.0, floor=2.0)
