"""Acceptance tests that read some of the rows: what they are made of, and how often they err."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import blackjax_ext
from blackjax_ext import minibatch_tests, potentials
from blackjax_ext.rows import row_terms, shuffles
from blackjax_ext.sgmcmc.approximate_tests import RowMoments, merge, student_tail

NUM_ROWS = 2000
Y = np.random.default_rng(70).exponential(size=NUM_ROWS).astype(np.float32)
OLD, NEW = jnp.array(0.0), jnp.array(0.03)


def loglikelihood(x, y):
    """Skewed terms, whose sum over all rows moves a few units from OLD to NEW."""
    return x - y * jnp.exp(x)


POTENTIAL = potentials.minibatch(lambda x: -0.5 * x**2, loglikelihood, Y, 10)


def verdicts(acceptance, num_keys, potential=POTENTIAL, old=OLD, new=NEW):
    """Decisions of a test on one proposal, a function of the exact log ratio with `rho`."""
    keys = jax.random.split(jax.random.key(71), num_keys)
    gap = log_ratio(potential, old, new)

    @jax.jit
    def decide(rho):
        cache = acceptance.init(potential, old)
        return jax.vmap(lambda key: acceptance.test(key, potential, old, cache, new, rho))(keys)

    return lambda wanted: decide(jnp.float32(wanted - gap))


def log_ratio(potential, old, new):
    """The exact one, without the accumulator."""
    found = potential.rows
    every = row_terms.change(found, old, new, jnp.arange(found.num_rows))
    return float(row_terms.gain(found, old, new) + jnp.sum(every))


@pytest.mark.parametrize("size", [1, 12, 1000])
def test_shuffles_are_permutations(size):
    images = shuffles.shuffled(jax.random.key(3), jnp.arange(size), size)
    assert np.array_equal(np.sort(images), np.arange(size))


@pytest.mark.statistical
def test_shuffles_are_random():
    size, keys = 12, jax.random.split(jax.random.key(1), 20_000)
    draw = jax.jit(jax.vmap(lambda key: shuffles.shuffled(key, jnp.arange(size), size)))
    images = np.asarray(draw(keys))
    for a, b in ((0, 1), (3, 7), (0, 11)):
        pairs = np.zeros((size, size))
        np.add.at(pairs, (images[:, a], images[:, b]), 1)
        counts = pairs[~np.eye(size, dtype=bool)]
        assert counts.sum() == len(keys)
        assert scipy.stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("size", "num"), [(1, 1), (9, 9), (40, 30), (40, 20), (100_000, 300)])
def test_distinct_rows_are_distinct(size, num):
    rows = np.asarray(shuffles.distinct(jax.random.key(5), size, num))
    assert rows.shape == (num,) == np.unique(rows).shape
    assert rows.min() >= 0 and rows.max() < size


@pytest.mark.statistical
def test_distinct_rows_are_every_tuple_alike():
    """Three of six in order, where a round repeats some of them with probability 4/9."""
    size, num, draws = 6, 3, 24_000
    draw = jax.jit(jax.vmap(lambda key: shuffles.distinct(key, size, num)))
    rows = np.asarray(draw(jax.random.split(jax.random.key(6), draws)))
    counts = np.bincount(rows @ size ** np.arange(num), minlength=size**num)
    counts = counts[counts > 0]
    assert counts.size == 120
    assert scipy.stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.statistical
@pytest.mark.parametrize("size", [1, 7, 1000, 1_500_000_000])
def test_rows_with_replacement_are_uniform_and_independent(size):
    rows = np.asarray(shuffles.with_replacement(jax.random.key(7), size, 100_000))
    assert rows.min() >= 0 and rows.max() < size
    cells = min(size, 40)
    cell = rows.astype(np.int64) * cells // size
    pairs = np.zeros((cells, cells))
    np.add.at(pairs, (cell[:-1], cell[1:]), 1)
    for counts in (np.bincount(cell, minlength=cells), pairs.ravel()):
        of_size = np.diff(-(-np.arange(cells + 1) * size // cells)) / size
        share = of_size if counts.size == cells else np.outer(of_size, of_size).ravel()
        assert size == 1 or scipy.stats.chisquare(counts, counts.sum() * share).pvalue > 1e-4


@pytest.mark.parametrize("size", [1, 3, 1000, 2**16, 2**20 + 7, 2**31 - 1])
def test_words_are_scaled_to_the_last_bit(size):
    """Against whole numbers of any length, at the ends and where carries are."""
    words = np.random.default_rng(8).integers(0, 2**32, (2, 5000), np.uint64)
    words[:, :4] = [[0, 0, 2**32 - 1, 2**32 - 1], [0, 2**32 - 1, 0, 2**32 - 1]]
    multiple = np.array(
        [i * 2**64 // size for i in range(1, 1000)], object
    )  # the last fraction below a step, and the next
    words[:, 4:1003] = [multiple - 1 >> 32 & 2**32 - 1, multiple - 1 & 2**32 - 1]
    words[:, 1003:2002] = [multiple >> 32 & 2**32 - 1, multiple & 2**32 - 1]
    found = np.asarray(shuffles.times_fraction(jnp.asarray(words, jnp.uint32), size))
    whole = [((int(high) << 32) + int(low)) * size >> 64 for high, low in words.T]
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("name", ["amagold", "l2mc", "sghmc"])
def test_no_friction_needs_no_noise(name):
    """The draws are those of a friction of zero that nobody knows, which multiplies the noise."""
    kernel = getattr(blackjax_ext, name).build_kernel()
    state = getattr(blackjax_ext, name).init(OLD, POTENTIAL)
    options = {"step_size": 0.01, "num_integration_steps": 3}

    @jax.jit
    def run(friction):
        return kernel(jax.random.key(9), state, POTENTIAL, friction=friction, **options)[0]

    known = kernel(jax.random.key(9), state, POTENTIAL, friction=0.0, **options)[0]
    np.testing.assert_allclose(run(jnp.float32(0.0)).position, known.position, rtol=1e-5)


def test_moments_are_merged(x64):
    values = jnp.asarray(Y[:25], float)
    moments = RowMoments(jnp.array(0), jnp.zeros(()), jnp.zeros(()))
    for first in (0, 10, 20):
        is_new = first + jnp.arange(10) < 25
        moments = merge(moments, jnp.pad(values, (0, 5))[first : first + 10], is_new)
    np.testing.assert_allclose(moments.mean, values.mean())
    np.testing.assert_allclose(moments.squares, values.var() * 25)
    expected = np.sqrt(values.var(ddof=1) / 25 * (1 - 24 / 99))
    np.testing.assert_allclose(moments.deviation(100), expected)
    assert moments.deviation(25) == 0.0


@pytest.mark.parametrize("degrees", [3, 50, 10_000])
@pytest.mark.parametrize(("is_double", "accuracy"), [(True, 1e-9), (False, 0.005)])
def test_tail_is_that_of_student(degrees, is_double, accuracy):
    t = np.array([0.0, 0.5, 2.0, 3.0, np.inf])
    with jax.enable_x64(is_double):
        found = jax.vmap(student_tail, (0, None))(jnp.asarray(t), jnp.array(degrees))
        np.testing.assert_allclose(found, scipy.stats.t.sf(t, degrees), rtol=accuracy)


def test_correction_makes_a_normal_logistic():
    x, cumulated = minibatch_tests.correction()
    probabilities = np.diff(cumulated, prepend=0.0)
    assert probabilities.min() >= 0.0 and cumulated[-1] == pytest.approx(1.0)
    y = np.linspace(-8.0, 8.0, 801)
    found = scipy.special.ndtr(y[:, None] - x) @ probabilities
    assert np.abs(found - scipy.special.expit(y)).max() < 1e-3


def test_barker_accepts_as_often_as_the_logistic_function():
    num_keys = 4000
    decide = verdicts(minibatch_tests.barker_test(batch_size=100), num_keys)
    for wanted in (-1.5, 0.0, 1.0):
        found, probability = decide(wanted), scipy.special.expit(wanted)
        error = (found.is_accepted.mean() - probability) / np.sqrt(0.25 / num_keys)
        assert abs(error) < 4.0, error
        assert 100 < found.num_rows.mean() < NUM_ROWS


def test_sequential_errs_more_often_the_fewer_rows_it_reads():
    # with the same keys the threshold is the same; all rows read, the decision is exact
    every = minibatch_tests.sequential_test(batch_size=NUM_ROWS)
    right = verdicts(every, 1000)(-0.7).is_accepted
    rates, reads = [], []
    for error in (0.2, 0.01):
        test = minibatch_tests.sequential_test(error=error, batch_size=200)
        found = verdicts(test, 1000)(-0.7)
        rates.append(np.mean(found.is_accepted != right))
        reads.append(found.num_rows.mean())
    assert 0.0 < rates[1] < 0.5 * rates[0] < 0.2
    assert reads[0] < 0.7 * reads[1] < 0.7 * NUM_ROWS


def test_sequential_is_exact_when_all_rows_are_read():
    num_keys = 2000
    decide = verdicts(minibatch_tests.sequential_test(batch_size=NUM_ROWS), num_keys)
    for wanted in (-2.0, -0.3, 0.5):
        found, probability = decide(wanted), min(1.0, np.exp(wanted))
        np.testing.assert_allclose(found.acceptance_rate, probability, rtol=1e-3)
        error = found.is_accepted.mean() - probability
        assert abs(error) < 4 * np.sqrt(0.25 / num_keys)


def test_an_anchor_saves_rows():
    anchor = jnp.array(0.0)
    improved = potentials.control_variate(POTENTIAL, anchor, order=2)
    for test in (minibatch_tests.sequential_test, minibatch_tests.barker_test):
        plain, few = (
            verdicts(test(batch_size=20), 50, potential)(-0.7)
            for potential in (POTENTIAL, improved)
        )
        assert few.num_rows.max() == 20 < plain.num_rows.mean()
        assert 0 < few.is_accepted.sum() < 50


def test_log_density_is_nan_where_no_test_evaluates_it():
    sampler = blackjax_ext.amagold(POTENTIAL, 0.1, acceptance=minibatch_tests.barker_test())
    assert np.isnan(sampler.init(OLD).logdensity)


@pytest.mark.parametrize(
    "make",
    [minibatch_tests.sequential_test, minibatch_tests.barker_test],
    ids=["sequential", "barker"],
)
def test_proposals_that_are_not_finite_are_rejected(make):
    test = make()
    found = test.test(jax.random.key(0), POTENTIAL, OLD, (), jnp.array(jnp.nan), jnp.array(0.0))
    assert found.is_divergent and not found.is_accepted and found.acceptance_rate == 0.0


def test_full_pass_counts_its_rows():
    sampler = blackjax_ext.amagold(POTENTIAL, 1e-3)
    _, info = sampler.step(jax.random.key(0), sampler.init(OLD))
    assert info.num_rows == NUM_ROWS
    potential = potentials.full_batch(lambda x: -0.5 * x**2)
    sampler = blackjax_ext.amagold(potential, 0.1)
    assert sampler.step(jax.random.key(0), sampler.init(OLD))[1].num_rows == 0


def test_bad_input_raises():
    with pytest.raises(ValueError, match=r"error must be between 0 and 1/2; got 0\.5"):
        minibatch_tests.sequential_test(error=0.5)
    for make in (minibatch_tests.sequential_test, minibatch_tests.barker_test):
        with pytest.raises(ValueError, match="batch_size must be at least 2; got 1"):
            make(batch_size=1)
        with pytest.raises(TypeError, match="batch_size must be a whole number"):
            make(batch_size=2.5)
        potential = potentials.full_batch(lambda x: -0.5 * x**2)
        with pytest.raises(ValueError, match="potential must have rows"):
            blackjax_ext.amagold(potential, 0.1, acceptance=make()).init(OLD)
    with pytest.raises(TypeError, match="acceptance must be an Acceptance"):
        blackjax_ext.amagold(POTENTIAL, 0.1, acceptance="sequential")
