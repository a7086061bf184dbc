"""Collision geometry of a maze: walls in the world, and what of a body feels them, so that MJX finds contacts cheaply.

MJX tests every candidate pair at every step, and its capsule against box is slow. So
* walls are four planes around the room and tall boxes in it;
* a body meets them with spheres at the ends of its capsules, which is exact but for a capsule's middle at an edge;
* there a vertical post inside the edge, which only capsules meet, keeps the middle out.
Spheres that never stick out of another one by more than a tolerance are left out (a shin's end in the knee).
"""

import copy
import dataclasses

import mujoco
import numpy as np

from envs.tasks.layout import Maze, Rectangle

WALL_BIT, POST_BIT = 4, 8  # beside those of `envs.suite`
HALF_HEIGHT = 50.0  # m, of boxes and posts, above and below the floor: nothing gets over
POST_RADIUS = 0.05  # m; a post touches both faces of its edge from inside
POSES = 64  # random poses in which spheres are compared
PARAMETERS = ("condim", "priority", "friction", "solref", "solimp", "solmix")
_GEOM = mujoco.mjtGeom


@dataclasses.dataclass(frozen=True)
class Feeler:
    """A sphere of a body that meets walls."""

    geom: int  # the geom it stands for
    pos: np.ndarray  # [3] m, in the body's frame
    radius: float  # m


def enclose(spec: mujoco.MjSpec, maze: Maze, condim: int, tolerance: float) -> None:
    """Puts the body of `spec` into the maze. condim: 3 for walls with friction, 1 for slippery ones.
    tolerance: m, by which parts of the body may stick into walls, so that fewer spheres are needed."""
    spec.option.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    model, geoms = spec.compile(), list(spec.geoms)  # in the same order
    capsules = [g for g in _colliding(model) if model.geom_type[g] == _GEOM.mjGEOM_CAPSULE]
    feelers = uncovered(model, ends(model), tolerance)
    for geom in capsules:
        geoms[geom].conaffinity |= POST_BIT
    for number, feeler in enumerate(feelers):
        _add_feeler(geoms[feeler.geom], feeler, f"feeler{number}", spec.default)
    _add_walls(spec, maze, condim)
    _test_all_pairs(spec, max(len(feelers) * len(maze.blocks), len(capsules) * len(maze.corners())))


def _test_all_pairs(spec: mujoco.MjSpec, pairs: int) -> None:
    """Raises the body's limit of tested pairs: the nearest by bounding spheres are not the nearest to long walls."""
    limit = spec.numeric("max_geom_pairs")
    if limit is not None:
        limit.data = [max(limit.data[0], pairs)]


def _colliding(model: mujoco.MjModel) -> np.ndarray:
    """Indices of the body's geoms that can touch something."""
    return np.flatnonzero(((model.geom_contype | model.geom_conaffinity) > 0) & (model.geom_bodyid > 0))


def ends(model: mujoco.MjModel) -> list[Feeler]:
    """Spheres that touch a vertical wall where the body's geoms would."""
    found = []
    for geom in _colliding(model):
        kind, size = model.geom_type[geom], model.geom_size[geom]
        if kind == _GEOM.mjGEOM_SPHERE:
            axis, radius, places = np.zeros(3), size[0], [0.0]
        elif kind == _GEOM.mjGEOM_CAPSULE:
            axis, radius, places = np.array([0, 0, size[1]]), size[0], [-1.0, 1.0]
        elif kind == _GEOM.mjGEOM_ELLIPSOID:
            axis, radius, places = _ellipsoid_hull(size)
        else:
            raise ValueError(f"walls do not know how to meet {_GEOM(kind).name} {model.geom(geom).name!r}")
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
        found += [Feeler(int(geom), model.geom_pos[geom] + t * turn.reshape(3, 3) @ axis, radius) for t in places]
    return found


