"""Light and colour: OpenGL's fixed lighting as MuJoCo sets it up, floors as functions of position, the sky.

Floors (x, y in metres, s half the side of the drawn floor; colours from 0 to 1):
    paper      the paper's texture: red (s - y) / 2s, green (x + s) / 2s, blue 128/255
    unicolor   the mean of `paper` everywhere: (0.5, 0.5, 0.5)
    gradation  two ramps in other channels, turned round: red 128/255, green (y + s) / 2s, blue (s - x) / 2s
    grid       squares of s / 15 in dm_control's two blues, (0.1, 0.2, 0.3) and (0.2, 0.3, 0.4): for people, who see by
               it how fast a body moves
unicolor and gradation are the background shift of the paper's table; its own colours are not published. Beyond s there
is no floor, as in MuJoCo, and the sky shows; the grid is endless.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from envs.render.camera import Camera, pixel_rays

Array = jax.Array
Color = tuple[Array, Array, Array]
HALF_GREY = 128 / 255
SKY_RAYS = 512  # across the picture: about the resolution of a skybox
NO_COLOR = (0.5, 0.5, 0.5, 1.0)  # of a geom that was given none
SHININESS = 64  # OpenGL's exponent for a material whose shininess is 0.5: MuJoCo's default, and that of all bodies here


@dataclasses.dataclass(frozen=True, eq=False)
class Lamp:
    """A lamp; the head lamp has only its three strengths."""

    ambient: float
    diffuse: float
    specular: float
    body: int | None = None  # that it follows; None: the centre of mass
    offset: np.ndarray | None = None  # [3] m, from what it follows
    direction: np.ndarray | None = None  # [3] world axes
    cutoff: float = 180.0  # degrees
    exponent: int = 0
    directional: bool = False  # its light is parallel, from everywhere
    attenuation: tuple[float, float, float] = (1.0, 0.0, 0.0)  # light is divided by a + b r + c r^2 at a distance r, m
    cover: tuple[int, float] | None = None  # a body and its height, m, from which on it does not hide the lamp


@dataclasses.dataclass(frozen=True, eq=False)
class Floor:
    color: Callable[[Array, Array, float], Color]  # of x, y (m) and the half side
    size: float  # m, half side, that colours refer to
    edge: float  # m, half side of what is drawn
    height: float  # m
    specular: float
    reflectance: float


def _paper(x: Array, y: Array, s: float) -> Color:
    return (s - y) / (2 * s), (x + s) / (2 * s), jnp.full_like(x, HALF_GREY)


def _unicolor(x: Array, y: Array, s: float) -> Color:
    grey = jnp.full_like(x, 0.5)
    return grey, grey, grey


def _gradation(x: Array, y: Array, s: float) -> Color:
    return jnp.full_like(x, HALF_GREY), (y + s) / (2 * s), (s - x) / (2 * s)


def _grid(x: Array, y: Array, s: float) -> Color:
    side = s / 15
    light = 0.1 * ((jnp.floor(x / side) + jnp.floor(y / side)) % 2)
    return 0.1 + light, 0.2 + light, 0.3 + light


FLOORS = {"paper": _paper, "unicolor": _unicolor, "gradation": _gradation, "grid": _grid}
ENDLESS = ("grid",)


def floor_named(name: str) -> Callable[[Array, Array, float], Color]:
    if name not in FLOORS:
        raise ValueError(f"unknown floor {name!r}: choose one of {', '.join(FLOORS)}")
    return FLOORS[name]


def floor_material(model: mujoco.MjModel) -> tuple[float, float]:
    """Specular strength and reflectance of the model's plane; dm_control's if it has none."""
    planes = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)
    material = model.geom_matid[planes[0]] if len(planes) else -1
    if material < 0:
        return 0.5, 0.2
    return float(model.mat_specular[material]), float(model.mat_reflectance[material])


def surface(model: mujoco.MjModel, geom: int) -> list[float]:
    """Red, green, blue and specular strength of a geom; its own colour, if it has one, beats its material's."""
    material = model.geom_matid[geom]
    if material < 0:
        return [*model.geom_rgba[geom, :3], 0.5]
    own = (model.geom_rgba[geom] != NO_COLOR).any()
    color = model.geom_rgba[geom, :3] if own else model.mat_rgba[material, :3]
    texture = model.mat_texid[material, mujoco.mjtTextureRole.mjTEXROLE_RGB]
    return [*color * texture_mean(model, texture), model.mat_specular[material]]


def texture_mean(model: mujoco.MjModel, texture: int) -> np.ndarray:
    """[3] mean colour of a texture, from 0 to 1; white for none (-1)."""
    if texture < 0:
        return np.ones(3)
    first, channels = model.tex_adr[texture], int(model.tex_nchannel[texture])
    size = int(model.tex_width[texture]) * int(model.tex_height[texture]) * channels
    return model.tex_data[first : first + size].reshape(-1, channels)[:, :3].mean(0) / 255


def head_lamp(model: mujoco.MjModel) -> Lamp:
    head = model.vis.headlight
    return Lamp(*(float(strength[0]) for strength in (head.ambient, head.diffuse, head.specular)))


