"""A Bayesian neural network on MNIST, with FashionMNIST as the shift."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from flax import linen
from numpyro.contrib.module import random_flax_module
from numpyro.infer import NUTS, Predictive, init_to_uniform

from benchmarks.amagold.report import REPORT
from benchmarks.harness.data import images
from benchmarks.harness.report import Section
from numpyro_fwd import AMAGOLD, SGHMC, RandomWalk


def pixels(name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (N, 784) from 0 to 1, and labels (N,)."""
    x, y = images(name, part)
    return x.reshape(len(x), -1), y


class Network(linen.Module):
    """The paper's, of two hidden layers."""

    @linen.compact
    def __call__(self, x):
        for width in (500, 256):
            x = linen.relu(linen.Dense(width)(x))
        return linen.Dense(10)(x)


def classifier(x, y=None, batch=None):
    net = random_flax_module("net", Network(), dist.Normal(0, 1), input_shape=(784,))
    with numpyro.plate("rows", len(x), subsample_size=batch) as rows:
        logits = numpyro.deterministic("logits", net(x[rows]))
        numpyro.sample("y", dist.Categorical(logits=logits), obs=None if y is None else y[rows])


def ensemble(
    kernel: Any, data: tuple, num_samples: int, thinning: int, num_warmup: int = 0, z: Any = None
) -> tuple:
    """Draws of the network's parameters after a warm-up, and the acceptance; `z` is the start."""
    state = kernel.init(jax.random.key(7), max(num_warmup, 1), z, data, {})

    def step(data, state, _):
        state = kernel.sample(state, data, {})
        return state, state.accept_prob

    @partial(jax.jit, static_argnums=2)
    def steps(data, state, length):
        return jax.lax.scan(partial(step, data), state, length=length)

    if num_warmup:
        state, _ = steps(data, state, num_warmup)
    draws, rates = [], []
    for _ in range(num_samples):
        state, rate = steps(data, state, thinning)
        draws.append(state.z)
        rates.append(float(jnp.mean(rate)))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *draws), float(np.mean(rates))


def predict(draws: Any, x: np.ndarray) -> np.ndarray:
    """Predictive probabilities (N, 10)."""
    predictive = Predictive(classifier, draws, return_sites=["logits"])
    logits = predictive(jax.random.key(8), jnp.asarray(x))["logits"]
    return np.asarray(jax.nn.softmax(logits.astype(float)).mean(axis=0))


def entropy(probabilities: np.ndarray) -> float:
    """Mean entropy of the predictive distributions; log 10 = 2.30 at most."""
    return float(-np.sum(probabilities * np.log(probabilities + 1e-12), axis=1).mean())


# Zhang, Cooper and De Sa, Table 2: test errors in percent by sampler, b and h
ERRORS = {
    ("SGHMC", 0.01, 0.0005): 3.69,
    ("SGHMC", 0.01, 0.001): 3.77,
    ("SGHMC", 5e-6, 0.0005): 89.95,
    ("SGHMC", 5e-6, 0.001): 89.70,
    ("AMAGOLD", 0.01, 0.0005): 3.63,
    ("AMAGOLD", 0.01, 0.001): 3.65,
    ("AMAGOLD", 5e-6, 0.0005): 3.65,
    ("AMAGOLD", 5e-6, 0.001): 3.63,
}


