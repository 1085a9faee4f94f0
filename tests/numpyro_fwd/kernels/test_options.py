"""Options that kernels share are written once, and each kernel shows all of them."""

import inspect
from typing import get_type_hints

import pytest
from numpyro.infer import HMC, NUTS

import numpyro_fwd
from numpyro_fwd.kernels.minibatch import MinibatchOptions
from numpyro_fwd.kernels.options import AS_IT_IS_DONE, KernelOptions
from tests import declared

NAMED = (*declared.kernels(), "AutoNUTS")
MINIBATCH = ("AMAGOLD", "L2MC", "SGHMC")


def parameters(name):
    return inspect.signature(getattr(numpyro_fwd, name)).parameters


@pytest.mark.parametrize("name", NAMED + MINIBATCH)
def test_every_option_is_in_the_signature(name):
    found = parameters(name)
    shared = MinibatchOptions if name in MINIBATCH else KernelOptions
    assert set(get_type_hints(shared)) <= set(found)
    assert not any(each.kind is each.VAR_KEYWORD for each in found.values())
    assert found["dense_mass"].default is None and found["warm_start"].default is True


def test_defaults_are_those_of_the_kernel():
    assert parameters("AMAGOLD")["friction"].default is None
    assert parameters("L2MC")["friction"].default == 0.25
    assert parameters("SGHMC")["step_size"].default == 0.1
    assert parameters("MALA")["step_size"].default == 1.0
    assert parameters("AMAGOLD")["num_integration_steps"].default == 10


def test_a_class_from_outside_has_its_own_options():
    class Own(numpyro_fwd.BlackJAXKernel):
        def __init__(self, model=None, *, flavour="sweet", **options):
            super().__init__(model, **options)

    found = inspect.signature(Own).parameters
    assert list(found) == ["model", "flavour", "options"]


@pytest.mark.parametrize("name", [*NAMED, *MINIBATCH, "LangevinSMC"])
def test_every_argument_of_nuts_is_taken_or_refused_by_name(name):
    """A new argument of NumPyro fails here until someone has looked at it."""
    of_nuts = {*inspect.signature(HMC).parameters, *inspect.signature(NUTS).parameters}
    kernel, taken = getattr(numpyro_fwd, name), set(parameters(name))
    assert "step_size" in of_nuts & taken
    for argument in of_nuts - taken:
        with pytest.raises(TypeError, match=rf"takes no {argument}: \w"):
            kernel(lambda: None, **{argument: "asked for"})
    if name != "LangevinSMC":  # of which a user need not know that they are defaults
        assert of_nuts.issuperset(AS_IT_IS_DONE)
        kernel(lambda: None, **AS_IT_IS_DONE)
