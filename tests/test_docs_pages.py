"""The code on the pages of docs/ runs, samples what the page says, and is where the page says.

Pages read well where the code is hosted, without Sphinx.
"""

import ast
import pkgutil
import re
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import summary
from numpyro.infer import MCMC

import blackjax_ext
import numpyro_fwd
from blackjax_ext.subsampling.families.kind import Ball
from numpyro_fwd import AMAGOLD
from tests import pages
from tests.test_architecture import BRIDGE, BRIDGE_ROOMS, ROOMS, ROOT

sys.path.insert(0, str(pages.DOCS / "_ext"))

import front_page
import reference

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


SHOWN = (
    "mean  std\n  a  1.00  0.99\n  ...\n  z  2.00  1.01\n\nUserWarning: far\nfrom it\n\n[ 4000 ]"
)


@pytest.mark.parametrize(
    ("printed", "is_right"),
    [
        ("mean std\na 1.02 1.0\nb 3 1\nc 3 1\nz 2 1\n[3900]", True),
        ("mean std\na 1.02 1.0\nz 2 1\n[3900]", True),
        ("mean sd\na 1.02 1.0\nz 2 1\n[3900]", False),  # another word
        ("mean std\na 3.2 1.0\nz 2 1\n[3900]", False),  # another number
        ("mean std\na 1.02 1.0\nz 2 1", False),  # a line that is not there
        ("mean std\na 1.02 1.0\nz 2 1\n[3900]\nmore", False),
        ("mean std\na 1.02 1.0 7\nz 2 1\n[3900]", False),  # another column
    ],
)
def test_outputs_are_compared(printed, is_right):
    if is_right:
        pages.check_output("here", SHOWN, printed)
    else:
        with pytest.raises(AssertionError, match=r"^here "):
            pages.check_output("here", SHOWN, printed)


def test_pages_with_outputs_name_their_versions():
    for path in [*pages.DOCS.rglob("*.md"), pages.DOCS.parent / "README.md"]:
        text = path.read_text(encoding="utf-8") if "_build" not in path.parts else ""
        has_output = any(found[2] for found in pages.BLOCK.finditer(text))
        assert (pages.VERSIONS in text) == has_output, path


