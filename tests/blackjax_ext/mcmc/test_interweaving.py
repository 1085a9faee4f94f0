"""Hierarchies of effects given by locations and scales."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blackjax_ext.mcmc.interweaving import LocScale, LocScaleHierarchy, is_loc_scale


def siblings(num):
    """Effects that share a scale."""

    def laws(z):
        scale = jnp.exp(z["scale"])
        return {"scale": None, **{f"x{i}": LocScale(0.0, scale) for i in range(num)}}

    return laws, {"scale": jnp.array(0.5), **{f"x{i}": jnp.ones(3) for i in range(num)}}


def nested(names):
    """Each effect is about the one before; `names` say in which order the leaves are."""

    def laws(z):
        before = [0.0, *(z[name] for name in names)]
        scale = jnp.exp(z["scale"])
        laws = {n: LocScale(m, scale + m**2) for n, m in zip(names, before, strict=False)}
        return {"scale": None, **laws}

    return laws, {"scale": jnp.array(-1.0), **{n: jnp.array(0.3 + i) for i, n in enumerate(names)}}


def as_one_program(laws):
    """Laws that show nothing of what is computed from what."""

    def packed(z):
        found = jax.jit(lambda z: jax.tree.map(jnp.asarray, laws(z)))(z)
        return {name: found[name] for name in z}

    return packed


def test_programs_grow_with_the_number_of_effects_not_with_its_square():
    def equations(num):
        laws, z = siblings(num)
        flags = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, bool), z)
        found = LocScaleHierarchy(laws)
        return len(jax.make_jaxpr(found.outcomes)(z, flags).eqns)

    assert equations(16) < 2.1 * equations(8)


@pytest.mark.parametrize("names", ["abcd", "dcba", "bdac"])
@pytest.mark.parametrize("hide", [lambda laws: laws, as_one_program])
def test_noise_leads_back_through_all_levels(names, hide):
    laws, noise = nested(names)
    found = LocScaleHierarchy(hide(laws))
    flags = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, bool), noise)
    assert found.depth(noise) == 4
    position, log_det = jax.jit(found.outcomes)(noise, flags)
    sizes = [
        jnp.log(law.scale) for law in jax.tree.leaves(laws(position), is_leaf=is_loc_scale) if law
    ]
    np.testing.assert_allclose(log_det, sum(sizes), rtol=1e-5)
    back = found.noise(position, flags)
    for name in names:
        np.testing.assert_allclose(back[name], noise[name], rtol=1e-4)


@pytest.mark.parametrize(("num", "hide"), [(1, None), (5, None), (5, as_one_program)])
def test_depth_is_that_of_the_hierarchy(num, hide):
    """Also of laws that are a program within a program."""
    laws, z = siblings(num)
    assert LocScaleHierarchy(hide(laws) if hide else laws).depth(z) == 1


def test_planted_too_few_levels(monkeypatch):
    monkeypatch.setattr(LocScaleHierarchy, "depth", lambda self, position: 3)
    with pytest.raises(AssertionError):
        test_noise_leads_back_through_all_levels("abcd", lambda laws: laws)
