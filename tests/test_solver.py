"""The Newton solver against the optimality conditions of its cost, in float64."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.physics import cholesky, cholesky_cuda, cholesky_kernel, solver
from genda_mjx.runs import start


def problem(seed: int, dofs: int = 12, contacts: int = 20) -> tuple:
    """A random inertia, force, limits on half the dofs, and contact rows of which some push and some do not."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((dofs, dofs))
    inertia, force = root @ root.T / dofs + 0.1 * np.eye(dofs), 3 * rng.standard_normal(dofs)
    limited = rng.uniform(size=dofs) < 0.5
    limits = solver.Limits(
        rng.choice([-1.0, 1.0], dofs), rng.standard_normal(dofs), 10 * rng.uniform(size=dofs) * limited
    )
    rows = solver.Rows(
        rng.standard_normal((dofs, contacts)), rng.standard_normal(contacts), 10 * rng.uniform(size=contacts)
    )
    return inertia, force, limits, rows


def gradient(a: np.ndarray, inertia, force, limits: solver.Limits, rows: solver.Rows) -> np.ndarray:
    """Gradient of the cost at a: zero at its only minimum."""
    limit_x, row_x = limits.sign * a - limits.reference, a @ rows.jacobian - rows.reference
    push = limits.sign * limits.stiffness * np.minimum(limit_x, 0) + rows.jacobian @ (
        rows.stiffness * np.minimum(row_x, 0)
    )
    return inertia @ a - force + push


@pytest.mark.parametrize("seed", range(20))
def test_solution_is_the_minimum(seed):
    inertia, force, limits, rows = problem(seed)
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (inertia, force, limits, rows))
    found = solver.solve(*single, start=jnp.zeros(12), friction=None, iterations=10, ls_iterations=8)
    scale = np.abs(force).max()
    assert np.abs(gradient(np.asarray(found.qacc, float), inertia, force, limits, rows)).max() / scale < 1e-4
    at_rest = np.abs(gradient(np.zeros(12), inertia, force, limits, rows)).max() / scale
    assert at_rest > 0.1  # the start was not the answer
    row_x = np.asarray(found.qacc) @ rows.jacobian - rows.reference
    np.testing.assert_allclose(found.row_force, -rows.stiffness * np.minimum(row_x, 0), atol=1e-3)
    np.testing.assert_allclose(inertia @ np.asarray(found.qacc), force + np.asarray(found.force), atol=2e-3)


def test_the_start_does_not_matter():
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), problem(0))
    far = solver.solve(*single, start=100 * jnp.ones(12), friction=None, iterations=15, ls_iterations=10)
    near = solver.solve(*single, start=jnp.zeros(12), friction=None, iterations=15, ls_iterations=10)
    np.testing.assert_allclose(far.qacc, near.qacc, atol=1e-3)


@pytest.mark.parametrize("size", [2, 8, 18])
def test_cholesky_with_the_copies_last(size):
    rng = np.random.default_rng(size)
    root = rng.standard_normal((5, size, size))
    matrix, vector = root @ root.swapaxes(1, 2) + 0.1 * np.eye(size), rng.standard_normal((5, size))
    found = cholesky.solve(jnp.asarray(np.moveaxis(matrix, 0, -1), jnp.float32), jnp.asarray(vector.T, jnp.float32))
    exact = np.linalg.solve(matrix, vector[..., None])[..., 0]
    assert np.abs(found.T - exact).max() / np.abs(exact).max() < 1e-4


def test_the_tpu_s_cholesky_as_the_cpu_interprets_it():
    """18 dofs are filled up to three panels, with what may be anything there: here NaN."""
    size, copies = 18, 2 * cholesky_kernel.LANES
    rng = np.random.default_rng(size)
    root = rng.standard_normal((copies, size, size))
    matrix, vector = root @ root.swapaxes(1, 2) + 0.1 * np.eye(size), rng.standard_normal((copies, size))
    last = jnp.asarray(np.moveaxis(matrix, 0, -1), jnp.float32), jnp.asarray(vector.T, jnp.float32)
    found = cholesky_kernel.solve(*last, interpret=True)
    exact = np.linalg.solve(matrix, vector[..., None])[..., 0]
    assert np.abs(found.T - exact).max() / np.abs(exact).max() < 1e-4
    np.testing.assert_allclose(found, cholesky.solve(*last), atol=1e-4 * np.abs(exact).max())


def stiff_systems(size: int, copies: int) -> tuple[np.ndarray, np.ndarray]:
    """Matrices [N, n, n] and vectors [N, n] in float32, conditioned as badly as those of a body in contact: some dofs
    are light, others heavy, and a few rows are stiff."""
    rng = np.random.default_rng(size)
    root, rows = rng.standard_normal((copies, size, size)), rng.standard_normal((copies, size, 1 + size // 4))
    scale = 10 ** rng.uniform(-1, 0, (copies, size, 1))
    inertia = scale * (root @ root.swapaxes(1, 2) / size + np.eye(size)) * scale.swapaxes(1, 2)
    stiffness = 10 ** rng.uniform(1, 3, (copies, 1, rows.shape[-1]))
    matrix = inertia + (rows * stiffness) @ rows.swapaxes(1, 2)
    return matrix.astype(np.float32), rng.standard_normal((copies, size)).astype(np.float32)


@pytest.mark.parametrize("size", [2, 13, 16, 22, 24, 27, 79])
def test_the_gpu_s_cholesky_as_the_cpu_interprets_it(size):
    """For the dofs of every body, filled up to whole tiles with what may be anything there: here NaN."""
    matrix, vector = stiff_systems(size, copies=5)
    found = jax.jit(jax.vmap(partial(cholesky_cuda.solve, interpret=True)))(matrix, vector)
    exact = np.linalg.solve(matrix.astype(float), vector.astype(float)[..., None])[..., 0]
    error = np.abs(found - exact).max(axis=1) / np.abs(exact).max(axis=1)
    condition = np.linalg.cond(matrix.astype(float))
    assert condition.max() > 1e3 and (error < 1e-7 * condition).all()  # float32 rounds by 6e-8


def test_newton_with_the_gpu_s_cholesky_finds_the_same(monkeypatch):
    problems = many_problems()
    expected = each_alone(*problems)
    monkeypatch.setattr(solver, "solve_spd", partial(cholesky_cuda.solve, interpret=True))
    found = each_alone(*problems)
    assert (found.qacc != expected.qacc).any()  # another way was taken
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-3), found, expected)


