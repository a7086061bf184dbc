"""Downstream tasks: who has which, the numbers of the paper, and the laws of starts and goals."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from conftest import BODIES, raw_env
from maze_reference import FREE_CELLS, depth_in_walls, literal_maze
from scipy import stats

import envs
from envs.tasks import goals

DRAWS = 20_000
UNLIKELY = 1e-3  # a law this unlikely to have given the sample is wrong; seeds are fixed
task_of = functools.cache(goals.make)


def draw(task: goals.GoalTask, number: int, evaluate: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Start states [number, nq] and goals [number, g]."""

    def one(key):
        state, goal = task.reset(key, evaluate)
        return state.pipeline_state.physics.qpos, goal

    qpos, goal = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(7), number))
    return np.asarray(qpos), np.asarray(goal)


@pytest.fixture
def without_walls(monkeypatch):
    """Tasks on bodies that exist already: their numbers do not depend on walls."""
    bodies = {body: raw_env(body) for body in BODIES}
    monkeypatch.setattr(envs, "make", lambda body, **_: bodies[body])
    monkeypatch.setattr(goals, "START_STATES", 1)


OPEN = {"horizon": 200, "radius": 1.5}
EASY, HARD = {"horizon": 400, "radius": 1.5}, {"horizon": 500, "radius": 1.5}
LONG, FAR = {"horizon": 400}, {"radius": 3.0}


@pytest.mark.parametrize(
    ("body", "scale", "numbers"),
    [
        ("point", 1.0, {"fs_rg": OPEN, "rs_rg": OPEN, "maze_easy": EASY, "maze_hard": HARD}),
        ("humanoid", 1.0, {"fs_rg": OPEN, "rs_rg": OPEN, "maze_easy": EASY, "maze_hard": HARD}),
        ("quadruped", 1.5, {"fs_rg": OPEN, "rs_rg": OPEN, "maze_easy": EASY | FAR, "maze_hard": HARD | FAR}),
        ("dog", 1.0, {"fs_rg": OPEN | LONG, "rs_rg": OPEN | LONG, "maze_easy": EASY, "maze_hard": HARD}),
        ("fish", 1.0, {"fs_rg": OPEN | {"radius": 0.1}}),
    ],
)
def test_the_papers_numbers(body, scale, numbers, without_walls):
    for name, expected in numbers.items():
        task = goals.make(body, name)
        assert {"horizon": task.horizon, "radius": task.radius} == expected and task.name == name
        assert task.goal_size == (3 if body == "fish" else 2) and (task.maze is None) == ("maze" not in name)
        if name == "rs_rg":
            assert (task.law.half, task.law.separation) == (3.5 * scale, 3 * scale)
        if task.maze is not None:
            distance = np.linalg.norm(np.diff(task.law.centres[task.law.pairs], axis=1), axis=-1)
            assert distance.min() == pytest.approx(3 * scale)
            np.testing.assert_array_equal(task.maze.start_xy, np.array([1, 0]) * scale)


def test_the_codes_numbers_are_flags(without_walls):
    task = goals.make("quadruped", "maze_hard", separation=4.0, radius=1.0, horizon=50)
    distance = np.linalg.norm(np.diff(task.law.centres[task.law.pairs], axis=1), axis=-1)
    assert distance.min() == pytest.approx(1.5 * np.sqrt(8)) and (task.radius, task.horizon) == (1.0, 50)
    assert goals.make("point", "fs_rg", goal_range=5.0).law.half == 5.0


def assert_uniform(points: np.ndarray, half: float) -> None:
    """Points [n, 2] in the square of this half side, by a chi-square test over 8 x 8 bins."""
    assert np.abs(points).max() <= half
    counts = np.histogram2d(*points.T, bins=8, range=[(-half, half)] * 2)[0]
    assert stats.chisquare(counts.ravel()).pvalue > UNLIKELY


def test_fixed_start_random_goal():
    task = task_of("point", "fs_rg")
    qpos, goal = draw(task, DRAWS)
    drawn, counts = np.unique(qpos, axis=0, return_counts=True)
    assert np.isin(drawn[:, 0], task.env.bank.qpos[:, 0]).all() and len(drawn) > 4000  # the starts of pre-training
    assert stats.chisquare(np.pad(counts, (0, 4096 - len(counts)))).pvalue > UNLIKELY
    assert_uniform(goal, 3.5)
    assert np.abs(np.corrcoef(qpos.T, goal.T)[:2, 2:]).max() < 0.03


