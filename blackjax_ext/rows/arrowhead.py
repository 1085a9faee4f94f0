r"""Block arrowhead matrices, and coordinates in which one is the identity.

The curvature of shared coordinates y and groups b is an *arrow* (a block arrowhead matrix): dense
for y, a block of d for each group, and what couples a group with y; no two groups are coupled. So
is its Cholesky factor if groups come first. A :class:`Whitening` has its inverse,

.. math::
    y = y_0 + L u, \qquad b_c = b_{0c} + K_c u + M_c v_c,

with :math:`M_c M_c^T = H_{cc}^{-1}`, :math:`K_c = -H_{cc}^{-1} H_{cy} L` and :math:`L L^T` the
inverse of the Schur complement :math:`H_{yy} - \sum_c H_{yc} H_{cc}^{-1} H_{cy}`. Where the density
is normal, u and all v are independent and standard normal: a move of u at fixed v takes the groups
along. Products cost :math:`D d + G d p` instead of :math:`D^2`.

Without groups, G = 1 and d = 0, the arrow is a gradient and a Hessian.
"""

from typing import Any, NamedTuple

import numpy as np

from blackjax_ext.metrics.factors import scaled_eigen


class Arrow(NamedTuple):
    """Slopes and curvatures by shared coordinates and groups, on the device or the host.

    Attributes
    ----------
    shared, groups
        Gradient, shapes (p,) and (G, d).
    of_shared, coupling, of_groups
        Second derivatives, shapes (p, p), (G, d, p) and (G, d, d).
    """

    shared: Any
    groups: Any
    of_shared: Any
    coupling: Any
    of_groups: Any


class Cubic(NamedTuple):
    """Third derivatives by shared coordinates and the groups' own.

    Attributes
    ----------
    of_shared
        By shared coordinates alone, shape (p, p, p).
    once, twice
        Once and twice by the groups', shapes (G, d, p, p) and (G, d, d, p).
    of_groups
        By those of a group alone, shape (G, d, d, d).
    """

    of_shared: Any
    once: Any
    twice: Any
    of_groups: Any


class Whitening(NamedTuple):
    """Coordinates u and v; see the module.

    Attributes
    ----------
    root, root_inverse
        L and its inverse, shapes (p, p).
    shear
        K, shape (G, d, p).
    roots, roots_inverse
        M and their inverses, shapes (G, d, d).
    """

    root: Any
    root_inverse: Any
    shear: Any
    roots: Any
    roots_inverse: Any

    def steps(self, u: Any, v: Any) -> tuple[Any, Any]:
        """``y - y_0`` and ``b - b_0``."""
        groups = (self.shear @ u) + (self.roots @ v[..., None])[..., 0]
        return self.root @ u, groups

    def rounded(self, dtype: Any) -> "Whitening":
        """The coordinates as the floats of a type have them, in double precision."""
        root, shear, roots = (
            np.asarray(part, dtype).astype(np.float64)
            for part in (self.root, self.shear, self.roots)
        )
        return Whitening(root, np.linalg.inv(root), shear, roots, np.linalg.inv(roots))

    def is_first(self) -> bool:
        """Whether these are the coordinates themselves, which know of no spread."""
        return not self.shear.any() and bool((self.roots == np.eye(self.roots.shape[-1])).all())

    def coordinates(self, shared: Any, groups: Any) -> tuple[Any, Any]:
        """The coordinates u and v of ``y - y_0`` and ``b - b_0``."""
        u = self.root_inverse @ shared
        rest = groups - self.shear @ u
        return u, (self.roots_inverse @ rest[..., None])[..., 0]


def identity_whitening(size: int, num_groups: int, width: int) -> Whitening:
    """The coordinates themselves."""
    eye, eyes = np.eye(size), np.broadcast_to(np.eye(width), (num_groups, width, width))
    return Whitening(eye, eye, np.zeros((num_groups, width, size)), eyes, eyes)


class Eliminated(NamedTuple):
    """An arrow whose groups are eliminated.

    Attributes
    ----------
    schur
        Schur complement of the shared coordinates, shape (p, p).
    slope
        Their gradient less what the groups take, shape (p,).
    inverse_roots
        B, with B B^T the inverse of the absolute blocks of the groups, shape (G, d, d).
    shift
        How the groups follow the shared coordinates, -H_cc^{-1} H_cy, shape (G, d, p).
    """

    schur: np.ndarray
    slope: np.ndarray
    inverse_roots: np.ndarray
    shift: np.ndarray

    def solved(self, slopes: np.ndarray) -> np.ndarray:
        """The inverse of the blocks of the groups times `slopes`, shape (G, d)."""
        inner = np.einsum("cji,cj->ci", self.inverse_roots, slopes)
        outer: np.ndarray = np.einsum("cij,cj->ci", self.inverse_roots, inner)
        return outer


