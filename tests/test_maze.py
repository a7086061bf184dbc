"""Mazes: the free space is the paper's, bodies stay in it, a text file is a maze, and errors point into the file."""

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from maze_reference import FREE_CELLS, depth_in_walls, is_free, literal_maze

import envs
from envs.physics import PhysicsModel
from envs.physics.contacts import collide
from envs.physics.tree import kinematics
from envs.tasks import collision, goals, layout

MAZES = ("maze_easy", "maze_hard")


@functools.cache
def task_of(body: str, task: str) -> goals.GoalTask:
    return goals.make(body, task)


def blocked_by_geoms(model: mujoco.MjModel, xy: np.ndarray) -> np.ndarray:
    """[n] bool: is each point of xy [n, 2] behind a vertical plane or inside a box of the compiled model?"""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    points, blocked = np.column_stack([xy, np.full(len(xy), 0.3)]), np.zeros(len(xy), bool)
    for geom in range(model.ngeom):
        if not model.geom(geom).name.startswith("wall_"):
            continue
        local = (points - data.geom_xpos[geom]) @ data.geom_xmat[geom].reshape(3, 3)
        kind, size = model.geom_type[geom], model.geom_size[geom]
        if kind == mujoco.mjtGeom.mjGEOM_PLANE:
            blocked |= local[:, 2] < 0
        elif kind == mujoco.mjtGeom.mjGEOM_BOX:
            blocked |= (np.abs(local) < size).all(1)
        else:
            assert kind == mujoco.mjtGeom.mjGEOM_CAPSULE
            beyond = local - np.clip(local[:, 2:], -size[1], size[1]) * [0, 0, 1]
            inside = np.linalg.norm(beyond, axis=1) < size[0]
            assert not (inside & ~blocked).any(), "a post stands in free space"
    return blocked


@pytest.mark.parametrize("task", MAZES)
@pytest.mark.parametrize(("body", "side"), [("point", 1.0), ("quadruped", 1.5)])
def test_free_space_is_the_papers(body, side, task):
    spec = envs.body_class(body).edited_spec()
    collision.enclose(spec, layout.parse(goals.KINDS[task].layout, side, task), condim=3, tolerance=0.005)
    model = spec.compile()
    points = np.random.default_rng(0).uniform(-2 * side, 8 * side, (5000, 2))
    free = is_free(task, points, side)
    assert 0.25 < free.mean() < 0.45
    np.testing.assert_array_equal(blocked_by_geoms(model, points), ~free)
    kinds = [model.geom(g).type[0] for g in range(model.ngeom) if model.geom(g).name.startswith("wall_")]
    assert kinds.count(mujoco.mjtGeom.mjGEOM_PLANE) == 4 and kinds.count(mujoco.mjtGeom.mjGEOM_BOX) == 1


@pytest.mark.parametrize("task", MAZES)
def test_what_is_drawn_is_the_free_space(task):
    layout = task_of("point", task).maze
    points = np.random.default_rng(1).uniform(-1.4, 7.4, (5000, 2))
    x, y, width, height = np.array(layout.walls).T[..., None]
    px, py = points.T
    drawn = ((px > x) & (px < x + width) & (py > y) & (py < y + height)).any(0)
    np.testing.assert_array_equal(drawn, ~is_free(task, points, 1.0))
    np.testing.assert_array_equal(layout.start_xy, [1, 0])
    np.testing.assert_array_equal(layout.goal_xy, {"maze_easy": [5, 6], "maze_hard": [1, 6]}[task])


