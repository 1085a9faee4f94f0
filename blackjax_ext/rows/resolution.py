"""Whether floats resolve a mode and what is around it.

*How correlated.* The condition number is the root of the ratio of the extreme eigenvalues of the
posterior's curvature, scaled to a unit diagonal: about 2 m for a covariate whose mean is m of its
standard deviations, 1 without correlation, whatever the units.
"""

from typing import Any

import jax
import numpy as np

from blackjax_ext.metrics.structures import Dense
from blackjax_ext.rows.arrowhead import Whitening, worst_condition
from blackjax_ext.rows.newton import TOLERANCES, HostPosition, spacing

IN_DOUBLE = "(jax.config.update('jax_enable_x64', True), with data in float64)."
RUNAWAY = (
    " A sampled scale, such as the standard deviation of centred groups, may tend to zero, where "
    "the density is unbounded: then there is no mode. A non-centred parametrization has a mode "
    '(use it with acceptance="full"); samplers without a control variate need no mode.'
)
UNRESOLVED = (
    "the condition number of the posterior is {:.2g}, and energies are accurate up to {:.0f} only: "
    "{} has too few digits for coordinates that are so correlated. If covariates are far from "
    "zero, subtract their means (the intercept absorbs them); leave out one that others determine; "
    "or use float64, which allows {:.0e} times as much "
) + (IN_DOUBLE + RUNAWAY)
TOO_NARROW = (
    "the posterior is too narrow for {} where Newton's method ends: floats there are {:.2g} "
    "standard deviations apart in its narrowest direction, and at most {} is allowed. Coordinates "
    "far from zero have few digits: subtract a mean from the data, or use float64 "
) + (IN_DOUBLE + RUNAWAY)


class UnresolvedError(ValueError):
    """Floats do not resolve the posterior."""


def check_resolution(point: HostPosition, frame: Whitening) -> None:
    r"""Raise ValueError if floats do not resolve the posterior around a position.

    `frame` is that of its curvature. Up to a condition number of 6e-4 / eps, 5,000 in float32,
    energies around the mode are right to 0.01: the whitened position :math:`w = R^{-1} (x - a)` and
    the whitened rows :math:`A_i R` are sums that cancel to one part of the condition number, of
    which each has the rounding eps, and the energy is :math:`|w|^2 / 2`. And floats around the mode
    must be closer together than a tenth of a standard deviation of the narrowest direction, or a
    chain would jump between them.
    """
    eps, dtype = point.eps, point.shared.dtype
    condition, steps = worst_condition(frame), spacing(point, frame)
    if not condition <= TOLERANCES.rounding / eps:
        more, most = eps / float(np.finfo(np.float64).eps), TOLERANCES.rounding / eps
        raise UnresolvedError(UNRESOLVED.format(condition, most, dtype, more))
    if not steps <= TOLERANCES.spacing:
        raise UnresolvedError(TOO_NARROW.format(dtype, steps, TOLERANCES.spacing))


def in_dtype(metric: Dense, dtype: Any) -> Dense:
    """A metric of the host for the device."""
    placed: Dense = jax.device_put(jax.tree.map(lambda part: np.asarray(part, dtype), metric))
    return placed
