"""Models of the dm_control package, opened as `mujoco.MjSpec`; importing dm_control would probe for a display."""

import importlib.util
import itertools
import pathlib
from collections.abc import Callable

import mujoco
import numpy as np

POINT = 1e-6  # m, radius of a sphere that stands for a point


def load(name: str) -> mujoco.MjSpec:
    """The suite's XML of a body, before any task edits."""
    found = importlib.util.find_spec("dm_control")
    if found is None:
        raise ModuleNotFoundError("the models come from the dm_control package: pip install -r requirements.txt")
    folder = pathlib.Path(found.submodule_search_locations[0]) / "suite"
    return mujoco.MjSpec.from_file(str(folder / f"{name}.xml"))


FLOOR_BIT, SELF_BIT = 1, 2


def floor_and_self(spec: mujoco.MjSpec, meets_itself: Callable[[mujoco.MjsGeom], bool] = lambda geom: False) -> None:
    """Every colliding geom touches the floor; those that `meets_itself` accepts also touch each other as before."""
    for geom in spec.geoms:
        if geom.name == "floor":
            geom.contype, geom.conaffinity = FLOOR_BIT, 0
        elif geom.contype or geom.conaffinity:
            self_bit = SELF_BIT if meets_itself(geom) else 0
            geom.contype, geom.conaffinity = (
                bool(geom.contype) * self_bit,
                FLOOR_BIT | bool(geom.conaffinity) * self_bit,
            )


def corners_for_boxes(spec: mujoco.MjSpec) -> None:
    """Lets boxes touch with their eight corners, as C MuJoCo lets a box touch a plane; mass and inertia stay.

    MJX picks four spread-out points of a box instead, of which some hang in the air while a corner below is left out.
    """
    for box in [g for g in spec.geoms if g.type == mujoco.mjtGeom.mjGEOM_BOX and (g.contype or g.conaffinity)]:
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, box.quat)
        for i, signs in enumerate(itertools.product((-1, 1), repeat=3)):
            place = box.pos + turn.reshape(3, 3) @ (box.size * signs)
            corner = box.parent.add_geom(name=f"{box.name}_corner{i}", type=mujoco.mjtGeom.mjGEOM_SPHERE, mass=0)
            corner.pos, corner.size = place, [POINT, 0, 0]
            for field in ("contype", "conaffinity", "condim", "priority", "friction", "solref", "solimp", "solmix"):
                setattr(corner, field, getattr(box, field))
        box.contype = box.conaffinity = 0


def cap_contacts(spec: mujoco.MjSpec, points: int, pairs: int | None = None) -> None:
    """Keeps the deepest `points` contacts of each friction kind, and tests the nearest `pairs` of each shape kind."""
    spec.add_numeric(name="max_contact_points", data=[points])
    if pairs is not None:
        spec.add_numeric(name="max_geom_pairs", data=[pairs])


def nearest_contacts(spec: mujoco.MjSpec, points: int, capsule_box: int, capsule_capsule: int, sphere_box: int) -> None:
    """Contacts of our own (`envs.physics.nearest`): the `points` nearest, from so many nearest pairs of each kind."""
    spec.add_numeric(name="nearest_contacts", data=[points, capsule_box, capsule_capsule, sphere_box])


def drop(spec: mujoco.MjSpec, elements) -> None:
    for element in list(elements):
        spec.delete(element)


def tune(spec: mujoco.MjSpec, iterations: int, ls_iterations: int) -> None:
    """Trip counts of our solver, dense Jacobians; no sensors, cameras, lights: `envs.physics.quantities` has them."""
    spec.option.iterations, spec.option.ls_iterations = iterations, ls_iterations
    spec.option.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    drop(spec, spec.sensors)
    drop(spec, spec.cameras)
    drop(spec, spec.lights)
