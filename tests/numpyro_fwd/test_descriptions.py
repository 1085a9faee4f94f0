"""What the public names say of themselves: every argument, and an example that runs."""

import doctest
import inspect
import re

import pytest

import blackjax_ext
import numpyro_fwd
from numpyro_fwd.kernels.options import section_entries

KERNELS = [
    name
    for name in numpyro_fwd.__all__
    if inspect.isclass(found := getattr(numpyro_fwd, name))
    and issubclass(found, numpyro_fwd.BlackJAXKernel)
]
ALGORITHMS = [name for name in blackjax_ext.__all__ if hasattr(getattr(blackjax_ext, name), "init")]


@pytest.mark.parametrize("name", KERNELS)
def test_every_argument_is_described(name):
    kernel = getattr(numpyro_fwd, name)
    parameters = set(inspect.signature(kernel).parameters) - {"strategy"}
    described = {
        each
        for names in section_entries(kernel.__doc__, "Parameters")
        for each in names.split(", ")
    }
    assert described == parameters
    assert "options" not in described


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KERNELS, "LangevinSMC", "GOHSMC", "OHSMC", "SGSMC"])
def test_example_of_a_kernel_runs(name):
    kernel = getattr(numpyro_fwd, name)
    (found,) = doctest.DocTestFinder(recurse=False).find(kernel, name)
    assert f"{name}(model" in found.docstring
    assert doctest.DocTestRunner().run(found).failed == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_describes_itself(name):
    algorithm = getattr(blackjax_ext, name)
    assert algorithm.__doc__ == algorithm.differentiable.__doc__
    assert inspect.signature(algorithm) == inspect.signature(algorithm.differentiable)
    assert re.search(rf"blackjax_ext\.{name}\(|{name}\(", algorithm.__doc__)
