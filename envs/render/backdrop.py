"""Backdrop: what stands still in a room, as a camera that stands still sees it, drawn once with MuJoCo's own rays.

Meshes, boxes and all other shapes of the stock model are met exactly, and so are their shadows. What moves is drawn in
front of it in each frame (`envs.render.draw`) and leaves no shadow.
"""

import copy
import dataclasses
from collections.abc import Sequence

import mujoco
import numpy as np

from envs.render import shading
from envs.render.camera import Camera, pixel_rays
from envs.render.shading import Lamp

FINE = 256  # rays along each side of a picture, of which a pixel shows the mean
SHADOWS = 128  # points along each side of a picture at which shadows of directional lamps are found
CLEAR = 1e-3  # m, by which light must be stopped before a point for the point to lie in shadow


@dataclasses.dataclass(frozen=True, eq=False)
class Backdrop:
    """Colours of a room with its covered lamps off and on, and how far away it is."""

    off: np.ndarray  # [h, w] packed colours
    on: np.ndarray
    depth: np.ndarray  # [h, w] m, along the camera's axis; infinite where there is nothing


def make(
    model: mujoco.MjModel,
    camera: Camera,
    size: tuple[int, int],
    groups: Sequence[int],
    head: Lamp,
    lamps: Sequence[Lamp],
) -> Backdrop:
    """The backdrop of a picture with h x w rays: all geoms of these groups that do not move."""
    times = max(1, FINE // max(size))
    model, data = _still(model, groups)
    rays = pixel_rays(camera, (size[0] * times, size[1] * times))
    shape = rays.shape[1:]
    rays = rays.reshape(3, -1)
    geom, depth, normal = _cast(model, data, camera.offset, camera.turn @ rays)
    seen = geom >= 0
    points = camera.offset[:, None] + camera.turn @ (rays * np.where(seen, depth, 1.0))
    normal = np.where((normal * (camera.turn @ rays)).sum(0) > 0, -normal, normal)
    surface = np.array([shading.surface(model, g) for g in range(model.ngeom)])[geom]
    to_eye = -shading.unit(rays)
    local_normal, local_point = camera.turn.T @ normal, rays * np.where(seen, depth, 1.0)
    strength = {False: list(shading.head_light(head, tuple(local_normal), to_eye))}
    strength[True] = strength[False].copy()
    for lamp in lamps:
        to_lamp, axis = _towards(lamp, camera, local_point), camera.turn.T @ lamp.direction
        lit = ~_in_shadow(model, data, lamp, points.reshape(3, *shape)).ravel()
        found = shading.spot_light(lamp, to_lamp, axis, tuple(local_normal), to_eye)
        for on in (False, True):
            if on or lamp.cover is None:
                strength[on] = [s + np.where(lit, np.asarray(f), 0) for s, f in zip(strength[on], found, strict=True)]
    sky = shading.sky(model, camera, shape).reshape(3, -1)

    def packed(on: bool) -> np.ndarray:
        diffuse, shine = strength[on]
        color = np.where(seen, np.clip(surface[:, :3].T * diffuse + surface[:, 3] * shine, 0, 1), sky)
        mean = color.reshape(3, size[0], times, size[1], times).mean((2, 4))
        red, green, blue = np.round(mean * 255).astype(np.int32)
        return (red << 16) | (green << 8) | blue

    middle = np.where(seen, depth, np.inf).reshape(shape)[times // 2 :: times, times // 2 :: times]
    return Backdrop(packed(False), packed(True), middle.astype(np.float32))


def _still(model: mujoco.MjModel, groups: Sequence[int]) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """A copy in which group 0 has the geoms that stand still and are drawn, and group 1 all others."""
    model = copy.copy(model)
    drawn = (model.body_weldid[model.geom_bodyid] == 0) & np.isin(model.geom_group, groups)
    model.geom_group[:] = np.where(drawn, 0, 1)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def _cast(
    model: mujoco.MjModel, data: mujoco.MjData, start: np.ndarray, rays: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What rays [3, n] from a point meet: geoms [n] (-1: none), distances in lengths of the ray [n], normals [3, n]."""
    count = rays.shape[1]
    geom, distance, normal = np.zeros(count, np.int32), np.zeros(count), np.zeros(3 * count)
    visible = np.array([1, 0, 0, 0, 0, 0], np.uint8)
    vectors = np.ascontiguousarray(rays.T).ravel()
    mujoco.mj_multiRay(model, data, start, vectors, visible, True, -1, geom, distance, normal, count, mujoco.mjMAXVAL)
    return geom, distance, normal.reshape(count, 3).T


def _towards(lamp: Lamp, camera: Camera, points: np.ndarray) -> tuple:
    """From points [3, n] to a lamp, camera axes."""
    if lamp.directional:
        return tuple(np.broadcast_to(-(camera.turn.T @ lamp.direction)[:, None], points.shape))
    return tuple((camera.turn.T @ (lamp.offset - camera.offset))[:, None] - points)


def _in_shadow(model: mujoco.MjModel, data: mujoco.MjData, lamp: Lamp, points: np.ndarray) -> np.ndarray:
    """Where [h, w] something that stands still is between the lamp and points [3, h, w].

    As in MuJoCo, the light of a directional lamp begins at a plane through its position.
    """
    if not lamp.directional:
        way = points.reshape(3, -1) - lamp.offset[:, None]
        _, share, _ = _cast(model, data, lamp.offset, way)
        return ((share >= 0) & ((1 - share) * np.linalg.norm(way, axis=0) > CLEAR)).reshape(points.shape[1:])
    times = max(1, points.shape[1] // SHADOWS)
    some = points[:, ::times, ::times]
    room = np.einsum("i,ihw->hw", lamp.direction, some - lamp.offset[:, None, None])
    geom, visible, dark = np.zeros(1, np.int32), np.array([1, 0, 0, 0, 0, 0], np.uint8), np.zeros(room.shape, bool)
    for row, column in np.argwhere(room > 0):
        start = some[:, row, column] - CLEAR * lamp.direction
        way = mujoco.mj_ray(model, data, start, -lamp.direction, visible, True, -1, geom)
        dark[row, column] = 0 <= way < room[row, column]
    return dark.repeat(times, 0).repeat(times, 1)[: points.shape[1], : points.shape[2]]