def _ellipsoid_hull(size: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
    """The capsule around an ellipsoid as spheres: half axis [3], radius, places along the axis.

    Its radius is the middle semi-axis, so it is thicker than the ellipsoid along the shortest one.
    """
    longest = int(np.argmax(size))
    radius = np.sort(size)[1]
    half = size[longest] - radius
    count = 2 + int(half / (0.2 * radius))  # between two spheres the hull is at most 2 % of its radius thinner
    return half * np.eye(3)[longest], radius, np.linspace(-1, 1, count)


def uncovered(model: mujoco.MjModel, feelers: list[Feeler], tolerance: float) -> list[Feeler]:
    """The feelers that stick out of every other by more than `tolerance`, m, in some pose.

    Ends of limbs and tail choose first, since they hit walls first and fastest; then large ones, which cover most.
    """
    rng, data = np.random.default_rng(0), mujoco.MjData(model)
    low, high = np.where(model.jnt_limited[:, None], model.jnt_range, [-np.pi, np.pi]).T
    single = np.flatnonzero(model.jnt_type != mujoco.mjtJoint.mjJNT_FREE)
    body = model.geom_bodyid[[f.geom for f in feelers]]
    local, radius = np.array([f.pos for f in feelers]), np.array([f.radius for f in feelers])
    out = np.full((len(feelers), len(feelers)), -np.inf)  # how far the first sticks out of the second, at most
    for _ in range(POSES):
        data.qpos[model.jnt_qposadr[single]] = rng.uniform(low[single], high[single])
        mujoco.mj_kinematics(model, data)
        centre = data.xpos[body] + np.einsum("fij,fj->fi", data.xmat[body].reshape(-1, 3, 3), local)
        distance = np.linalg.norm(centre[:, None] - centre, axis=-1)
        out = np.maximum(out, distance + radius[:, None] - radius)
    kept: list[int] = []
    for index in np.lexsort((-radius, np.isin(body, model.body_parentid))):
        if not any(out[index, other] <= tolerance for other in kept):
            kept.append(int(index))
    return [feelers[index] for index in sorted(kept)]


def _add_feeler(geom: mujoco.MjsGeom, feeler: Feeler, name: str, default: mujoco.MjsDefault) -> None:
    if geom.type == _GEOM.mjGEOM_SPHERE:
        geom.conaffinity |= WALL_BIT
        return
    sphere = geom.parent.add_geom(default, name=name, type=_GEOM.mjGEOM_SPHERE, mass=0)
    sphere.pos, sphere.size, sphere.group = feeler.pos, [feeler.radius, 0, 0], 4
    sphere.contype, sphere.conaffinity = 0, WALL_BIT
    for field in PARAMETERS:
        setattr(sphere, field, getattr(geom, field))


def _add_walls(spec: mujoco.MjSpec, maze: Maze, condim: int) -> None:
    def add(name: str, kind: mujoco.mjtGeom, pos: list[float], size: list[float], bit: int) -> mujoco.MjsGeom:
        return spec.worldbody.add_geom(
            name=name, type=kind, pos=pos, size=size, contype=bit, conaffinity=0, condim=condim
        )

    x, y, width, height = maze.room
    sides = {
        "left": ([x, 0, 0], [1, 0, 0]),
        "right": ([x + width, 0, 0], [-1, 0, 0]),
        "near": ([0, y, 0], [0, 1, 0]),
        "far": ([0, y + height, 0], [0, -1, 0]),
    }
    for side, (pos, inward) in sides.items():
        plane = add(f"wall_{side}", _GEOM.mjGEOM_PLANE, pos, [1, 1, 1], WALL_BIT)
        mujoco.mju_quatZ2Vec(plane.quat, np.array(inward, float))
    for number, block in enumerate(maze.blocks):
        x0, y0, x1, y1 = _into_the_outer_wall(block, maze)
        centre, half = [(x0 + x1) / 2, (y0 + y1) / 2, 0], [(x1 - x0) / 2, (y1 - y0) / 2, HALF_HEIGHT]
        add(f"wall_block{number}", _GEOM.mjGEOM_BOX, centre, half, WALL_BIT)
    for number, (x, y, towards_x, towards_y) in enumerate(maze.corners()):
        pos = [x + towards_x * POST_RADIUS, y + towards_y * POST_RADIUS, 0]
        add(f"wall_post{number}", _GEOM.mjGEOM_CAPSULE, pos, [POST_RADIUS, HALF_HEIGHT, 0], POST_BIT)


def _into_the_outer_wall(block: Rectangle, maze: Maze) -> tuple[float, float, float, float]:
    """Low and high corner of a block that goes on behind the planes it touches, so that it pushes inwards only."""
    room, s = maze.room, maze.side
    x0, y0, x1, y1 = block.x, block.y, block.x + block.width, block.y + block.height

    def at_end(a: float, b: float) -> bool:
        return abs(a - b) < 0.25 * s

    return (
        x0 - s * at_end(x0, room.x),
        y0 - s * at_end(y0, room.y),
        x1 + s * at_end(x1, room.x + room.width),
        y1 + s * at_end(y1, room.y + room.height),
    )


def clear_starts(model: mujoco.MjModel, qpos: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """[c, k] bool: does state k of qpos [k, nq], moved by shift [c, k, 2] m, keep clear of all walls?"""
    model = _walls_only(model)
    data = mujoco.MjData(model)
    clear = np.zeros(shift.shape[:2], bool)
    for place, state in np.ndindex(*clear.shape):
        data.qpos[:] = qpos[state]
        data.qpos[:2] += shift[place, state]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        clear[place, state] = data.ncon == 0
    return clear


def _walls_only(model: mujoco.MjModel) -> mujoco.MjModel:
    """A copy in which the body touches nothing but walls."""
    model = copy.copy(model)
    model.geom_contype &= WALL_BIT | POST_BIT
    model.geom_conaffinity &= WALL_BIT | POST_BIT
    return model
