"""The named kernels of the forward-mode family."""

from blackjax_ext.mcmc.fmala import fmala
from blackjax_ext.mcmc.line_fmala import line_fmala
from blackjax_ext.mcmc.pc_fmala import pc_fmala
from blackjax_ext.mcmc.pc_line_fmala import pc_line_fmala
from numpyro_fwd.kernels.named import NamedKernel


class FMALA(NamedKernel):
    """Forward-mode MALA (Cobb and Jha, Algorithm 1): no reverse pass.

    One JVP per step and tangent. `target_accept_prob` is 0.3 + 0.27 K/D by default.
    """

    algorithm = fmala
    differentiation = "forward"

    def best_accept_prob(self, size: int) -> float:
        """Between a random walk's and MALA's, by the share of the gradient that is seen."""
        return 0.3 + 0.27 * min(self._algorithm.parameters["num_tangents"] / size, 1.0)


class LineFMALA(NamedKernel):
    """Line forward-mode MALA (Cobb and Jha, Algorithm 2): a Langevin move along a random line.

    Two JVPs per step and tangent. `target_accept_prob` is 0.57 + 0.1/K by default.
    """

    algorithm = line_fmala
    differentiation = "forward"

    def best_accept_prob(self, size: int) -> float:
        """That of a K-dimensional MALA."""
        del size
        return 0.57 + 0.1 / self._algorithm.parameters["num_tangents"]


class PCFMALA(NamedKernel):
    """Preconditioned forward-mode MALA (Cobb and Jha, Algorithm 3): steps scaled by curvature.

    One second-order JVP per step. `target_accept_prob` is 0.3 + 0.27 / D by default.
    """

    algorithm = pc_fmala
    differentiation = "forward"

    def best_accept_prob(self, size: int) -> float:
        """Best acceptance rate, which is FMALA's with one tangent."""
        return 0.3 + 0.27 / size


class PCLineFMALA(NamedKernel):
    """Preconditioned line forward-mode MALA (Cobb and Jha, Algorithm 4).

    Two second-order JVPs per step, 2 K^2 for K tangents. `target_accept_prob` is
    0.57 + 0.1/K by default.
    """

    algorithm = pc_line_fmala
    differentiation = "forward"
    best_accept_prob = LineFMALA.best_accept_prob