# Bodies driven into collision. Each row: start cell, direction, and where (axis, m) the puck must come to rest.
INTO_WALLS = [
    ((5, 3), (-1, 0), (0, 3.5 + 0.2)),  # block, right face
    ((1, 0), (0, 1), (1, 1.5 - 0.2)),  # block, lower face
    ((1, 6), (0, -1), (1, 4.5 + 0.2)),  # block, upper face
    ((0, 0), (1, 0), (0, 6.5 - 0.2)),  # outer walls, at full speed
    ((6, 6), (-1, 0), (0, -0.5 + 0.2)),
    ((6, 0), (0, 1), (1, 6.5 - 0.2)),
    ((6, 6), (0, -1), (1, -0.5 + 0.2)),
]
POINT_STEPS = 84  # agent steps of 0.05 s: the longest run-up takes 2.2 s, and 2 s at the wall
ALONG_A_WALL = ((6, 1), (1, 0.5))  # start and thrust: into the right wall, and up along it


def way_alone(thrust: float, seconds: float) -> float:
    """m, that a puck goes from rest along one axis: to 5 m/s times the thrust, with a time constant of 1 s."""
    return 5 * thrust * (seconds - 1 + np.exp(-seconds))


def test_point_driven_into_walls_stays_outside():
    """Against each wall for 2 s, along one, and random thrusts everywhere: along walls and around corners."""
    env, rng = task_of("point", "maze_hard").env, np.random.default_rng(0)
    cells = np.array(sorted(FREE_CELLS["maze_hard"]))[rng.integers(37, size=121)]
    slide, pushed_up = ALONG_A_WALL
    starts = np.concatenate([[row[0] for row in INTO_WALLS], cells, [slide]]).astype(np.float32)
    thrusts = [[row[1] for row in INTO_WALLS], rng.uniform(-1, 1, (121, 2)), [pushed_up]]
    thrusts = np.concatenate(thrusts).astype(np.float32)

    @jax.jit
    def run(starts, thrusts):
        state = jax.vmap(lambda xy: env.start_from(jnp.array(0), xy - env.bank.qpos[0]))(starts)
        step = lambda s, _: (s := jax.vmap(env.step)(s, thrusts), (s.info["position"], s.info["failed"]))
        return jax.lax.scan(step, state, None, length=POINT_STEPS)[1]

    path, failed = map(np.asarray, run(starts, thrusts))
    assert not failed.any()
    assert is_free("maze_hard", path.reshape(-1, 2), 1.0).all(), "the puck's centre went into a wall"
    model = literal_maze("point", "maze_hard", 1.0)
    depth = depth_in_walls(model, path.reshape(-1, 2)).reshape(path.shape[:2])
    assert depth.max() < 0.15, "more than the way of one physics step at 5 m/s, 0.125 m, and the wall's give"
    for row, (_, _, (axis, rest)) in enumerate(INTO_WALLS):
        assert path[-1, row, axis] == pytest.approx(rest, abs=0.03)
    for step in (10, 20, 30):  # without friction: the wall does not slow it down
        y = slide[1] + way_alone(pushed_up[1], 0.05 * step)
        np.testing.assert_allclose(path[step - 1, -1], [6.5 - 0.2, y], atol=0.05)


# Start (in cells) and direction: each wall once, and past the block's two edges.
PUSHES = [
    ((5, 3), (-1, 0)),
    ((2, 0.5), (0, 1)),
    ((2, 5.5), (0, -1)),
    ((5, 0.5), (1, 0)),
    ((1, 5.5), (-1, 0)),
    ((5.5, 5), (0, 1)),
    ((5.5, 1), (0, -1)),
    ((3, 0.5), (0.7, 0.7)),
    ((4.5, 2), (-0.7, -0.7)),
    ((3, 5.5), (0.7, -0.7)),
]
PUSH = 1.5  # m/s, renewed every 0.04 s for 2 s while the limbs flail
MOST_DEPTH = 0.06  # m, of the unedited body in the literal boxes: the tolerance and the walls' give
SIDE = {"quadruped": 1.5, "humanoid": 1.0, "dog": 1.0}