def test_an_old_gpu_keeps_the_library(monkeypatch):
    for capability, kernel in (("7.5", False), ("8.0", True), ("10.0", True), ("gfx90a", True), (None, True)):
        device = SimpleNamespace() if capability is None else SimpleNamespace(compute_capability=capability)
        with monkeypatch.context() as patch:
            patch.setattr(jax, "local_devices", lambda device=device: [device])
            patch.setenv(cholesky_cuda.CHOICE, "")  # so that it is put back afterwards
            patch.delenv(cholesky_cuda.CHOICE)
            start.choose_solver()
            assert cholesky_cuda.fits(22) == kernel
            assert not cholesky_cuda.fits(cholesky_cuda.MOST_DOFS + 1)


def many_problems(dry: bool = False) -> tuple:
    """Twenty problems as `solve_copies` takes them, from a start at rest."""
    many = [jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), problem(seed)) for seed in range(20)]
    inertia, force, limits, rows = jax.tree.map(lambda *x: jnp.stack(x), *many)
    force, limits = jax.tree.map(jnp.transpose, (force, limits))
    rng = np.random.default_rng(0)
    draw = lambda: jnp.asarray(rng.uniform(size=force.shape), jnp.float32)
    friction = solver.DryFriction(reference=draw(), stiffness=10 * draw(), loss=draw()) if dry else None
    return inertia, force, limits, rows, jnp.zeros_like(force), friction


def each_alone(inertia, force, limits, rows, start, friction) -> solver.Solution:
    """The problems solved one by one."""
    one = partial(solver.solve, iterations=10, ls_iterations=8)
    limits, friction = jax.tree.map(jnp.transpose, (limits, friction))
    return jax.tree.map(jnp.transpose, jax.jit(jax.vmap(one))(inertia, force.T, limits, rows, start.T, friction))


@pytest.mark.parametrize("dry", [False, True])
def test_the_form_with_the_copies_last_finds_the_same(dry):
    problems = many_problems(dry)
    first, last = each_alone(*problems), jax.jit(solver.newton_copies_last, static_argnums=(6, 7))(*problems, 10, 8)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-3), first, last)
    if dry:
        smooth = each_alone(*problems[:-1], None)
        assert np.abs(first.qacc - smooth.qacc).max() > 0.1  # it rubs


def test_the_form_depends_on_platform_and_copies():
    def text(copies: int, platform: str, dofs: int = 12) -> str:
        shapes = (
            jax.ShapeDtypeStruct((copies, dofs, dofs), jnp.float32),
            jax.ShapeDtypeStruct((dofs, copies), jnp.float32),
        )
        return jax.jit(solver.solve_spd_copies).trace(*shapes).lower(lowering_platforms=(platform,)).as_text()

    lanes, library = cholesky.LANES, "stablehlo.cholesky"
    assert library not in text(lanes, "tpu") and library in text(lanes - 1, "tpu")
    assert library not in text(lanes + 8, "tpu")  # in panels
    assert [("tpu_custom_call" in text(n, "tpu")) for n in (lanes - 1, lanes, lanes + 8)] == [False, True, False]
    assert "potrf" not in text(solver.FEW, "cpu") and "potrf" in text(solver.FEW - 1, "cpu")
    assert "potrf" in text(solver.FEW, "cpu", solver.MANY_DOFS + 1) and "potrf" in text(solver.FEW, "cpu", 2)
    for copies, dofs in ((1, 2), (lanes, 12), (lanes + 8, cholesky_cuda.MOST_DOFS)):
        assert "xla.gpu.triton" in text(copies, "cuda", dofs) and "potrf" not in text(copies, "cuda", dofs)
    assert "potrf" in text(lanes, "cuda", cholesky_cuda.MOST_DOFS + 1) and "potrf" in text(lanes, "rocm")


@pytest.mark.slow
def test_the_quadruped_steps_alike_with_the_copies_first_and_last(monkeypatch):
    env = envs.make("quadruped", normalize=False)
    start = jax.vmap(env.start_from, in_axes=(0, None))(jnp.arange(16), jnp.zeros(2))
    actions = jax.random.uniform(jax.random.key(0), (5, 16, env.action_size), minval=-1, maxval=1)

    def roll(state, actions):
        return jax.lax.scan(lambda s, a: (jax.vmap(env.step)(s, a), None), state, actions)[0].obs

    found = jax.jit(roll)(start, actions)
    monkeypatch.setattr(solver, "FEW", 17)
    expected = jax.jit(lambda *args: roll(*args))(start, actions)
    assert (found != expected).any()  # another form was taken
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())
