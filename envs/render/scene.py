"""Scene: everything that a picture needs and that does not move, read once from a MuJoCo model."""

import dataclasses
from collections.abc import Sequence

import mujoco
import numpy as np

from envs.render import backdrop as backdrops
from envs.render import camera as cameras
from envs.render import shading
from envs.render.backdrop import Backdrop
from envs.render.camera import Camera
from envs.render.shading import Floor, Lamp

_GEOM = mujoco.mjtGeom
KIND = {  # in the order in which shapes are counted
    int(_GEOM.mjGEOM_SPHERE): "sphere",
    int(_GEOM.mjGEOM_CAPSULE): "capsule",
    int(_GEOM.mjGEOM_ELLIPSOID): "ellipsoid",
    int(_GEOM.mjGEOM_CYLINDER): "cylinder",
    int(_GEOM.mjGEOM_BOX): "box",
}
WALL_COLOR = (0.45, 0.45, 0.5)
WALL_HEIGHT = 0.5  # m, of drawn maze walls: they are much taller where they are felt, and would hide the body
ROOM_FLOORS = ("paper", "grid")  # what pictures and videos ask for unless told otherwise; a room keeps its own
VISIBLE = (0, 1, 2)  # groups of geoms that MuJoCo's viewers show


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """S shapes of one kind, fixed to bodies."""

    body: np.ndarray  # [S]
    pos: np.ndarray  # [S, 3] m, in the body's frame
    turn: np.ndarray  # [S, 3, 3]
    size: np.ndarray  # [S, 3] half sizes, as `envs.render.rays` names them a, b, c
    surface: np.ndarray  # [S, 4] red, green, blue, specular strength


@dataclasses.dataclass(frozen=True, eq=False)
class Scene:
    """Constants (numpy, float32) of a picture of size (H, W)."""

    size: tuple[int, int]
    subsamples: int  # rays along each side of a pixel
    shadow: bool
    mirror: bool
    camera: Camera
    rays: np.ndarray  # [3, h, w] camera axes; h = H * subsamples
    sky: np.ndarray  # [3, h, w]
    window: tuple[slice, slice]  # rows and columns of the h x w rays that can meet a shape
    parts: dict[str, Part]  # by kind
    head: Lamp  # shines from the camera
    lamps: tuple[Lamp, ...]
    floor: Floor | None  # None in a room, which has a backdrop
    backdrop: Backdrop | None = None

    @property
    def rows(self) -> dict[str, slice]:
        """The rows of each kind among all shapes."""
        ends = np.cumsum([0, *(len(part.body) for part in self.parts.values())])
        return {kind: slice(int(ends[i]), int(ends[i + 1])) for i, kind in enumerate(self.parts)}

    def joined(self, field: str) -> np.ndarray:
        """A field of `Part` for all shapes, in the order of their kinds."""
        return np.concatenate([getattr(part, field) for part in self.parts.values()])


def make_scene(
    model: mujoco.MjModel,
    camera: str | Camera,
    size: tuple[int, int] = (64, 64),
    floor: str = "paper",
    shadow: bool = False,
    mirror: bool = False,
    subsamples: int = 1,
    *,
    groups: Sequence[int] = VISIBLE,
    floor_size: float = 15.0,
    floor_height: float = 0.0,
    walls: Sequence[tuple[float, float, float, float]] = (),
    covers: dict[str, tuple[str, float]] | None = None,
) -> Scene:
    """The scene of a stock model, with its own camera, lamps, materials and sky.

    size: (H, W) pixels. floor: a name in `shading.FLOORS`. shadow: of the lamps. mirror: the floor reflects.
    subsamples: rays along each side of a pixel, of which it shows the mean. groups: of geoms that are drawn.
    floor_size, floor_height: m, half side of the drawn floor, and its height. walls: (x, y, width, height) of boxes on
    the floor, m, as in `envs.tasks.layout.Maze.walls`. covers: as in `shading.room_lamps`.

    With a camera that stands still, what does not move becomes the backdrop: it has its own floor and its own shadows,
    and what moves has none, so that floor, shadow and mirror say nothing.
    """
    if min(size) < 1 or subsamples < 1:
        raise ValueError(f"a picture needs at least one pixel and one ray in each, got {size} and {subsamples}")
    geoms = [g for g in range(model.ngeom) if model.geom_bodyid[g] > 0 and model.geom_group[g] in groups]
    geoms = np.array([g for g in geoms if model.geom_type[g] in KIND], int)
    if not len(geoms):
        raise ValueError(f"the model has no simple shapes in the groups {tuple(groups)}: nothing to draw")
    if isinstance(camera, Camera):
        if floor not in ROOM_FLOORS:
            raise ValueError(f"floor {floor!r} cannot be shown in a room, which has a floor of its own: leave it out")
        return _room(model, camera, size, subsamples, groups, covers or {})
    view = cameras.tracking(model, camera)
    fine = (size[0] * subsamples, size[1] * subsamples)
    rays = cameras.pixel_rays(view, fine)
    everywhere = (slice(0, fine[0]), slice(0, fine[1]))
    reach = cameras.reach(model, geoms)
    return Scene(
        size=tuple(size),
        subsamples=subsamples,
        shadow=shadow,
        mirror=mirror,
        camera=view,
        rays=rays.astype(np.float32),
        sky=shading.sky(model, view, fine).astype(np.float32),
        window=everywhere if walls else cameras.window(view, fine, reach),
        parts=_parts(model, geoms, walls, floor_height),
        head=shading.head_lamp(model),
        lamps=shading.lamps(model),
        floor=Floor(
            shading.floor_named(floor),
            floor_size,
            np.inf if floor in shading.ENDLESS else floor_size,
            floor_height,
            *shading.floor_material(model),
        ),
    )