def lamps(model: mujoco.MjModel) -> tuple[Lamp, ...]:
    """The model's spots, which follow the centre of mass or a body."""
    found = []
    for i in range(model.nlight):
        follows_com = model.light_mode[i] == mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM
        if not follows_com and model.light_mode[i] != mujoco.mjtCamLight.mjCAMLIGHT_TRACK:
            raise ValueError(f"lamp {i} of the model follows nothing: only `track` and `trackcom` are drawn")
        strengths = (model.light_ambient[i, 0], model.light_diffuse[i, 0], model.light_specular[i, 0])
        offset = model.light_poscom0[i] if follows_com else model.light_pos0[i]
        cutoff, exponent = float(model.light_cutoff[i]), int(model.light_exponent[i])
        body = None if follows_com else int(model.light_bodyid[i])
        found.append(Lamp(*map(float, strengths), body, offset, model.light_dir0[i], cutoff, exponent))
    return tuple(found)


def room_lamps(model: mujoco.MjModel, covers: dict[str, tuple[str, float]]) -> tuple[Lamp, ...]:
    """The lamps of a room, which stand still. covers: of a lamp's name, the body that hides it below a height, m."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    found = []
    for i in range(model.nlight):
        cover = covers.get(model.light(i).name)
        found.append(
            Lamp(
                *(float(v[i, 0]) for v in (model.light_ambient, model.light_diffuse, model.light_specular)),
                offset=data.light_xpos[i].copy(),
                direction=data.light_xdir[i].copy(),
                cutoff=float(model.light_cutoff[i]),
                exponent=int(model.light_exponent[i]),
                directional=model.light_type[i] == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
                attenuation=tuple(float(a) for a in model.light_attenuation[i]),
                cover=None if cover is None else (model.body(cover[0]).id, cover[1]),
            )
        )
    return tuple(found)


def sky(model: mujoco.MjModel, camera: Camera, size: tuple[int, int]) -> np.ndarray:
    """[3, h, w] the model's skybox behind a picture of size (h, w), each pixel the mean of some; black without one."""
    boxes = np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)
    if not len(boxes):
        return np.zeros((3, *size))
    box, width = boxes[0], int(model.tex_width[boxes[0]])
    start = model.tex_adr[box]
    faces = model.tex_data[start : start + 6 * width * width * 3].reshape(6, width, width, 3)
    fine = max(1, SKY_RAYS // max(size))
    rays = pixel_rays(camera, (size[0] * fine, size[1] * fine))
    right, forward, up = np.einsum("ij,jhw->ihw", camera.turn, rays)
    colors = _cube_map(faces, np.stack([right, up, -forward]))
    return colors.reshape(3, size[0], fine, size[1], fine).mean((2, 4))


def _cube_map(faces: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """[3, h, w] from faces +x -x +y -y +z -z [6, k, k, 3] along directions [3, h, w], by OpenGL's rules."""
    x, y, z = direction
    size = np.abs(direction)
    axis = size.argmax(0)
    major = np.take_along_axis(direction, axis[None], 0)[0]
    face = 2 * axis + (major < 0)
    s = np.select([axis == 0, axis == 1, axis == 2], [-z * np.sign(x), x, x * np.sign(z)]) / size.max(0)
    t = np.select([axis == 0, axis == 1, axis == 2], [-y, z * np.sign(y), -y]) / size.max(0)
    k = faces.shape[1]
    column, row = (np.clip(((a + 1) / 2 * k).astype(int), 0, k - 1) for a in (s, t))
    return np.moveaxis(faces[face, row, column], -1, 0) / 255


def normalized(v: tuple) -> tuple:
    scale = jax.lax.rsqrt(jnp.maximum(v[0] ** 2 + v[1] ** 2 + v[2] ** 2, 1e-20))
    return v[0] * scale, v[1] * scale, v[2] * scale


def unit(v: np.ndarray) -> np.ndarray:
    """Constant vectors [3, ...] at length one."""
    return v / np.linalg.norm(v, axis=0)


def head_light(lamp: Lamp, normal: tuple, view: np.ndarray) -> tuple[Array, Array]:
    """Strength of diffuse (with ambient) and specular light from the camera.

    normal: of the lit points, unit, camera axes. view: [3, ...] unit vectors from them to the camera.
    """
    facing = jnp.maximum(normal[2], 0)
    half = unit(view + np.float32([0, 0, 1]).reshape(3, *[1] * (view.ndim - 1)))
    return lamp.ambient + lamp.diffuse * facing, lamp.specular * _shine(normal, half, facing)


def spot_light(lamp: Lamp, to_lamp: tuple, axis: np.ndarray, normal: tuple, view: np.ndarray) -> tuple[Array, Array]:
    """The same from a spot: to_lamp from the lit point, axis of the spot [3], all in camera axes."""
    light = normalized(to_lamp)
    facing = jnp.maximum(_dot(normal, light), 0)
    along = -_dot(light, axis)
    inside = along > np.cos(np.radians(lamp.cutoff))
    strength = jnp.where(inside, jnp.maximum(along, 0) ** lamp.exponent, 0)
    if lamp.attenuation != Lamp.attenuation:
        constant, linear, square = lamp.attenuation
        squared = _dot(to_lamp, to_lamp)
        strength = strength / (constant + linear * jnp.sqrt(squared) + square * squared)
    half = normalized(tuple(v + o for v, o in zip(view, light, strict=True)))
    return strength * lamp.diffuse * facing, strength * lamp.specular * _shine(normal, half, facing)


def _shine(normal: tuple, half: tuple, facing: Array) -> Array:
    return jnp.where(facing > 0, jnp.maximum(_dot(normal, half), 0) ** SHININESS, 0)


def _dot(a: tuple, b: tuple) -> Array:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