@functools.cache
def enclosed(body: str) -> mujoco.MjModel:
    cls = envs.body_class(body)
    spec = cls.edited_spec()
    collision.enclose(spec, layout.parse(layout.HARD, SIDE[body], "hard"), cls.wall_condim, cls.wall_tolerance)
    return spec.compile()


@functools.cache
def pushed_in_c(body: str) -> np.ndarray:
    """[pushes, time, nq] states of the enclosed body in C MuJoCo with a converged solver."""
    model, rng = copy.copy(enclosed(body)), np.random.default_rng(0)
    model.opt.iterations, model.opt.ls_iterations = 50, 50
    paths, every = [], round(0.04 / model.opt.timestep)
    for start, direction in PUSHES:
        data, path = mujoco.MjData(model), []
        data.qpos[:2], data.qpos[2] = np.multiply(start, SIDE[body]), data.qpos[2] + 0.1
        for _ in range(50):
            data.qvel[:2], data.ctrl[:] = np.multiply(direction, PUSH), rng.uniform(-1, 1, model.nu)
            mujoco.mj_step(model, data, every)
            path.append(data.qpos.copy())
        paths.append(path)
    return np.array(paths)


def assert_outside_walls(body: str, path: np.ndarray) -> None:
    """States [pushes, time, nq]; the unedited body in the literal boxes judges."""
    assert is_free("maze_hard", path[..., :2].reshape(-1, 2), SIDE[body]).all()
    depth = depth_in_walls(literal_maze(body, "maze_hard", SIDE[body]), path.reshape(-1, path.shape[-1]))
    depth = depth.reshape(path.shape[:2])
    assert depth.max() < MOST_DEPTH, depth.max(1)
    assert (depth.max(1)[:7] > 0).all(), "it never got to a wall"


@pytest.mark.parametrize("body", ["quadruped", "humanoid", pytest.param("dog", marks=pytest.mark.slow)])
def test_walls_keep_the_whole_body_out(body):
    """The compiled geometry, without our physics: limbs, torso and capsules' middles at edges."""
    assert_outside_walls(body, pushed_in_c(body))


@pytest.mark.parametrize("body", ["quadruped", pytest.param("humanoid", marks=pytest.mark.slow)])
def test_our_physics_finds_the_wall_contacts_of_c_mujoco(body):
    model, states = enclosed(body), pushed_in_c(body)[:, ::5].reshape(-1, enclosed(body).nq)
    physics_model, data, wall = PhysicsModel.of(model), mujoco.MjData(model), np.zeros(model.ngeom, bool)
    wall[[g for g in range(model.ngeom) if model.geom(g).name.startswith("wall_")]] = True
    contact, _ = jax.jit(lambda q: collide(physics_model, kinematics(physics_model.tree, q)))(states.T)
    touching = 0
    for qpos, dist, geom in zip(states, np.asarray(contact.dist), np.asarray(contact.geom), strict=True):
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        expected = np.sort(data.contact.dist[wall[data.contact.geom].any(1)])
        found = np.sort(dist[wall[geom].any(1)])
        np.testing.assert_allclose(found[: len(expected)], expected, atol=2e-5)
        assert (found[len(expected) :] > -1e-5).all()
        touching += len(expected) > 0
    assert touching > 20


@pytest.mark.slow
def test_quadruped_pushed_into_walls_stays_outside():
    """The same pushes in our physics."""
    env = task_of("quadruped", "maze_hard").env
    starts, directions = np.array(PUSHES, np.float32).swapaxes(0, 1)
    actions = jax.random.uniform(jax.random.key(0), (50, len(PUSHES), env.action_size), minval=-1)

    def step(state, action):
        moving = state.pipeline_state.physics
        moving = dataclasses.replace(moving, qvel=moving.qvel.at[:, :2].set(PUSH * directions))
        state = state.replace(pipeline_state=dataclasses.replace(state.pipeline_state, physics=moving))
        state = jax.vmap(env.step)(state, action)
        return state, (state.pipeline_state.physics.qpos, state.info["failed"])

    state = jax.vmap(env.start_from, in_axes=(None, 0))(jnp.array(0), starts * SIDE["quadruped"])
    path, failed = map(np.asarray, jax.jit(lambda s, a: jax.lax.scan(step, s, a)[1])(state, actions))
    assert not failed.any()
    assert_outside_walls("quadruped", path.swapaxes(0, 1))


