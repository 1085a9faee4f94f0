"""Public names that are imported when they are first used."""

import subprocess
import sys

import pytest

import blackjax_ext
import numpyro_fwd


@pytest.mark.parametrize("package", [blackjax_ext, numpyro_fwd])
def test_every_public_name_can_be_had(package):
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert dir(package) == package.__all__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'blackjax_ext' has no attribute 'nuts'"):
        blackjax_ext.nuts  # noqa: B018


@pytest.mark.long
def test_a_sampler_is_imported_without_the_others():
    code = (
        "import sys, blackjax_ext; blackjax_ext.mala; "
        "loaded = {name.split('.')[1] for name in sys.modules if 'blackjax_ext.' in name}; "
        "assert not loaded & {'subsampling', 'sgmcmc', 'smc', 'rows', 'adaptation'}, loaded"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


@pytest.mark.long
def test_a_public_function_is_there_whatever_was_imported_before():
    # a room of the name of a public function would stand in its place
    code = (
        "import blackjax_ext.adaptation.windows, blackjax_ext; assert callable(blackjax_ext.warmup)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
