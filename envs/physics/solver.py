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

`solve` sees one copy, `solve_copies` maps it over all; TPUs and CPUs have a form of their own, with the copies last
(`newton_copies_last`). nv dofs, r contact rows: one of each frictionless contact, four pyramid edges of each frictional
one.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from envs.physics import cholesky, cholesky_cuda, cholesky_kernel

Array = jax.Array
SolveLast = Callable[[Array, Array], Array]  # matrices [nv, nv, N], vectors [nv, N] -> [nv, N]
FEW = 8  # copies in one AVX register; with fewer a CPU keeps the library's Cholesky
MANY_DOFS = 32  # above, a CPU keeps it too: ours has not been measured there, and takes long to compile


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
    """matrix^-1 vector for a symmetric positive definite matrix [nv, nv]: on CUDA by our kernel, else by a library."""
    if not cholesky_cuda.fits(len(vector)):
        return library_spd(matrix, vector)
    return lax.platform_dependent(matrix, vector, cuda=cholesky_cuda.solve, default=library_spd)


def library_spd(matrix: Array, vector: Array) -> Array:
    """`solve_spd` by the platform's library, in three calls."""
    lower = lax.linalg.cholesky(matrix, symmetrize_input=False)
    column = lax.linalg.triangular_solve(lower, vector[:, None], left_side=True, lower=True)
    return lax.linalg.triangular_solve(lower, column, left_side=True, lower=True, transpose_a=True)[:, 0]


def solve_spd_copies(matrix: Array, vector: Array) -> Array:
    """matrix^-1 vector of N copies: [N, nv, nv] and [nv, N] -> [nv, N]."""

    def copies_first(matrix: Array, vector: Array) -> Array:
        return jax.vmap(solve_spd)(matrix, vector.T).T

    def copies_last(matrix: Array, vector: Array, solve_spd: SolveLast) -> Array:
        return solve_spd(jnp.moveaxis(matrix, 0, -1), vector)

    return _by_platform(vector.shape, copies_first, copies_last)(matrix, vector)


def _by_platform(shape: tuple[int, int], copies_first: Callable, copies_last: Callable) -> Callable:
    """The form that suits a platform, which is known when it is lowered, and vectors of this shape [nv, N].

    The form with the copies last is told how to solve for them. A CPU keeps the library for a point's two dofs, where
    there is nothing to gain.
    """
    size, copies = shape
    ways = {"default": copies_first}
    if copies >= cholesky.LANES:
        one_kernel = cholesky_kernel.fits(size, copies)
        ways["tpu"] = partial(copies_last, solve_spd=cholesky_kernel.solve if one_kernel else cholesky.solve)
    if copies >= FEW and cholesky.BLOCK <= size <= MANY_DOFS:
        ways["cpu"] = partial(copies_last, solve_spd=cholesky.solve)
    return partial(lax.platform_dependent, **ways) if len(ways) > 1 else copies_first


def solve_copies(
    inertia: Array,
    force: Array,
    limits: Limits,
    rows: Rows,
    start: Array,
    friction: DryFriction | None,
    iterations: int,
    ls_iterations: int,
) -> Solution:
    """`solve` of N copies: inertia and rows with the copies first, everything else and the solution with them last."""

    def copies_first(
        inertia: Array, force: Array, limits: Limits, rows: Rows, start: Array, friction: DryFriction | None
    ) -> Solution:
        one = partial(solve, iterations=iterations, ls_iterations=ls_iterations)
        limits, friction = jax.tree.map(jnp.transpose, (limits, friction))
        return jax.tree.map(jnp.transpose, jax.vmap(one)(inertia, force.T, limits, rows, start.T, friction))

    copies_last = partial(newton_copies_last, iterations=iterations, ls_iterations=ls_iterations)
    way = _by_platform(force.shape, copies_first, copies_last)
    return way(inertia, force, limits, rows, start, friction)