# Layouts as text.


def test_text_grid_equals_the_built_in_maze(tmp_path):
    drawn = tmp_path / "easy.txt"
    drawn.write_text("\n".join(["#########", *(f"#{line}#" for line in layout.EASY.splitlines()), "#########", "", ""]))
    ours, built_in = goals.make("point", "maze", maze_file=drawn), task_of("point", "maze_easy")
    for field in ("geom_type", "geom_pos", "geom_quat", "geom_size", "geom_contype", "geom_conaffinity"):
        np.testing.assert_array_equal(getattr(ours.env.model, field), getattr(built_in.env.model, field))
    key = jax.random.key(0)
    for evaluate in (False, True):
        (state, goal), (same, same_goal) = ours.reset(key, evaluate), built_in.reset(key, evaluate)
        np.testing.assert_array_equal(state.info["position"], same.info["position"])
        np.testing.assert_array_equal(goal, same_goal)


@pytest.mark.parametrize("seed", range(5))
def test_any_grid_is_covered_exactly(seed):
    rng = np.random.default_rng(seed)
    solid = rng.random(rng.integers(3, 15, 2)) < 0.4
    blocks, covered = layout.cover(solid), np.zeros_like(solid)
    for i0, j0, i1, j1 in blocks:
        covered[i0:i1, j0:j1] = True
    np.testing.assert_array_equal(covered, solid)


def test_simple_shapes_need_few_blocks():
    cross = np.zeros((5, 5), bool)
    cross[2], cross[:, 2] = True, True
    ring = np.pad(np.zeros((3, 4), bool), 1, constant_values=True)
    shapes = {"one": np.ones((9, 4), bool), "none": np.zeros((3, 3), bool), "cross": cross, "ring": ring}
    assert {name: len(layout.cover(s)) for name, s in shapes.items()} == {"one": 1, "none": 0, "cross": 2, "ring": 4}


def test_edges_that_stick_out_are_found():
    drawn = layout.parse("S....\n..#..\n....G", 2.0, "x")
    assert sorted(drawn.corners()) == [(3, 1, 1, 1), (3, 3, 1, -1), (5, 1, -1, 1), (5, 3, -1, -1)]
    assert layout.parse("##.\nS.G", 1.0, "x").corners() == [(1.5, 0.5, -1, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("S.G\n.x.\n", r"m.txt, line 2, column 2: unknown character 'x'"),
        ("S.G\n....\n", r"m.txt, line 2, column 4: 4 cells in this line and 3 in line 1"),
        ("S.G\n..\n", r"m.txt, line 2, column 3: 2 cells"),
        ("###\n###\n", r"m.txt: no free cell"),
        ("", r"m.txt: empty"),
        ("..G\n", r"m.txt: no S \(start\)"),
        ("S..\n", r"m.txt: no G \(goal\)"),
        ("S.G\nG..\n", r"m.txt, line 2, column 1: a second G; the first is in line 1, column 3"),
        ("S.#.\n.##G\n", r"m.txt, line 2, column 4: the goal cannot be reached from the start in line 1, column 1"),
        ("S#\n#G\n", r"line 2, column 2: the goal cannot be reached"),
        ("SG\n", r"no two connected free cells of the maze are 3.0 m apart"),
    ],
)
def test_bad_mazes_are_pointed_at(text, message, tmp_path):
    file = tmp_path / "m.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        goals.make("point", "maze", maze_file=file)


def test_maze_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read the maze .*none.txt"):
        goals.make("point", "maze", maze_file=tmp_path / "none.txt")
