"""What a kernel says before the first step: where there is a progress bar, and nowhere else."""

import io
import threading
import time

import jax
import pytest
from numpyro.infer import MCMC
from tqdm.auto import tqdm

from blackjax_ext import families, potentials
from numpyro_fwd import AMAGOLD, MALA
from numpyro_fwd.kernels import running_mcmc
from tests import fixed_seeds
from tests.numpyro_fwd.kernels.test_resuming import data

KERNELS = {
    "AMAGOLD": lambda: AMAGOLD(fixed_seeds.on_minibatches, acceptance="subsampled"),
    "MALA": lambda: MALA(fixed_seeds.regression),
}
SAID = {
    "AMAGOLD": ["finite density", "rows, looking for their mode, pass 1", "rows, bounding them"],
    "MALA": ["finite density", "looking for a start"],
}


@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("has_bar", [True, False])
def test_words_are_where_the_bar_is(name, has_bar, capsys):
    mcmc = MCMC(KERNELS[name](), num_warmup=20, num_samples=10)
    mcmc.progress_bar = has_bar  # NumPyro leaves it out of its tests
    mcmc.run(jax.random.key(0), *data())
    said = capsys.readouterr().err
    for words in [*SAID[name], "compiling the first state"]:
        assert (f"{name}: " in said and words in said) == has_bar


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_clock_goes_on_in_a_terminal_alone(is_terminal, monkeypatch):
    """A file keeps each line."""
    file = io.StringIO()
    file.isatty = lambda: is_terminal
    monkeypatch.setattr(running_mcmc, "TICK", 0.01)
    with tqdm(total=0, bar_format="{desc}", leave=False, file=file) as line:
        with running_mcmc.ticking(line):
            line.set_description_str("looking")
            time.sleep(0.2)
    assert (file.getvalue().count("looking") > 1) == is_terminal


@pytest.mark.long
def test_a_kernel_without_mcmc_is_silent(capsys):
    KERNELS["MALA"]().init(jax.random.key(0), 10, None, data(), {})
    assert capsys.readouterr().err == ""


def test_words_end_with_an_error(capsys):
    tqdm(total=0, leave=False).close()  # the first of a process starts a thread that stays
    before = threading.active_count()
    mcmc = MCMC(KERNELS["MALA"](), num_warmup=20, num_samples=10)
    mcmc.progress_bar = True
    with pytest.raises(TypeError):
        mcmc.run(jax.random.key(0), "no data", "at all")
    assert threading.active_count() == before


@pytest.mark.long
def test_an_expansion_says_what_it_reads():
    x = jax.random.normal(jax.random.key(0), (50, 2))
    rows = potentials.linear_predictor(lambda z: -z @ z, families.bernoulli(), (x, x[:, 0] > 0))
    said = []
    potentials.expand(rows, x[0], say=said.append)
    assert said[0] == "reading 50 rows, looking for their mode, pass 1"
    assert said[-1] == f"reading 50 rows, bounding them, pass {len(said)}"
