"""What pictures of the kitchen show: the stock model's visible shapes, with simple ones for the meshes that move.

Furniture that stands still keeps its meshes, since it is drawn once (`envs.render.backdrop`). Burners and lamp, which
are not simulated, are put where knobs and switch have them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from envs import kitchen_model, suite
from envs.render.camera import looking_at

Array = jax.Array
_GEOM = mujoco.mjtGeom
CAMERA = looking_at((-0.3, 0.5, 2.0), distance=1.86, azimuth=90, elevation=-60)  # LEXA's
GROUPS = (0, 1, 2)
# A burner glows through the gaps of its plate, which are finer than a pixel: a disc is drawn instead that rises out of
# the stove where MuJoCo begins to show it, at 0.3 rad of the knob, and has the colour of disc and plate together.
BURNER_DROP, BURNER_GAIN, BURNER_TOP, BURNER_COLOR = 0.02, 16.0, 0.036, (0.65, 0.05, 0.05, 1)  # m; m
# The block below the hood hides the oven's lamp up to this height, m: where half of MuJoCo's shadow of it is gone, with
# the switch at 0.25 rad.
COVERS = {"ovenlight": ("lightblock_hinge", 2.2118)}


class Capsule(NamedTuple):
    start: tuple[float, float, float]  # m, in the axes of the body
    end: tuple[float, float, float]
    radius: float


class Box(NamedTuple):
    middle: tuple[float, float, float]
    half: tuple[float, float, float]


def _capsules(*rows) -> tuple[Capsule, ...]:
    return tuple(Capsule(*row) for row in rows)


# Instead of the meshes that move; where the arm touches things these are the shapes that it touches them with.
SHAPES: dict[str, tuple[Capsule | Box, ...]] = {
    "panda0_link1": _capsules(*kitchen_model.LINK1),
    "panda0_link2": _capsules(*kitchen_model.LINK2),
    "panda0_link3": _capsules(
        ((-0.003, 0.003, -0.065), (0.066, 0.045, -0.01), 0.058),
        ((0.05, 0.06, 0.004), (0.097, 0.066, 0.006), 0.044),
    ),
    "panda0_link4": _capsules(
        ((-0.066, 0.067, 0.01), (-0.003, 0.003, 0.045), 0.0625),
        ((-0.052, 0.085, -0.004), (-0.097, 0.089, -0.006), 0.044),
    ),
    "panda0_link5": _capsules(*kitchen_model.LINK5),
    "panda0_link6": _capsules(*kitchen_model.LINK6),
    "panda0_link7": _capsules(*kitchen_model.LINK7),  # with the hand
    "panda0_leftfinger": (Box((0, 0.013, 0.047), (0.018, 0.013, 0.047)),),
    "panda0_rightfinger": (Box((0, -0.013, 0.047), (0.018, 0.013, 0.047)),),
    "kettleroot": (
        Box((0, 0, 0.06), (0.122, 0.122, 0.06)),
        Capsule((-0.145, 0, 0.054), (-0.107, 0, 0.086), 0.031),
    ),
    "microdoorroot": (Box((0.259, -0.025, 0), (0.2585, 0.02, 0.182)),),
}


def drawn_spec() -> mujoco.MjSpec:
    """The stock model without its collision shapes, and with `SHAPES` instead of meshes that move."""
    spec = kitchen_model.stock_spec()
    kitchen_model.keep_inertias(spec, spec.compile())
    suite.drop(spec, [geom for geom in spec.geoms if geom.group not in GROUPS])
    for name, shapes in SHAPES.items():
        body = spec.body(name)
        meshes = [geom for geom in body.geoms if geom.type == _GEOM.mjGEOM_MESH]
        like = {"rgba": meshes[0].rgba.copy(), "material": meshes[0].material, "contype": 0, "conaffinity": 0}
        suite.drop(spec, meshes)
        for shape in shapes:
            geom = body.add_geom(spec.default, group=0, **like)
            if isinstance(shape, Capsule):
                geom.type, geom.fromto, geom.size = (
                    _GEOM.mjGEOM_CAPSULE,
                    [*shape.start, *shape.end],
                    [shape.radius, 0, 0],
                )
            else:
                geom.type, geom.pos, geom.size = _GEOM.mjGEOM_BOX, shape.middle, shape.half
    for body in [body for body in spec.bodies if body.name.startswith("Burner")]:
        disc = body.geoms[0]
        disc.pos, disc.rgba, disc.material = [0, 0, -BURNER_DROP], BURNER_COLOR, ""
    return spec


def coordinates(stock: mujoco.MjModel, simulated: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """Which simulated coordinate each stock one is and times what, both [nq]; burners and lamp follow their joints."""
    followed = {
        stock.joint(stock.eq_obj2id[i]).name: (stock.joint(stock.eq_obj1id[i]).name, 1 / stock.eq_data[i, 1])
        for i in np.flatnonzero(stock.eq_type == mujoco.mjtEq.mjEQ_JOINT)
    }
    index, scale = [], []
    for row in range(stock.njnt):
        joint, share = followed.get(stock.joint(row).name, (stock.joint(row).name, 1.0))
        first, count = int(simulated.joint(joint).qposadr[0]), len(stock.joint(row).qpos0)
        index += range(first, first + count)
        scale += [share] * count
    return np.array(index), np.array(scale, np.float32)


def drawn_coordinates(drawn: mujoco.MjModel, simulated: mujoco.MjModel, qpos: Array) -> Array:
    """[nq, N] of the drawn model from the simulated coordinates [nq, N]."""
    index, scale = coordinates(drawn, simulated)
    burners = [int(drawn.joint(row).qposadr[0]) for row in range(drawn.njnt) if "burner" in drawn.joint(row).name]
    scale[burners] *= BURNER_GAIN
    lowest = np.full((len(scale), 1), -np.inf, np.float32)
    lowest[burners] = -BURNER_TOP
    return jnp.maximum(qpos[index] * scale[:, None], lowest)