def newton_copies_last(
    inertia: Array,
    force: Array,
    limits: Limits,
    rows: Rows,
    start: Array,
    friction: DryFriction | None,
    iterations: int,
    ls_iterations: int,
    solve_spd: SolveLast = cholesky.solve,
) -> Solution:
    """`solve_copies` with the products of matrices copies first, for their libraries, and everything else copies last.

    Only the contacts' part of the Hessian changes its order in a Newton step. M a follows a instead of being computed
    anew.
    """
    matrix = jnp.moveaxis(inertia, 0, -1)  # [nv, nv, N]
    jacobian, reference, stiffness = rows.jacobian, rows.reference.T, rows.stiffness.T

    def times_rows(vector: Array) -> Array:
        """[r, N] what the rows see of an acceleration [nv, N]."""
        return jnp.einsum("nvr,vn->rn", jacobian, vector)

    def pushing(a: Array, x: Array) -> tuple[Array, Array, Array]:
        limit_x = limits.sign * a - limits.reference
        limit_d, row_d = limits.stiffness * (limit_x < 0), stiffness * (x < 0)
        push = -(limits.sign * limit_d * limit_x + jnp.einsum("nvr,rn->vn", jacobian, row_d * x))
        return *with_friction(friction, a, limit_d, push), row_d

    def newton_step(_, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        a, x, residual = state
        limit_d, push, row_d = pushing(a, x)
        rows_part = (jacobian * row_d.T[:, None]) @ jnp.swapaxes(jacobian, 1, 2)
        diagonal = jnp.eye(len(a))[..., None] * limit_d
        search = solve_spd(matrix + diagonal + jnp.moveaxis(rows_part, 0, -1), push - residual)
        x_rate, residual_rate = times_rows(search), jnp.sum(matrix * search[:, None], axis=0)
        alpha = _line_search(
            jnp.sum(search * residual, axis=0),
            jnp.sum(search * residual_rate, axis=0),
            jnp.concatenate([limits.sign * a - limits.reference, x]),
            jnp.concatenate([limits.sign * search, x_rate]),
            jnp.concatenate([limits.stiffness, stiffness]),
            ls_iterations,
            None if friction is None else (friction, a, search),
        )
        return a + alpha * search, x + alpha * x_rate, residual + alpha * residual_rate

    begin = start, times_rows(start) - reference, jnp.sum(matrix * start[:, None], axis=0) - force
    a, x, _ = lax.fori_loop(0, iterations, newton_step, begin)
    _, push, row_d = pushing(a, x)
    return Solution(qacc=a, force=push, row_force=-row_d * x)


def solve(
    inertia: Array,
    force: Array,
    limits: Limits,
    rows: Rows,
    start: Array,
    friction: DryFriction | None,
    iterations: int,
    ls_iterations: int,
) -> Solution:
    """Minimises the cost from `start` in `iterations` Newton steps."""

    def pushing(a: Array, x: Array) -> tuple[Array, Array, Array]:
        """Stiffness of what pushes single dofs [nv], the generalised force of all that pushes [nv], and the stiffness
        of the pushing rows [r]."""
        limit_x = limits.sign * a - limits.reference
        limit_d, row_d = limits.stiffness * (limit_x < 0), rows.stiffness * (x < 0)
        push = -(limits.sign * limit_d * limit_x + rows.jacobian @ (row_d * x))
        return *with_friction(friction, a, limit_d, push), row_d

    def newton_step(_, state: tuple[Array, Array]) -> tuple[Array, Array]:
        a, x = state
        limit_d, push, row_d = pushing(a, x)
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
    _, push, row_d = pushing(a, x)
    return Solution(qacc=a, force=push, row_force=-row_d * x)


def with_friction(friction: DryFriction | None, a: Array, stiffness: Array, push: Array) -> tuple[Array, Array]:
    """Stiffness and force of the limits, and dry friction's on top where a model has any."""
    if friction is None:
        return stiffness, push
    drag, drag_stiffness = friction.force(a)
    return stiffness + drag_stiffness, push + drag


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
    bisected. Of one copy, or of all with the copies last.
    """

    def over_rows(a: Array, b: Array) -> Array:
        return a @ b if a.ndim == 1 else jnp.sum(a * b, axis=0)

    def slope_and_curve(alpha: Array) -> tuple[Array, Array]:
        at = x + alpha * rate
        pull = stiffness * rate * (at < 0)
        slope, curve = slope0 + alpha * curve0 + over_rows(pull, at), curve0 + over_rows(pull, rate)
        if dry is not None:
            friction, a, search = dry
            drag, drag_d = friction.force(a + alpha * search)
            slope, curve = slope - over_rows(drag, search), curve + over_rows(drag_d * search, search)
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
