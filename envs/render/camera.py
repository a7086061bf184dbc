"""What stands still in a picture: pixel rays of a camera, the sky behind, and the window a body stays in."""

import dataclasses
from collections.abc import Sequence

import mujoco
import numpy as np

_MODE = mujoco.mjtCamLight


@dataclasses.dataclass(frozen=True, eq=False)
class Camera:
    """A camera that never turns: it follows a centre of mass, or stands still in a room."""

    offset: np.ndarray  # [3] m, from the centre of mass; from the origin if it stands still
    turn: np.ndarray  # [3, 3] its axes as columns: right, up, back
    fovy: float  # degrees, vertical field of view
    follows: bool = True


def looking_at(point: Sequence[float], distance: float, azimuth: float, elevation: float, fovy: float = 45) -> Camera:
    """A camera that stands still, given as MuJoCo's free camera: m and degrees."""
    across, up = np.radians(azimuth), np.radians(elevation)
    forward = np.array([np.cos(up) * np.cos(across), np.cos(up) * np.sin(across), np.sin(up)])
    right = np.array([np.sin(across), -np.cos(across), 0])
    turn = np.stack([right, np.cross(right, forward), -forward], axis=1)
    return Camera(np.asarray(point) - distance * forward, turn, fovy, follows=False)


def tracking(model: mujoco.MjModel, name: str) -> Camera:
    """The model's camera of that name; it must be of mode `trackcom`."""
    names = [model.cam(i).name for i in range(model.ncam)]
    tracks = [n for i, n in enumerate(names) if model.cam_mode[i] == _MODE.mjCAMLIGHT_TRACKCOM]
    if name not in tracks:
        known = f"choose one of {', '.join(tracks)}" if tracks else "it has no tracking camera at all"
        raise ValueError(f"the model has no camera {name!r} that tracks a centre of mass: {known}")
    camera = model.cam(name).id
    return Camera(model.cam_poscom0[camera], model.cam_mat0[camera].reshape(3, 3), float(model.cam_fovy[camera]))


def pixel_rays(camera: Camera, size: tuple[int, int]) -> np.ndarray:
    """[3, H, W] directions (u, v, -1) through the centres of the pixels, camera axes; size is (H, W)."""
    height, width = size
    scale = np.tan(np.radians(camera.fovy) / 2)
    u = ((np.arange(width) + 0.5) * 2 / width - 1) * scale * width / height
    v = (1 - (np.arange(height) + 0.5) * 2 / height) * scale
    return np.stack([*np.broadcast_arrays(u[None, :], v[:, None]), -np.ones(size)])


def window(camera: Camera, size: tuple[int, int], reach: float) -> tuple[slice, slice]:
    """Rows and columns outside which no pixel sees the ball of radius `reach` around the centre of mass."""
    height, width = size
    centre = -camera.turn.T @ camera.offset  # of the ball, camera axes
    if np.linalg.norm(centre) <= reach or -centre[2] <= reach:
        return slice(0, height), slice(0, width)
    scale = np.tan(np.radians(camera.fovy) / 2)
    angles = [np.arctan2(centre[i], -centre[2]) for i in (0, 1)]
    spread = [np.arcsin(reach / np.hypot(centre[i], centre[2])) for i in (0, 1)]
    left, right = (np.tan(angles[0] + s * spread[0]) / scale * height / width for s in (-1, 1))
    low, high = (np.tan(angles[1] + s * spread[1]) / scale for s in (-1, 1))
    return _pixels(-high, -low, height), _pixels(left, right, width)


def _pixels(low: float, high: float, count: int) -> slice:
    """The pixels of an axis [-1, 1] whose centres lie in [low, high]; none would be an empty slice."""
    first, last = np.ceil((low + 1) / 2 * count - 0.5), np.floor((high + 1) / 2 * count - 0.5)
    return slice(int(np.clip(first, 0, count)), int(np.clip(last + 1, 0, count)))


def reach(model: mujoco.MjModel, geoms: np.ndarray) -> float:
    """A distance, m, that no point of these geoms can have from the centre of mass of what moves, in any pose.

    The vector from the centre of mass to a point is the mean, by mass, of the vectors from the bodies to the point, and
    none of those is longer than the way along the links between them: from joint to joint, whatever the angles.
    """
    bodies = np.flatnonzero((model.body_rootid > 0) & (model.body_mass > 0) & (model.body_weldid > 0))
    share = model.body_mass[bodies] / model.body_mass[bodies].sum()
    found = 0.0
    for geom in geoms:
        for point, radius in _balls(model, geom):
            ways = [_way(model, model.geom_bodyid[geom], point, other, model.body_ipos[other]) for other in bodies]
            found = max(found, radius + float(share @ ways))
    return found


def _balls(model: mujoco.MjModel, geom: int) -> list[tuple[np.ndarray, float]]:
    """Balls (centre in the body's frame, radius) whose hull holds the geom."""
    if model.geom_type[geom] != mujoco.mjtGeom.mjGEOM_CAPSULE:
        return [(model.geom_pos[geom], float(model.geom_rbound[geom]))]
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
    radius, half, _ = model.geom_size[geom]
    return [(model.geom_pos[geom] + sign * half * turn.reshape(3, 3)[:, 2], float(radius)) for sign in (-1, 1)]


def _way(model: mujoco.MjModel, body: int, point: np.ndarray, other: int, other_point: np.ndarray) -> float:
    """The longest that the way between two points fixed to two bodies can be, along the links, m."""
    up, other_up = _ancestors(model, body), _ancestors(model, other)
    common = next(b for b in up if b in other_up)
    length, at = _climb(model, up[: up.index(common)], point)
    other_length, other_at = _climb(model, other_up[: other_up.index(common)], other_point)
    return length + other_length + float(np.linalg.norm(at - other_at))


def _ancestors(model: mujoco.MjModel, body: int) -> list[int]:
    found = [int(body)]
    while found[-1]:
        found.append(int(model.body_parentid[found[-1]]))
    return found


def _climb(model: mujoco.MjModel, bodies: list[int], point: np.ndarray) -> tuple[float, np.ndarray]:
    """Length of the way from a point of the first body up through these bodies, and where it ends, in the frame of the
    parent of the last. Each joint turns the way about its anchor; without a joint the point is just carried over."""
    length = 0.0
    for body in bodies:
        first, count = model.body_jntadr[body], model.body_jntnum[body]
        for joint in reversed(range(first, first + count)):
            anchor = model.jnt_pos[joint]
            length += float(np.linalg.norm(point - anchor))
            if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE:
                length += float(np.abs(model.jnt_range[joint]).max()) if model.jnt_limited[joint] else np.inf
            point = anchor
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.body_quat[body])
        point = model.body_pos[body] + turn.reshape(3, 3) @ point
    return length, point