def test_random_start_random_goal():
    """The law is that of rejection: bins of start and goal (3 x 3 each) and their distance, against numpy."""
    start, goal = draw(task_of("point", "rs_rg"), DRAWS)
    assert np.linalg.norm(start - goal, axis=1).min() >= 3 and np.abs([start, goal]).max() <= 3.5
    pairs = np.random.default_rng(0).uniform(-3.5, 3.5, (20 * DRAWS, 2, 2))
    pairs = pairs[np.linalg.norm(pairs[:, 0] - pairs[:, 1], axis=1) >= 3]
    cell = lambda p: np.clip((p + 3.5) // (7 / 3), 0, 2).astype(int)
    place = lambda s, g: np.bincount(np.ravel_multi_index((*cell(s).T, *cell(g).T), (3, 3, 3, 3)), minlength=81)
    distance = lambda s, g: np.histogram(np.linalg.norm(s - g, axis=1), bins=20, range=(3, 10))[0]
    for count in (place, distance):
        both = np.stack([count(start, goal), count(*pairs.swapaxes(0, 1))])
        both = both[:, both.sum(0) > 100]
        assert stats.chi2_contingency(both).pvalue > UNLIKELY


def test_pairs_that_are_never_far_enough_fall_back_to_corners():
    start, goal = goals.RandomStart(half=1.0, separation=2.8).pair(jax.random.key(0))
    np.testing.assert_array_equal([start, goal], [[-1, -1], [1, 1]])


@pytest.mark.parametrize("name", ["maze_easy", "maze_hard"])
def test_maze_training_draws_every_pair_of_cells_alike(name):
    start, goal = draw(task_of("point", name), 30_000)
    rounded = np.rint(np.hstack([start, goal])).astype(int)
    np.testing.assert_allclose(np.hstack([start, goal]), rounded, atol=1e-6)
    cells = FREE_CELLS[name]
    apart = {(*a, *b) for a in cells for b in cells if np.hypot(a[0] - b[0], a[1] - b[1]) >= 3}
    drawn, counts = np.unique(rounded, axis=0, return_counts=True)
    assert {tuple(int(x) for x in row) for row in drawn} == apart
    assert stats.chisquare(counts).pvalue > UNLIKELY


def test_maze_evaluation_has_one_start_and_one_goal():
    qpos, goal = draw(task_of("point", "maze_hard"), 1000, evaluate=True)
    assert (goal == [1, 6]).all()
    assert np.abs(qpos - [1, 0]).max() <= 0.1 + 1e-6 and len(np.unique(qpos[:, 0])) > 200  # the body's own spread


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(("body", "side"), [("humanoid", 1.0), slow("quadruped", 1.5), slow("dog", 1.0)])
def test_starts_in_a_maze_touch_no_wall(body, side):
    """The unedited body among boxes of one cell each judges; most poses of the humanoid would not fit in a corner."""
    task = task_of(body, "maze_hard")
    model, tolerance = literal_maze(body, "maze_hard", side), task.env.wall_tolerance
    for evaluate in (False, True):
        qpos, _ = draw(task, 400, evaluate)
        assert depth_in_walls(model, qpos).max() <= tolerance
    unfiltered = task.env.bank.qpos[:200].copy()
    unfiltered[:, :2] = 0
    assert body == "quadruped" or (depth_in_walls(model, unfiltered) > tolerance).mean() > 0.3
    law = task.law
    assert law.fitting.min() > 0 and len(law.start_states) > 200


def test_fish_goal_is_half_a_metre_ahead_of_its_mouth():
    task = task_of("fish", "fs_rg")
    qpos, goal = draw(task, 100)
    data = mujoco.MjData(task.env.model)
    for row, target in zip(qpos, goal, strict=True):
        data.qpos[:] = row
        mujoco.mj_kinematics(task.env.model, data)
        towards = data.geom("mouth").xpos - data.body("torso").xpos
        np.testing.assert_allclose(target - row[:3], 0.5 * towards / np.linalg.norm(towards), atol=1e-4)
    np.testing.assert_allclose(qpos[:, :3], [[0, 0, 0.1]] * 100, atol=1e-6)
    directions = (goal - qpos[:, :3]) / 0.5
    assert np.abs(directions.mean(0)).max() < 0.25, "every way is ahead for some fish"


def test_observations_are_those_of_pre_training():
    """Same numbers as the body has on the open floor, walls or not; the goal is beside them."""
    plain, task = envs.make("point"), task_of("point", "maze_easy")
    state, goal = task.reset(jax.random.key(0), False)
    assert goal.shape == (task.goal_size,) and state.obs.shape == (plain.observation_size,)
    raw = jnp.concatenate([state.pipeline_state.physics.qpos, state.pipeline_state.physics.qvel])
    np.testing.assert_allclose(state.obs, (raw - plain.obs_mean) / (plain.obs_std + 1e-8), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: goals.make("point", "swim"), "no task 'swim': choose one of fs_rg, rs_rg, maze_easy, maze_hard, maze"),
        (lambda: goals.make("fish", "maze_hard"), "fish has no task 'maze_hard': choose one of fs_rg"),
        (lambda: goals.make("cheetah", "fs_rg"), "unknown env 'cheetah'"),
        (lambda: goals.make("point", "maze"), "needs a maze file; the built-in mazes are maze_easy, maze_hard"),
        (lambda: goals.make("point", "rs_rg", maze_file="m.txt"), "maze_file means nothing in task rs_rg of point"),
        (lambda: goals.make("fish", "fs_rg", goal_range=5), "goal_range means nothing in task fs_rg of fish"),
        (lambda: goals.make("point", "rs_rg", separation=5.0), "separation 5.0 m is above 0.6 of the side"),
        (lambda: goals.make("point", "fs_rg", radius=0), "radius must be positive, got 0"),
        (lambda: goals.make("point", "maze_easy", separation=12), "no two connected free cells .* are 12 m apart"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
