"""The code on the pages of docs/ runs, samples what the page says, and is where the page says."""

import re

import jax
import numpy as np
import pytest
from numpyro.infer import MCMC

import blackjax_ext
from numpyro_fwd import AMAGOLD
from tests import pages
from tests.test_architecture import BRIDGE, BRIDGE_ROOMS, ROOMS, ROOT

PAGES = ("from_blackjax",)
BLOCKS = [block for page in PAGES for block in pages.blocks(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_block_runs(block):
    for name in ("warmup", "forward_gradient"):
        if f"blackjax_ext.{name}(" in block.text and not callable(
            getattr(blackjax_ext, name, None)
        ):
            pytest.skip(f"blackjax_ext.{name} is not there yet")
    draws = np.asarray(block.run({})["draws"]).reshape(-1, 2)
    # on every page: a normal with means 1 and -2 and standard deviations 1 and 3
    assert draws.shape[0] >= 4000
    scales = np.array([1.0, 3.0])
    np.testing.assert_allclose((draws.mean(axis=0) - [1.0, -2.0]) / scales, 0.0, atol=0.15)
    np.testing.assert_allclose(draws.std(axis=0) / scales, 1.0, atol=0.1)


def test_rows_on_disk_are_sampled():
    (block,) = pages.blocks("on_disk")
    slope = np.asarray(block.run({})["slope"])
    np.testing.assert_allclose(slope.mean(axis=0), [1.0, -2.0], atol=0.03)
    np.testing.assert_allclose(slope.std(axis=0), 20_000**-0.5, rtol=0.5)


def test_the_page_on_draws_on_disk(tmp_path, monkeypatch):
    """Its blocks, one after the other, in one folder."""
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for block in pages.blocks("storage"):
        block.run(namespace)
    assert namespace["stored"].reason == "goal"
    assert namespace["more"].worst.ess >= 3000


@pytest.mark.slow
def test_the_page_on_meshes():
    """Rows of next to no weight change nothing."""
    namespace = {}
    for block in pages.blocks("meshes"):
        block.run(namespace)
    x, weight, slopes = namespace["x"], namespace["weight"], namespace["slopes"]
    assert len(x) == 20_000 and weight.sum() == pytest.approx(19_997)
    mcmc = MCMC(
        AMAGOLD(namespace["padded_model"], acceptance="subsampled"),
        num_warmup=100,
        num_samples=200,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), x, namespace["y"], weight)
    found = np.asarray(mcmc.get_samples()["slopes"])
    np.testing.assert_allclose(found.mean(axis=0), slopes.mean(axis=0), atol=0.3 * slopes.std())
    np.testing.assert_allclose(found.std(axis=0), slopes.std(axis=0), rtol=0.3)


def test_architecture_has_the_rooms_of_the_code():
    text = (pages.DOCS / "architecture.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(\w+)` \| (.*?) ?\| ", text, re.MULTILINE)
    found = {room: set(re.findall(r"`(\w+)`", imports)) for room, imports in lines}
    # "" is the package itself
    bridge = {
        room: {name or "numpyro_fwd" for name in names} for room, names in BRIDGE_ROOMS.items()
    }
    assert found == ROOMS | bridge


def test_files_named_on_the_pages_exist():
    for page in ("architecture", "adding_a_sampler"):
        text = (pages.DOCS / f"{page}.md").read_text(encoding="utf-8")
        for name in re.findall(r"(?<![\w/])[a-z_]+(?:/[a-z_]+)+\.(?:py|md)\b", text):
            is_example = "malta" in name or name.startswith("my_samplers")
            folders = (ROOT, BRIDGE, ROOT.parent)
            assert is_example or any((folder / name).exists() for folder in folders), name
