"""Newton solver for soft constraints, with fixed trip counts.

MuJoCo's constrained acceleration a minimises a convex, piecewise quadratic cost:

    1/2 a'Ma - a'f + sum_i D_i/2 x_i^2,   x_i = J_i a - r_i

over the rows i that push: equalities always, others where x_i < 0. Dry friction pushes always, with at most its loss.

MJX solves it with a generic loop that under vmap runs until the slowest copy stops, factors once more than it steps,
and evaluates three points in each line-search iteration. Here structure and trip counts are static:

* equalities always push, so `envs.physics.step` folds them into M and f before the first iteration;
* a joint limit touches one dof, so limits stay a diagonal and never become rows;
* there is no factorisation of M: the start is the last step's acceleration, not the unconstrained one;
* the line search is a bracketed Newton root find on the cost's increasing slope: one evaluation per iteration.

These functions see one copy; `envs.physics.step` maps them over all. nv dofs, r contact rows: one of each frictionless
contact, four pyramid edges of each frictional one.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Limits:
    """Joint limits, one row per dof: x = sign * a - reference.

    Stiffness is zero where the dof is inside its range or has none.
    """

    sign: Array  # [nv]
    reference: Array  # [nv]
    stiffness: Array  # [nv]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DryFriction:
    """Friction of the dofs: x = a - reference, force = -stiffness * x, at most the loss. Zero where there is none."""

    reference: Array  # [nv]
    stiffness: Array  # [nv]
    loss: Array  # [nv] N or N m

    def force(self, a: Array) -> tuple[Array, Array]:
        """Forces [nv] on the dofs at acceleration a, and their stiffness, which is zero where a dof slips."""
        pull = self.stiffness * (self.reference - a)
        return jnp.clip(pull, -self.loss, self.loss), self.stiffness * (jnp.abs(pull) < self.loss)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """Contact rows: x = a @ jacobian - reference. Stiffness is zero where the contact is open."""

    jacobian: Array  # [nv, r], transposed: J'DJ is then a product of two row-major arrays
    reference: Array  # [r]
    stiffness: Array  # [r]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Solution:
    """The constrained acceleration and the forces that bring it about."""

    qacc: Array  # [nv]
    force: Array  # [nv] generalised force of limits and rows
    row_force: Array  # [r]


def solve_spd(matrix: Array, vector: Array) -> Array:
    """matrix^-1 vector for a symmetric positive definite matrix [nv, nv]."""
    lower = lax.linalg.cholesky(matrix, symmetrize_input=False)
    column = lax.linalg.triangular_solve(lower, vector[:, None], left_side=True, lower=True)
    return lax.linalg.triangular_solve(lower, column, left_side=True, lower=True, transpose_a=True)[:, 0]


def solve(
    inertia: Array,
    force: Array,
    limits: Limits,
    rows: Rows,
    start: Array,
    iterations: int,
    ls_iterations: int,
    friction: DryFriction | None = None,
) -> Solution:
    """Minimises the cost from `start` in `iterations` Newton steps."""

    def pushing(a: Array, x: Array) -> tuple[Array, Array, Array]:
        """Stiffness of the pushing limits (with dry friction) [nv] and rows [r], and their generalised force [nv]."""
        limit_x = limits.sign * a - limits.reference
        limit_d, row_d = limits.stiffness * (limit_x < 0), rows.stiffness * (x < 0)
        push = -(limits.sign * limit_d * limit_x + rows.jacobian @ (row_d * x))
        if friction is not None:
            drag, drag_d = friction.force(a)
            limit_d, push = limit_d + drag_d, push + drag
        return limit_d, row_d, push

    def newton_step(_, state: tuple[Array, Array]) -> tuple[Array, Array]:
        a, x = state
        limit_d, row_d, push = pushing(a, x)
        residual = inertia @ a - force
        hessian = inertia + jnp.diag(limit_d) + (rows.jacobian * row_d) @ rows.jacobian.T
        search = solve_spd(hessian, push - residual)
        x_rate = search @ rows.jacobian
        alpha = _line_search(
            search @ residual,
            search @ (inertia @ search),
            jnp.concatenate([limits.sign * a - limits.reference, x]),
            jnp.concatenate([limits.sign * search, x_rate]),
            jnp.concatenate([limits.stiffness, rows.stiffness]),
            ls_iterations,
            None if friction is None else (friction, a, search),
        )
        return a + alpha * search, x + alpha * x_rate

    a, x = lax.fori_loop(0, iterations, newton_step, (start, start @ rows.jacobian - rows.reference))
    _, row_d, push = pushing(a, x)
    return Solution(qacc=a, force=push, row_force=-row_d * x)


def _line_search(
    slope0: Array,
    curve0: Array,
    x: Array,
    rate: Array,
    stiffness: Array,
    iterations: int,
    dry: tuple[DryFriction, Array, Array] | None = None,
) -> Array:
    """Step length at which the cost's slope vanishes.

    The smooth part has slope slope0 + alpha * curve0; the rows are at x + alpha * rate; `dry` is dry friction with the
    acceleration and its rate. The total slope increases and is piecewise linear. The full Newton step 1 is its root if
    no row starts or stops pushing, so the search starts there; [low, high] brackets the root, and a guess outside is
    bisected.
    """

    def slope_and_curve(alpha: Array) -> tuple[Array, Array]:
        at = x + alpha * rate
        pull = stiffness * rate * (at < 0)
        slope, curve = slope0 + alpha * curve0 + pull @ at, curve0 + pull @ rate
        if dry is not None:
            friction, a, search = dry
            drag, drag_d = friction.force(a + alpha * search)
            slope, curve = slope - drag @ search, curve + (drag_d * search) @ search
        return slope, curve

    def refine(_, state):
        alpha, low, high, best, best_slope = state
        slope, curve = slope_and_curve(alpha)
        better = jnp.abs(slope) < best_slope
        best, best_slope = jnp.where(better, alpha, best), jnp.where(better, jnp.abs(slope), best_slope)
        low, high = jnp.where(slope < 0, alpha, low), jnp.where(slope < 0, high, alpha)
        guess = alpha - slope / jnp.maximum(curve, 1e-20)
        middle = jnp.where(jnp.isinf(high), 2 * alpha, 0.5 * (low + high))
        return jnp.where((guess > low) & (guess < high), guess, middle), low, high, best, best_slope

    zero, one = jnp.zeros_like(slope0), jnp.ones_like(slope0)
    start = (one, zero, jnp.full_like(slope0, jnp.inf), zero, jnp.abs(slope_and_curve(zero)[0]))
    return lax.fori_loop(0, iterations, refine, start)[3]