def eliminate(arrow: Arrow, eps: float, floor: float = 0.0) -> Eliminated:
    """Eliminate the groups, in double precision; blocks are taken by their absolute eigenvalues.

    None of these counts as less than `floor`.
    """
    arrow = Arrow(*(np.asarray(part, np.float64) for part in arrow))
    values, vectors = np.linalg.eigh(arrow.of_groups)
    values = np.abs(values)
    least = eps * values.shape[-1] * values.max(-1, keepdims=True, initial=0.0)
    # what neither a row nor the prior says anything of keeps its unit
    values = np.where(values > 0, np.maximum(values, np.maximum(least, floor)), 1.0)
    inverse_roots = vectors / np.sqrt(values)[:, None]
    half = np.einsum("cji,cjp->cip", inverse_roots, arrow.coupling)
    slopes = np.einsum("cji,cj->ci", inverse_roots, arrow.groups)
    schur = arrow.of_shared - np.einsum("cip,ciq->pq", half, half)
    slope = arrow.shared - np.einsum("cip,ci->p", half, slopes)
    shift = -np.einsum("cij,cjp->cip", inverse_roots, half)
    return Eliminated(0.5 * (schur + schur.T), slope, inverse_roots, shift)


def inverse_factor(
    precision: np.ndarray, is_free: np.ndarray, eps: float, floor: float = 0.0
) -> np.ndarray:
    """A with A A^T the inverse of an absolute precision among the free coordinates, else one.

    No eigenvalue of the precision, scaled to a unit diagonal, counts as less than `floor`.
    """
    root = np.eye(precision.shape[0])
    if is_free.any():
        block = np.ix_(is_free, is_free)
        metric = scaled_eigen(precision[block]).absolute(max(is_free.sum() * eps, floor))
        root[block] = covariance_factor(np.asarray(metric.inverse_sqrt))
    return root


def covariance_factor(root: np.ndarray) -> np.ndarray:
    """The lower triangular factor of ``root @ root.T``.

    By orthogonal steps alone, which square no condition number.
    """
    upper = np.linalg.qr(root.T)[1]
    lower: np.ndarray = upper.T * np.sign(np.diagonal(upper))
    return lower


def least_eigenvalue(precision: np.ndarray, is_free: np.ndarray) -> float:
    """Least absolute eigenvalue among the free coordinates, scaled to a unit diagonal."""
    values = scaled_eigen(precision[np.ix_(is_free, is_free)]).values
    return float(np.min(np.abs(values), initial=np.inf))


def seen_first(frame: Whitening, is_seen: np.ndarray) -> Whitening:
    """A frame without groups, turned so that the seen coordinates depend on the first of u alone.

    On as many of them as are seen.
    """
    order = np.argsort(~is_seen, kind="stable")
    root = np.empty_like(frame.root)
    root[order] = covariance_factor(frame.root[order])
    return frame._replace(root=root, root_inverse=np.linalg.inv(root))


def cast(frame: Whitening, dtype: Any) -> Whitening:
    """A frame of the host in the precision of the device."""
    return Whitening(*(np.asarray(part, dtype) for part in frame))


def refined(
    frame: Whitening,
    eliminated: Eliminated,
    is_free: np.ndarray,
    eps: float,
    more: np.ndarray | float = 0.0,
) -> Whitening:
    """The frame in which the arrow is the identity, `eliminated` being the arrow in the old frame.

    Shared coordinates that are not free stay as they are; `more` is added to the precision of the
    shared ones.
    """
    root = inverse_factor(eliminated.schur + more, is_free, eps)
    shift = np.where(is_free, eliminated.shift, 0.0) @ root
    rotated = frame.roots @ eliminated.inverse_roots
    new_root = frame.root @ root
    return Whitening(
        new_root,
        np.linalg.inv(new_root),
        frame.shear @ root + frame.roots @ shift,
        rotated,
        np.linalg.inv(rotated),
    )


def worst_condition(frame: Whitening) -> float:
    """Condition number of a frame's curvature, of shared coordinates and any one group together.

    Of a few groups, spread over all of them: the root of the ratio of its extreme eigenvalues,
    scaled to a unit diagonal.
    """
    num_groups, width, size = frame.shear.shape
    worst = 1.0
    # groups whose condition number is looked at
    for c in np.unique(np.linspace(0, num_groups - 1, 16).astype(int)):
        root = np.zeros((size + width, size + width))
        root[:size, :size] = frame.root
        root[size:, :size], root[size:, size:] = frame.shear[c], frame.roots[c]
        inverse = np.linalg.inv(root)
        values = np.abs(scaled_eigen(inverse.T @ inverse).values)
        worst = max(worst, float(np.sqrt(values[-1] / max(values[0], np.finfo(float).tiny))))
    return worst