def found_by(page, tmp_path, monkeypatch, **given):
    """What the blocks of a page find, one after the other, in one folder, with what is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(numpyro_fwd, "keep_compiled", lambda: None)  # tests have a cache of theirs
    namespace = dict(given)
    for block in pages.blocks(page):
        block.run(namespace)
    return namespace


@pytest.mark.slow
def test_from_nuts(tmp_path, monkeypatch):
    found = found_by("howto/from_nuts", tmp_path, monkeypatch)
    np.testing.assert_allclose(found["tau"].mean(), 3.60, rtol=0.1)
    np.testing.assert_allclose((found["tau"] < 1).mean(), 0.200, atol=0.04)


@pytest.mark.slow
def test_r_hat_is_bad_and_then_good(tmp_path, monkeypatch):
    with pytest.warns(UserWarning, match=r"chains disagree: .* \(worst in slope, intercept\)"):
        found = found_by("howto/r_hat", tmp_path, monkeypatch)
    ess = {
        name: summary(found[name].get_samples(group_by_chain=True))["slope"]["n_eff"]
        for name in ("mcmc", "centred", "diagonal")
    }
    assert ess["centred"] > 3 * ess["diagonal"] and ess["mcmc"] > 3 * ess["diagonal"]


@pytest.mark.long
def test_long_start(tmp_path, monkeypatch):
    found_by("howto/long_start", tmp_path, monkeypatch)


@pytest.mark.long
def test_big_data(tmp_path, monkeypatch):
    found = found_by("howto/big_data", tmp_path, monkeypatch)
    slope = found["mcmc"].get_samples()["slope"]
    np.testing.assert_allclose(slope.mean(axis=0), found["truth"], atol=0.08)
    assert found["fields"]["accept_prob"].mean() > 0.3
    assert found["fields"]["inner.num_rows"].mean() < 1000
    assert found["predicted"].shape == (200, 2000)
    np.testing.assert_array_equal(found["predicted"], found["same"])
    slope = np.asarray(found["from_disk"].get_samples()["slope"])
    np.testing.assert_allclose(slope.mean(axis=0), [1.0, -2.0], atol=0.03)
    np.testing.assert_allclose(slope.std(axis=0), 20_000**-0.5, rtol=0.5)


@pytest.mark.slow
def test_evidence(tmp_path, monkeypatch):
    found = found_by("howto/evidence", tmp_path, monkeypatch)
    assert found["log_bayes_factor"] > 1.0 and found["error"] < 0.5


@pytest.mark.long
def test_many_runs(tmp_path, monkeypatch):
    found = found_by("howto/many_runs", tmp_path, monkeypatch)
    assert len(found["mcmc"]._known.programs) == 2  # with room for 500 draws, and for 1,000
    assert len(found["folds"]._known.programs) == 1 and -45 < sum(found["scores"]) < -15


@pytest.mark.long
def test_saving(tmp_path, monkeypatch):
    found = found_by("howto/saving", tmp_path, monkeypatch)
    first, second = (found[name].get_samples()["mean"] for name in ("mcmc", "again"))
    assert first.shape == second.shape == (2000,)
    assert not np.array_equal(first, second)
    assert (tmp_path / "draws.nc").is_file()
    assert found["stored"].reason == "goal"
    assert found["more"].worst.ess >= 3000


@pytest.mark.long
def test_other_densities():
    """Blocks with PyMC run where it is installed."""
    plain, with_pymc = pages.blocks("howto/other_densities")
    namespace = plain.run({})
    assert abs(float(namespace["draws"].posterior["rate"].mean()) - 1.5) < 0.2
    pytest.importorskip("pymc")
    try:
        found = with_pymc.run(namespace)["draws"].posterior
    finally:
        jax.config.update("jax_enable_x64", False)  # which PyMC switches on
    assert abs(float(found["mean"].mean()) - 2.0) < 0.3


@pytest.mark.slow
def test_discrete_and_missing():
    """The block that enumerates runs where funsor is installed."""
    summed, first, enumerated, missing = pages.blocks("howto/discrete_and_missing")
    namespace = first.run(summed.run({}))
    means = namespace["mcmc"].get_samples()["means"].mean(axis=0)
    np.testing.assert_allclose(means, [-1.0, 1.0], atol=0.3)
    found = missing.run(namespace)["draws"]
    np.testing.assert_allclose(found["slope"].mean(), 0.5, atol=0.05)
    pytest.importorskip("funsor")
    found = enumerated.run(namespace)["draws"]
    np.testing.assert_allclose(found["means"].mean(axis=0), means, atol=0.03)


@pytest.mark.slow
def test_page_of_the_forward_mode_family(tmp_path, monkeypatch):
    found_by("algorithms/forward_mode", tmp_path, monkeypatch)


@pytest.mark.slow
def test_not_jax(tmp_path, monkeypatch):
    found = found_by("howto/not_jax", tmp_path, monkeypatch)
    walk, mala = (found[name].get_samples()["r"] for name in ("walk", "mala"))
    np.testing.assert_allclose(walk.mean(0), [1.66, 3.33], rtol=0.05)
    np.testing.assert_allclose(walk.mean(0), mala.mean(0), rtol=0.02)
    np.testing.assert_allclose(walk.std(0), mala.std(0), rtol=0.2)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(lambda r: found["iterated"](r).sum())(jax.numpy.array([1.7]))
    fmala = found["fmala"].get_samples()["r"]
    np.testing.assert_allclose(fmala.mean(axis=0), [1.66, 3.35], rtol=0.02)


@pytest.mark.slow
def test_adaptive_solver():
    """Its last block, of NUTS by JVPs, takes two minutes here and runs with --full-laws."""
    pytest.importorskip("diffrax")
    draws = next(pages.blocks("howto/adaptive_solver")).run({})["mcmc"].get_samples()
    for name, mean in dict(beta=1.80, gamma=0.53, first=0.81, phi=11.4).items():
        np.testing.assert_allclose(draws[name].mean(), mean, rtol=0.15)


@pytest.mark.full
def test_nuts_by_jvps_beside_one_solve_a_draw(tmp_path, monkeypatch):
    pytest.importorskip("diffrax")
    found_by("howto/adaptive_solver", tmp_path, monkeypatch)


@pytest.mark.slow
def test_your_own(tmp_path, monkeypatch):
    found = found_by("howto/your_own", tmp_path, monkeypatch)
    np.testing.assert_allclose(found["mcmc"].get_samples()["v"].std(), 1.0, atol=0.15)
    np.testing.assert_allclose(found["slopes"].mean(axis=0), [0.5, -0.3, 0.0], atol=0.03)
    assert found["num_rows"].mean() < 1000
    for center, y in ((0.0, 1.0), (-2.0, 0.3), (1.0, 7.0)):
        third = jax.jacfwd(jax.jacfwd(jax.jacrev(found["loss"])))
        bound = found["sizes"](3, (Ball(jnp.float32(center), 0.5),), y)
        for theta in np.linspace(center - 0.5, center + 0.5, 11):
            assert abs(third(jnp.array([theta]), y).item()) <= bound.item()


def regression(num_rows, rng_key):
    """Covariates and binary responses, with slopes of 1, -0.5 and 0."""
    key_x, key_y = jax.random.split(rng_key)
    x = jax.random.normal(key_x, (num_rows, 3))
    logits = x @ jnp.array([1.0, -0.5, 0.0])
    return x, jax.random.bernoulli(key_y, jax.nn.sigmoid(logits)).astype(jnp.float32)


def logprior(position):
    return -0.5 * jnp.sum(position**2)


@pytest.mark.slow
def test_page_of_amagold(tmp_path, monkeypatch):
    x, y = regression(5000, jax.random.key(0))

    def loglikelihood(position, row):
        covariates, response = row
        logit = covariates @ position
        return response * logit - jax.nn.softplus(logit)

    found = found_by(
        "algorithms/amagold",
        tmp_path,
        monkeypatch,
        logprior_fn=logprior,
        loglikelihood_fn=loglikelihood,
        data=(x, y),
        mode=jnp.array([1.0, -0.5, 0.0]),
        covariance=jnp.eye(3) / 1000,
        rng_key=jax.random.key(1),
        x=x,
        y=y,
        classifier=lambda: None,
    )
    state = found["amagold"].init(jnp.array([1.0, -0.5, 0.0]), jax.random.key(2))
    assert found["amagold"].step(jax.random.key(3), state)[1].acceptance_rate > 0.0
    slope = found["mcmc"].get_samples()["slope"].mean(axis=0)
    np.testing.assert_allclose(slope, [1.0, -0.5, 0.0], atol=0.15)


@pytest.mark.slow
def test_page_of_the_subsampled_test(tmp_path, monkeypatch):
    x, _ = regression(20_000, jax.random.key(0))
    group = jax.random.randint(jax.random.key(1), (20_000,), 0, 8)
    logits = x @ jnp.array([1.0, -0.5, 0.0]) + jnp.linspace(-1.5, 1.5, 8)[group]
    y = jax.random.bernoulli(jax.random.key(6), jax.nn.sigmoid(logits)).astype(int)
    first, second = pages.blocks("algorithms/subsampled")
    found = first.run({"x": x, "y": y, "group": group, "rng_key": jax.random.key(2)})
    slope = found["mcmc"].get_samples()["slope"].mean(axis=0)
    np.testing.assert_allclose(slope, [1.0, -0.5, 0.0], atol=0.1)
    noise = jax.random.t(jax.random.key(3), 4.0, (20_000,))
    given = {"logprior_fn": logprior, "x": x, "y": x[:, 0] + noise, "start": jnp.zeros(3)}
    found = second.run(given)
    state = found["amagold"].init(found["expansion"].position, jax.random.key(4))
    _, info = jax.jit(found["amagold"].step)(jax.random.key(5), state)
    assert info.acceptance_rate > 0.1 and info.num_rows < 5000


@pytest.mark.slow
def test_page_of_auto_nuts(tmp_path, monkeypatch):
    def model(x, y):
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        sd = numpyro.sample("sd", dist.HalfCauchy(5))
        effect = numpyro.sample("effect", dist.Normal(mean, sd).expand([8]).to_event(1))
        numpyro.sample("y", dist.Normal(effect, x).to_event(1), obs=y)

    given = {"model": model, "MCMC": MCMC, "numpyro": numpyro, "jax": jax}
    x, y = jnp.full(8, 10.0), jnp.linspace(-3.0, 28.0, 8)
    found = found_by("algorithms/auto_nuts", tmp_path, monkeypatch, x=x, y=y, **given)
    centredness = found["mcmc"].sampler.centredness(found["mcmc"])
    assert (np.asarray(centredness["effect"]) < 0.5).all()
    trace = numpyro.handlers.trace(numpyro.handlers.seed(found["partly_centred"], 0))
    assert "effect_decentered" in trace.get_trace(x, y)


@pytest.mark.slow
def test_page_of_langevin_smc(tmp_path, monkeypatch):
    found = found_by("algorithms/langevin_smc", tmp_path, monkeypatch)
    assert found["schedule"].temperature[-1, 0] > 0.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
def test_page_of_open_horizon(tmp_path, monkeypatch):
    ocp = pytest.importorskip("orbax.checkpoint")
    run = numpyro_fwd.GOHSMC.run

    def shorter(smc, rng_key, num_steps, *args, **kwargs):
        return run(smc, rng_key, min(num_steps, 100), *args, **kwargs)

    monkeypatch.setattr(numpyro_fwd.GOHSMC, "run", shorter)
    x = jax.random.normal(jax.random.key(5), (50, 3))
    y = jnp.sin(x[:, 0])
    found = found_by(
        "algorithms/open_horizon",
        tmp_path,
        monkeypatch,
        key=jax.random.key(6),
        x_val=x,
        y_val=y,
        x_new=x,
        y_new=y,
        ocp=ocp,
        path=tmp_path / "checkpoint",
    )
    assert abs(found["found"].mean["y"] - y).mean() < 0.3


def test_every_page_with_code_is_tested():
    with_code = {path for path in pages.DOCS.rglob("*.md") if "```python\n" in path.read_text()}
    tested = re.findall(r'"((?:howto|algorithms)/\w+)"', Path(__file__).read_text())
    others = (
        "from_blackjax",
        "adding_a_sampler",
        "index",
        "howto/gpu",
    )
    assert with_code == {pages.DOCS / f"{page}.md" for page in (*tested, *others)}


@pytest.mark.slow
def test_the_page_on_several_devices():
    """Rows of next to no weight change nothing."""
    namespace = {}
    for block in pages.blocks("howto/gpu"):
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
    for part, rooms in zip(
        text.split("| part of `numpyro_fwd`"), (ROOMS, BRIDGE_ROOMS), strict=True
    ):
        lines = re.findall(r"^\| `(\w+)` \| (.*?) ?\| ", part, re.MULTILINE)
        found = {room: set(re.findall(r"`(\w+)`", imports)) for room, imports in lines}
        # "" is the package itself; types are in the first table for both
        code = {room: {name or "numpyro_fwd" for name in rooms[room]} for room in rooms}
        assert found | {"types": set()} == code


def test_no_page_has_two_sides_of_a_merge():
    root = pages.DOCS.parent
    for page in (*root.glob("*.md"), *pages.DOCS.rglob("*.md"), *root.glob("notebooks/*.ipynb")):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^(<{7} |>{7} |={7}$)", text, re.MULTILINE), page


def test_files_named_on_the_pages_exist():
    for page in ("architecture", "adding_a_sampler"):
        text = (pages.DOCS / f"{page}.md").read_text(encoding="utf-8")
        for name in re.findall(r"(?<![\w/])[a-z_]+(?:/[a-z_]+)+\.(?:py|md)\b", text):
            is_example = "malta" in name or name.startswith("my_samplers")
            folders = (ROOT, BRIDGE, ROOT.parent)
            assert is_example or any((folder / name).exists() for folder in folders), name


# --- pages without Sphinx -------------------------------------------------------------------------

# of the reference Sphinx makes all but the names
WRITTEN = sorted(
    path
    for path in pages.DOCS.rglob("*.md")
    if not {"_build", "results", "names"} & set(path.relative_to(pages.DOCS).parts)
)


def prose(path):
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_page_reads_well_where_the_code_is_hosted(path):
    """Roles are shown as they stand there, and most directives as blocks of code."""
    assert not re.search(r"\{[\w:+-]+\}`", prose(path))
    found = re.findall(r"^[`:]{3}\{(\w[\w-]*)\}", path.read_text(encoding="utf-8"), re.MULTILINE)
    allowed = {"toctree", "include", "container"}
    assert set(found) <= (allowed | {"eval-rst"} if path.parent.name == "api" else allowed)
    for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose(path)):
        assert (path.parent / link).exists(), link


def headings(path):
    """Anchors of a page, and of the tables that it holds."""
    text = prose(path)
    found = set(map(front_page.slug, re.findall(r"^#+ (.*)$", text, re.MULTILINE)))
    for name in re.findall(r"^- \[.*\]\(\.\./results/(\w+)\.md\)$", text, re.MULTILINE):
        found |= headings(pages.DOCS / "results" / f"{name}.md")
    return found


def test_links_lead_to_headings():
    for path in (*WRITTEN, ROOT.parent / "README.md", ROOT.parent / "CONTRIBUTING.md"):
        for page, anchor in re.findall(r"\]\(([\w./]*)#([\w-]+)\)", prose(path)):
            assert anchor in headings(path.parent / page if page else path), f"{path}: {anchor}"


def test_names_of_the_packages_on_the_pages_exist():
    for path in WRITTEN:
        for name in re.findall(r"`((?:numpyro_fwd|blackjax_ext)(?:\.\w+)+)", prose(path)):
            pkgutil.resolve_name(name)


def test_each_public_name_has_a_guide():
    """Else name it in the last line of a page, "API: ...", from which the reference links to it."""
    for package in (numpyro_fwd, blackjax_ext):
        names = {f"{package.__name__}.{name}" for name in package.__all__}
        assert names <= reference.guides().keys(), names - reference.guides().keys()


def test_each_page_is_listed_on_its_index():
    """In the tree of pages, which is hidden, and in the list that all readers see."""
    for path in WRITTEN:
        text = path.read_text(encoding="utf-8")
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            for entry in re.findall(r"^[\w./]+$", tree, re.MULTILINE):
                assert re.search(rf"\]\({re.escape(entry)}\.md\)|/{entry}\.ipynb\)", text), entry


def test_versions_are_those_of_the_project():
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    rows = (pages.DOCS / "installation.md").read_text(encoding="utf-8").splitlines()
    for each in (*project["dependencies"], *extras["store"], *extras["nn"], *extras["ode"]):
        name, version = re.match(r"([\w-]+)>=([\d.]+)", each).groups()
        assert any(name in row and version in row for row in rows if row.startswith("|")), each


def texts_of(package):
    """Strings of a package, without what is filled in."""
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [each.value for each in parts if isinstance(each, ast.Constant)]
            yield "".join(each for each in texts if isinstance(each, str))


def test_messages_on_the_page_are_those_of_the_packages():
    known = [*texts_of(ROOT), *texts_of(BRIDGE)]
    page = (pages.DOCS / "howto" / "wrong_posterior.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]*) \|", page.split("## By message")[1], re.MULTILINE)
    for message in re.findall(r"`([^`]+)`", " ".join(cells)):
        parts = re.split(r",? ?\.\.\.,? ?", message)
        assert any(all(part in each for part in parts) for each in known), message