def minibatch_kernel(name: str, b: float, h: float, num_rows: int) -> Any:
    """AMAGOLD or SGHMC with the settings of the paper, from a network that SGD has trained."""
    step_size = (h / num_rows) ** 0.5
    options: dict[str, Any] = {
        "control_variate": None,
        "resample_momentum": False,
        "num_integration_steps": 10,
        "friction": b / step_size,
        "step_size": step_size,
        "adapt_mass_matrix": False,
        "init_strategy": init_to_uniform(radius=0.06),
        "num_epochs": 3,
        "optimizer": optax.sgd(0.1, momentum=0.9),
    }
    if name == "AMAGOLD":
        options["adapt_step_size"] = False
    make = {"AMAGOLD": AMAGOLD, "SGHMC": SGHMC}[name]
    return make(partial(classifier, batch=num_rows // 30), **options)


def predictions(draws: Any, tests: tuple) -> tuple[float, float, float]:
    """Test error in percent, and mean entropies on the test images and on the shifted ones."""
    (x, y), (shifted, _) = tests
    probabilities = predict(draws, x)
    error = float(100 * np.mean(probabilities.argmax(axis=1) != y))
    return error, entropy(probabilities), entropy(predict(draws, shifted))


def network_row(name: str, b: float, h: float, data: tuple, tests: tuple, num_samples: int) -> list:
    """A row of AMAGOLD or SGHMC."""
    # three transitions of ten minibatches are one epoch
    draws, rate = ensemble(minibatch_kernel(name, b, h, len(data[1])), data, num_samples, 3)
    error, *entropies = predictions(draws, tests)
    return [name, b, h, error, ERRORS[name, b, h], rate, *entropies]


DEPTH = 3  # of the trees of NUTS
NUTS_WARMUP = 19  # from 20 on it restarts in windows, and the last of two steps knows nothing


def peer_rows(data: tuple, tests: tuple, num_samples: int) -> list[list]:
    """The trained network alone, and NUTS and a random walk on all images from there."""
    trained = minibatch_kernel("AMAGOLD", *next(iter(ERRORS))[1:], len(data[1]))
    z = trained.init(jax.random.key(7), 1, None, data, {}).z
    fixed = {"adapt_mass_matrix": False, "step_size": 1e-3}
    nuts = NUTS(classifier, max_tree_depth=DEPTH, **fixed)
    kernels = {  # with steps in a draw and in the warm-up
        "random walk": (RandomWalk(classifier, **fixed), 30, 30 * num_samples),
        f"NUTS, at most {2**DEPTH - 1} leapfrog steps": (nuts, 1, NUTS_WARMUP),
    }
    error, *entropies = predictions(jax.tree.map(lambda leaf: leaf[None], z), tests)
    rows = [["trained network", "", "", error, "", "", *entropies]]
    for name, (kernel, thinning, num_warmup) in kernels.items():
        draws, rate = ensemble(kernel, data, num_samples, thinning, num_warmup, z)
        error, *entropies = predictions(draws, tests)
        rows.append([name, "", "", error, "", rate, *entropies])
    return rows


def network(quick: bool) -> Section:
    """MNIST, with FashionMNIST as the shift."""
    num_rows = 600 if quick else 60_000 if REPORT.is_full else 12_000
    num_test = min(num_rows // 3, 10_000)
    x, y = pixels("mnist", "train")
    data = (jnp.asarray(x[:num_rows]), jnp.asarray(y[:num_rows]))
    tests = tuple(
        tuple(part[:num_test] for part in pixels(name, "t10k")) for name in ("mnist", "fashion")
    )
    settings = [(b, h) for b in (0.01, 5e-6) for h in (0.0005, 0.001)]
    num_draws = 2 if quick else 20
    rows = [
        REPORT.once(
            (name, b, h, num_rows, num_draws), network_row, name, b, h, data, tests, num_draws
        )
        for name in ("SGHMC", "AMAGOLD")
        for b, h in (settings[:1] if quick else settings)
    ]
    errors = {name: [row[3] for row in rows if row[0] == name] for name in ("SGHMC", "AMAGOLD")}
    peers = REPORT.once(("peers", num_rows, num_draws), peer_rows, data, tests, num_draws)
    return Section(
        "A Bayesian network on MNIST",
        f"Two hidden layers of 500 and 256 (523,326 parameters), priors N(0, 1), {num_rows:,} "
        "images in 30 batches, T = 10, irreversible; 3 epochs of SGD with momentum as the start; "
        "20 draws, one per epoch; no adaptation. b and h as in Table 2, with h in units of the "
        "number of rows: step size sqrt(h / N), friction b / step size; the paper does not say its "
        "units, and its SGHMC diverges where b is small, which ours does not. Errors on "
        f"{num_test:,} test images; mean entropies of the predictive distributions there and on "
        "FashionMNIST, where larger is better. The trained network is the start of all; from there "
        f"NUTS and a random walk, on all images, adapt their step size, in {NUTS_WARMUP} steps and "
        "in as many as are sampled: a draw is a tree of NUTS, and 30 steps of the random walk. "
        "`--full` takes the paper's 60,000 images, of which its errors are.",
        [
            *("sampler", "b", "h", "test error, %", "paper, %", "acceptance", "entropy"),
            "entropy, shifted",
        ],
        [*peers, *rows],
        [("worst / best error of AMAGOLD", max(errors["AMAGOLD"]) / min(errors["AMAGOLD"]), 1.1)],
    )