def _room(
    model: mujoco.MjModel,
    view: Camera,
    size: tuple[int, int],
    subsamples: int,
    groups: Sequence[int],
    covers: dict[str, tuple[str, float]],
) -> Scene:
    """What moves in front of what stands still."""
    fine = (size[0] * subsamples, size[1] * subsamples)
    moves = (model.body_weldid[model.geom_bodyid] > 0) & np.isin(model.geom_group, groups)
    head, lamps = shading.head_lamp(model), shading.room_lamps(model, covers)
    return Scene(
        size=tuple(size),
        subsamples=subsamples,
        shadow=False,
        mirror=False,
        camera=view,
        rays=cameras.pixel_rays(view, fine).astype(np.float32),
        sky=np.zeros((3, *fine), np.float32),
        window=(slice(0, fine[0]), slice(0, fine[1])),
        parts=_parts(model, np.flatnonzero(moves & np.isin(model.geom_type, list(KIND))), (), 0.0),
        head=head,
        lamps=lamps,
        floor=None,
        backdrop=backdrops.make(model, view, fine, groups, head, lamps),
    )


def _parts(model: mujoco.MjModel, geoms: np.ndarray, walls: Sequence, ground: float) -> dict[str, Part]:
    parts = {}
    for kind, name in KIND.items():
        rows = geoms[model.geom_type[geoms] == kind]
        part = Part(
            body=model.geom_bodyid[rows].astype(int),
            pos=model.geom_pos[rows].astype(np.float32),
            turn=_turns(model.geom_quat[rows]),
            size=_half_sizes(kind, model.geom_size[rows]),
            surface=np.array([shading.surface(model, g) for g in rows], np.float32).reshape(-1, 4),
        )
        if name == "box" and walls:
            part = _joined(part, _wall_boxes(walls, ground))
        if len(part.body):
            parts[name] = part
    return parts


def _half_sizes(kind: int, size: np.ndarray) -> np.ndarray:
    """MuJoCo's sizes [S, 3] as half sizes a, b, c."""
    if kind in (_GEOM.mjGEOM_CAPSULE, _GEOM.mjGEOM_CYLINDER):
        size = size[:, [0, 0, 1]]
    elif kind == _GEOM.mjGEOM_SPHERE:
        size = size[:, [0, 0, 0]]
    return size.astype(np.float32)


def _turns(quats: np.ndarray) -> np.ndarray:
    turns = np.zeros((len(quats), 9))
    for turn, quat in zip(turns, quats, strict=True):
        mujoco.mju_quat2Mat(turn, quat)
    return turns.reshape(-1, 3, 3).astype(np.float32)


def _wall_boxes(walls: Sequence, ground: float) -> Part:
    x, y, width, height = np.asarray(walls, np.float32).T
    half = np.full_like(x, WALL_HEIGHT / 2)
    return Part(
        body=np.zeros(len(x), int),
        pos=np.stack([x + width / 2, y + height / 2, ground + half], -1),
        turn=np.broadcast_to(np.eye(3, dtype=np.float32), (len(x), 3, 3)),
        size=np.stack([width / 2, height / 2, half], -1),
        surface=np.broadcast_to(np.float32([*WALL_COLOR, 0]), (len(x), 4)),
    )


def _joined(first: Part, second: Part) -> Part:
    fields = [field.name for field in dataclasses.fields(Part)]
    return Part(*(np.concatenate([getattr(first, name), getattr(second, name)]) for name in fields))
