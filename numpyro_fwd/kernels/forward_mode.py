"""The named kernels of the forward-mode family."""

from typing import Unpack

from blackjax_ext.checks import check_positive
from blackjax_ext.mcmc.fmala import fmala
from blackjax_ext.mcmc.line_fmala import line_fmala
from blackjax_ext.mcmc.pc_fmala import pc_fmala
from blackjax_ext.mcmc.pc_line_fmala import CURVATURE_FLOOR, pc_line_fmala
from blackjax_ext.mcmc.tangents import TangentLaw, check
from numpyro_fwd.kernels.base import BlackJAXKernel
from numpyro_fwd.kernels.options import KernelOptions
from numpyro_fwd.types import Model

__all__ = ["FMALA", "PCFMALA", "LineFMALA", "PCLineFMALA"]


class FMALA(BlackJAXKernel):
    """Forward-mode MALA (Cobb and Jha, Algorithm 1): no reverse pass.

    One JVP per step and tangent. `target_accept_prob` is 0.3 + 0.27 K/D by default.

    Parameters
    ----------
    model
        NumPyro model.
    num_tangents
        K in 1..D tangents; K = D is MALA in forward mode.
    persistent_tangent
        Keep the tangent between steps; False costs a second JVP.
    tangents
        "rademacher" or "sphere".
    options
        See :class:`BlackJAXKernel`.
    """

    def __init__(
        self,
        model: Model | None = None,
        *,
        num_tangents: int = 1,
        persistent_tangent: bool = True,
        tangents: TangentLaw = "rademacher",
        **options: Unpack[KernelOptions],
    ):
        check(num_tangents, tangents)
        self._num_tangents = num_tangents
        super().__init__(
            model,
            fmala,
            differentiation="forward",
            num_tangents=num_tangents,
            persistent_tangent=persistent_tangent,
            tangents=tangents,
            **options,
        )

    def best_accept_prob(self, size: int) -> float:
        """Between a random walk's and MALA's, by the share of the gradient that is seen."""
        return 0.3 + 0.27 * min(self._num_tangents / size, 1.0)


class LineFMALA(BlackJAXKernel):
    """Line forward-mode MALA (Cobb and Jha, Algorithm 2): a Langevin move along a random line.

    Two JVPs per step and tangent. `target_accept_prob` is 0.57 + 0.1/K by default.

    Parameters
    ----------
    model
        NumPyro model.
    num_tangents
        K in 1..D: dimension of the subspace the move explores.
    tangents
        "rademacher" or "sphere".
    options
        See :class:`BlackJAXKernel`.
    """

    def __init__(
        self,
        model: Model | None = None,
        *,
        num_tangents: int = 1,
        tangents: TangentLaw = "rademacher",
        **options: Unpack[KernelOptions],
    ):
        check(num_tangents, tangents)
        self.best_accept_prob = 0.57 + 0.1 / num_tangents  # that of a K-dimensional MALA
        super().__init__(
            model,
            line_fmala,
            differentiation="forward",
            num_tangents=num_tangents,
            tangents=tangents,
            **options,
        )


class PCFMALA(BlackJAXKernel):
    """Preconditioned forward-mode MALA (Cobb and Jha, Algorithm 3): steps scaled by curvature.

    One second-order JVP per step. `target_accept_prob` is 0.3 + 0.27 / D by default.

    Parameters
    ----------
    model
        NumPyro model.
    curvature_floor
        Lower bound > 0 of the curvature along a tangent.
    persistent_tangent
        Keep the tangent between steps; False costs a second JVP.
    tangents
        "rademacher" or "sphere".
    options
        See :class:`BlackJAXKernel`.
    """

    def __init__(
        self,
        model: Model | None = None,
        *,
        curvature_floor: float = CURVATURE_FLOOR,
        persistent_tangent: bool = True,
        tangents: TangentLaw = "rademacher",
        **options: Unpack[KernelOptions],
    ):
        check_positive("curvature_floor", curvature_floor)
        check(1, tangents)
        super().__init__(
            model,
            pc_fmala,
            differentiation="forward",
            curvature_floor=curvature_floor,
            persistent_tangent=persistent_tangent,
            tangents=tangents,
            **options,
        )

    def best_accept_prob(self, size: int) -> float:
        """Best acceptance rate, which is FMALA's with one tangent."""
        return 0.3 + 0.27 / size


class PCLineFMALA(BlackJAXKernel):
    """Preconditioned line forward-mode MALA (Cobb and Jha, Algorithm 4).

    Two second-order JVPs per step, 2 K^2 for K tangents. `target_accept_prob` is
    0.57 + 0.1/K by default.

    Parameters
    ----------
    model
        NumPyro model.
    num_tangents
        K in 1..D: dimension of the subspace the move explores.
    curvature_floor
        Lower bound > 0 of the curvature in the subspace.
    tangents
        "rademacher" or "sphere".
    options
        See :class:`BlackJAXKernel`.
    """

    def __init__(
        self,
        model: Model | None = None,
        *,
        num_tangents: int = 1,
        curvature_floor: float = CURVATURE_FLOOR,
        tangents: TangentLaw = "rademacher",
        **options: Unpack[KernelOptions],
    ):
        check(num_tangents, tangents)
        check_positive("curvature_floor", curvature_floor)
        self.best_accept_prob = 0.57 + 0.1 / num_tangents  # as LineFMALA's
        super().__init__(
            model,
            pc_line_fmala,
            differentiation="forward",
            num_tangents=num_tangents,
            curvature_floor=curvature_floor,
            tangents=tangents,
            **options,
        )
