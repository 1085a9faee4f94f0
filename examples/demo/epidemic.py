"""One solve a draw.

In 1978 influenza came to a boarding school. A solver with adaptive steps follows the boys to bed
and back to class; its loop has no reverse mode. Emulated learns what it returns: an emulator
proposes, and one solve with the exact density accepts or rejects.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import NUTS

from examples.demo import style
from examples.demo.chains import Chains, sample
from examples.demo.chapter import Results, code_of
from numpyro_fwd import Emulated, RandomWalk, expensive

CHANGE = ("mcmc = MCMC(NUTS(model), ...)", "mcmc = MCMC(Emulated(model), ...)")
BOYS, DAYS = 763, np.arange(1.0, 15.0)
IN_BED = [3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4]
UP = [0, 0, 0, 0, 9, 17, 105, 162, 176, 166, 150, 85, 47, 20]  # and not yet in class
COUNTS = np.array([IN_BED, UP]).T
USUAL = jnp.array([2.0, 1.0, 0.5, 0.5, 2.0])  # infects, lies down, gets up, is well; first cases


def outbreak(rates):
    """Boys in bed and up again on each day, (14, 2), of rates a day and the first cases."""
    import diffrax

    def slope(t, y, args):
        flows = rates[:4] * y * jnp.stack([y[1] / BOYS, 1.0, 1.0, 1.0])
        return jnp.pad(flows[:-1], (1, 0)) - flows

    solution = diffrax.diffeqsolve(
        *(diffrax.ODETerm(slope), diffrax.Tsit5(), 0.0, DAYS[-1], None),
        jnp.stack([BOYS - rates[4], rates[4], 0.0, 0.0]),
        saveat=diffrax.SaveAt(ts=DAYS),
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-4),
        adjoint=diffrax.ForwardMode(),
        max_steps=500,
        throw=False,
    )
    return solution.ys[:, 2:]


def model(counts):
    """The solver is marked as what is dear."""
    rates = numpyro.sample("rates", dist.LogNormal(jnp.log(USUAL), 0.5).to_event(1))
    spread = numpyro.sample("spread", dist.LogNormal(2.0, 1.0).expand([2]).to_event(1))
    mean = expensive(outbreak)(rates) + 0.01
    numpyro.sample("counts", dist.NegativeBinomial2(mean, spread), obs=counts)


def work_through(seed: int, quick: bool) -> Results:
    """Sample with an emulator, and without."""
    keys = jax.random.split(jax.random.key(seed), 3)
    size, of_walk = (100, (500, 1000)) if quick else (1000, (2000, 15_000))
    kernel = Emulated(model)
    runs = {
        "Emulated": run(kernel, keys[1], 50, size, "num_solves"),
        "random walk": run(RandomWalk(model, dense_mass=True), keys[2], *of_walk),
    }
    mcmc = runs["Emulated"].mcmc
    report, fields = kernel.emulator(mcmc), mcmc.get_extra_fields(group_by_chain=True)
    solves = report.num_solves + report.num_jvps + int(fields["num_solves"][:, -1].sum())
    asked = solves, 4 * sum(of_walk)
    rows = [row(*each) for each in zip(runs, runs.values(), asked, strict=True)]
    each = {name: float(cells[4]) for name, *cells in rows}
    return Results(
        ("", "days in bed", "sd", "solves", "ESS", "solves each", "R-hat", "seconds", "compile, s"),
        [("NUTS, defaults", *["fails"] * 2, *[""] * 6), *rows],
        "Solves: with warm-up, and with all solves and JVPs that Emulated learns from. ESS of the "
        "worst parameter, four chains; solves each: for one of these effective draws.",
        draw(runs["Emulated"], each, keys[0]),
        "Left: 90 % of predicted counts, and the data. Right: solves for an effective draw.",
        f"NUTS fails with its defaults: “{complaint(keys[0])}.” An effective draw takes "
        f"{each['Emulated']} solves with Emulated and {each['random walk']} with a random walk.",
        code_of(*CHANGE, outbreak, model),
    )


def run(kernel, key, warmup: int, draws: int, *fields: str) -> Chains:
    """Four chains."""
    return sample(kernel, key, COUNTS, num_warmup=warmup, num_samples=draws, fields=fields)


def complaint(key) -> str:
    """The error of NUTS in one line."""
    try:
        run(NUTS(model), key, 1, 1)
    except Exception as error:  # of whatever type this version of JAX raises
        return " ".join(str(error).split(". ")[0].split()).rstrip(".")
    return "no error"


def row(name: str, chains: Chains, asked: int) -> tuple[str, ...]:
    """Cells of a sampler."""
    (ess, r_hat), days = chains.worst(), 1 / chains.draws("rates")[:, 2]
    cells = f"{days.mean():.3f}", f"{days.std():.3f}", f"{asked:,}", f"{ess:.0f}"
    return (name, *cells, f"{asked / ess:.1f}", f"{r_hat:.3f}", *chains.times)


def draw(chains: Chains, each: dict[str, float], key):
    """Predicted counts beside the data, and solves for an effective draw."""
    figure, (left, right) = style.sheet(2)
    rates, spread = (jnp.asarray(chains.draws(name)[::8]) for name in ("rates", "spread"))
    mean = jax.vmap(outbreak)(rates) + 0.01
    counts = dist.NegativeBinomial2(mean, spread[:, None]).sample(key)
    low, high = np.quantile(counts, (0.05, 0.95), axis=0)
    for i, (name, look) in enumerate((("in bed", style.OURS), ("up again", style.OTHER))):
        left.fill_between(DAYS, low[:, i], high[:, i], color=look.color, alpha=0.3, label=name)
        left.plot(DAYS, COUNTS[:, i], look.marker, color=look.color, ms=4)
    left.set(xlabel="day", ylabel="boys")
    style.legend_above(left)
    colors = style.OURS.color, style.OTHER.color
    right.bar(list(each), list(each.values()), color=colors)
    right.set(ylabel="solves for an effective draw")
    return figure
