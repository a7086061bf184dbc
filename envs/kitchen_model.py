"""The Franka kitchen's model: the furniture and arm of the gymnasium-robotics package, and the reduced one we simulate.

The stock model cannot run on an accelerator: meshes and cylinders touch boxes in 3,736 pairs. The reduced one keeps
bodies, joints, inertias, servos and dry friction, and replaces the shapes by capsules and boxes; each change is a row
in envs/README.md. Both get LEXA's mocap body, to which a weld pulls the arm's last link.
"""

import importlib.util
import itertools
import pathlib

import mujoco
import numpy as np

from envs import suite

HAND = "panda0_link7"  # the link that the weld pulls; the hand is fixed to it
FINGERS = ("panda0_leftfinger", "panda0_rightfinger")
ROBOT_BIT, KETTLE_BIT, SELF_BIT = 1, 2, 4
_GEOM = mujoco.mjtGeom

# Contact parameters of the stock model's groups: margin m, solref, solimp, and condim where it is not 3.
HARD = {"margin": 0.001, "solref": [0.02, 1], "solimp": [0.9, 0.95, 0.001, 0.5, 2]}  # counters, oven, hood, slide
SOFT = HARD | {"solimp": [0.8, 0.9, 0.01, 0.5, 2]}  # hinge cabinet, microwave
ARM = HARD | {"margin": 0.0}
FINGER = {
    "margin": 0.001,
    "solref": [0.01, 1],
    "solimp": [0.8, 0.9, 0.001, 0.5, 2],
    "condim": 6,
    "friction": [1, 0.5, 1e-4],
}
KETTLE = SOFT | {"condim": 4}


def stock_spec() -> mujoco.MjSpec:
    """The package's kitchen with LEXA's control; its pedestal is touched but does not touch, as LEXA's."""
    found = importlib.util.find_spec("gymnasium_robotics")
    if found is None:
        raise ModuleNotFoundError(
            "the kitchen comes from the gymnasium-robotics package: pip install -r requirements.txt"
        )
    folder = pathlib.Path(found.submodule_search_locations[0]) / "envs" / "assets" / "kitchen_franka"
    spec = mujoco.MjSpec.from_file(str(folder / "kitchen_assets" / "kitchen_env_model.xml"))
    pedestal = next(g for g in spec.geoms if g.type == _GEOM.mjGEOM_CYLINDER and g.size[1] == 0.9)
    pedestal.contype = 0
    _add_weld(spec)
    return spec


def _add_weld(spec: mujoco.MjSpec) -> None:
    spec.worldbody.add_body(name="mocap", mocap=True)
    weld = spec.add_equality(type=mujoco.mjtEq.mjEQ_WELD, objtype=mujoco.mjtObj.mjOBJ_BODY)
    weld.name1, weld.name2, weld.data = "mocap", HAND, [0] * 6 + [1] + [0] * 3 + [1, 0]


def reduced_spec() -> mujoco.MjSpec:
    """The model that is simulated."""
    spec = stock_spec()
    stock = spec.compile()
    keep_inertias(spec, stock)
    drop_couplings(spec)
    for elements in (spec.geoms, spec.sites, spec.meshes):
        suite.drop(spec, elements)
    suite.drop(spec, spec.materials)
    suite.drop(spec, spec.textures)
    _add_robot(spec)
    _add_furniture(spec)
    _add_kettle(spec)
    suite.tune(spec, iterations=5, ls_iterations=4)
    suite.nearest_contacts(spec, points=24, capsule_box=12, capsule_capsule=8, sphere_box=8)
    return spec


def drop_couplings(spec: mujoco.MjSpec) -> None:
    """Burners and lamp go, with the equalities that couple them to knobs and switch."""
    suite.drop(spec, [e for e in spec.equalities if e.type == mujoco.mjtEq.mjEQ_JOINT])
    suite.drop(spec, [b for b in spec.bodies if b.name.startswith("Burner") or b.name == "lightblock_hinge"])
    suite.drop(spec, spec.keys)  # the stock one has their coordinates


def keep_inertias(spec: mujoco.MjSpec, stock: mujoco.MjModel) -> None:
    """Every body keeps its mass and inertia when its shapes go."""
    for body in spec.bodies:
        if body.name == "world" or body.mocap:
            continue
        row = stock.body(body.id)
        if row.mass[0] > 0:
            body.explicitinertial = True
            body.mass, body.ipos, body.iquat, body.inertia = row.mass[0], row.ipos, row.iquat, row.inertia


def _add(spec: mujoco.MjSpec, body: mujoco.MjsBody, kind: mujoco.mjtGeom, bits: tuple[int, int], group: dict, **shape):
    geom = body.add_geom(spec.default, type=kind, contype=bits[0], conaffinity=bits[1], **({"condim": 3} | group))
    for name, value in shape.items():
        setattr(geom, name, value)


def _capsule(spec, body, bits, group, ends, radius: float) -> None:
    """A capsule between two points (m, body axes)."""
    start, end = (np.asarray(point, float) for point in ends)
    quat = np.zeros(4)
    mujoco.mju_quatZ2Vec(quat, (end - start) / np.linalg.norm(end - start))
    size = [radius, np.linalg.norm(end - start) / 2, 0]
    _add(spec, body, _GEOM.mjGEOM_CAPSULE, bits, group, pos=(start + end) / 2, quat=quat, size=size)


# Capsules of the arm: start, end (m, axes of the link) and radius, fitted to the hulls of the stock meshes, from which
# they are 2 to 3 mm off on average (hand 2, link 5 2, link 6 3, link 7 3, links 1 and 2 2).
LINK1 = (([0, 0.002, -0.148], [0, -0.038, 0], 0.0571), ([0, -0.016, -0.148], [0, -0.076, 0], 0.0541))
LINK2 = (([0, -0.154, 0.014], [0, 0, 0.075], 0.0545), ([0, 0, 0.035], [0, -0.152, -0.002], 0.0565))
LINK5 = (
    ([0, 0.0624, -0.076], [0, 0.0812, 0.001], 0.0516),
    ([0, -0.0027, -0.223], [0, 0.0525, 0], 0.0525),
    ([0, 0.0201, -0.2178], [0, 0.0575, -0.1003], 0.0529),
)
LINK6 = (
    ([-0.0026, -0.0036, 0.014], [0.0903, -0.0141, 0.0006], 0.0456),
    ([0.0849, 0.041, 0.0012], [0, 0.0066, 0.014], 0.0447),
)
LINK7 = (
    ([0.0378, 0.0475, 0.0834], [-0.0214, 0.0059, 0.0772], 0.0279),
    ([0.041, 0.025, 0.0792], [-0.0055, -0.0219, 0.0783], 0.0297),
    ([-0.0505, -0.0505, 0.117], [0.0505, 0.0505, 0.117], 0.0282),  # the hand
    ([-0.0585, -0.0585, 0.1515], [0.0585, 0.0585, 0.1515], 0.0226),
)
# Radius, distance from the middle and height of each finger's rungs, the tip first; the last stands for a box.
RUNGS = (
    *((0.0070, 0.0075, 0.0875), (0.0075, 0.0085, 0.0775), (0.0082, 0.0095, 0.0675), (0.0090, 0.0105, 0.0575)),
    *((0.0100, 0.0120, 0.0475), (0.0110, 0.0135, 0.0350), (0.0145, 0.0140, 0.0150)),
)


def _add_robot(spec: mujoco.MjSpec) -> None:
    """Capsules for what of the arm touches things: links 5 to 7, hand and fingers, which also meet links 1, 2 and 5."""
    touches, front = (ROBOT_BIT, 0), (ROBOT_BIT | SELF_BIT, 0)
    for number, capsules, bits in (
        (1, LINK1, (0, SELF_BIT)),
        (2, LINK2, (0, SELF_BIT)),
        (5, LINK5, (ROBOT_BIT, SELF_BIT)),
        (6, LINK6, front),
        (7, LINK7, front),
    ):
        for start, end, radius in capsules:
            _capsule(spec, spec.body(f"panda0_link{number}"), bits, ARM, (start, end), radius)
    for name, side in zip(FINGERS, (1, -1), strict=True):
        for rung, (radius, out, height) in enumerate(RUNGS):
            # The stock model crosses two capsules at each rung, 3 mm apart at their ends: we at the tip only.
            for slope in (0.0015, -0.0015) if rung == 0 else (0.0,):
                ends = [[sign * 0.009, side * (out + sign * slope), height] for sign in (-1, 1)]
                _capsule(spec, spec.body(name), front if rung in (0, 3) else touches, FINGER, ends, radius)
    base = spec.body("panda0_link0")
    for body, pos, size in (
        (base, [-0.04, 0, 0.066], [0.1, 0.08, 0.066]),
        (base.parent, [-0.04, 0, -0.9], [0.112, 0.112, 0.9]),  # the pedestal
    ):
        _add(spec, body, _GEOM.mjGEOM_BOX, (0, ROBOT_BIT), ARM, pos=pos, size=size)


def _add_furniture(spec: mujoco.MjSpec) -> None:
    """Cabinets, microwave and counters as solid boxes, doors with handles of capsules, and the floor as a box."""
    solid, door = (0, ROBOT_BIT | KETTLE_BIT), (0, ROBOT_BIT)

    def box(body: str, pos, size, group: dict = HARD, bits: tuple[int, int] = solid) -> None:
        _add(spec, spec.body(body), _GEOM.mjGEOM_BOX, bits, group, pos=pos, size=size)

    box("world", [0, 0, -1], [5, 5, 1], ARM)
    box("counters", [-0.857, -0.505, 0.8], [0.462, 1.08, 0.8])  # left of the oven
    box("counters", [0.907, -0.045, 0.71], [0.304, 0.606, 0.71])  # below the sink
    box("counters", [0.6505, -0.0425, 1.497], [0.0515, 0.6125, 0.103])  # left of the sink
    box("counters", [0.904, -0.614, 1.497], [0.205, 0.039, 0.103])  # before the sink
    box("ovenroot", [-0.017, 0.28, -0.175], [0.5, 0.625, 0.81])
    box("hoodroot", [0, 0.073, -0.046], [0.502, 0.336, 0.12])
    box("wallroot", [-0.11, 0.06, 0.6], [1.26, 0.075, 0.6], bits=(0, KETTLE_BIT))
    box("slide", [-0.099, 0, 0], [0.449, 0.3, 0.2])
    box("hingecab", [0, 0, 0], [0.4, 0.3, 0.2], SOFT)
    box("microroot", [0, 0.023, 0.187], [0.345, 0.199, 0.187], SOFT)
    box("microroot", [0.26, -0.197, 0.187], [0.085, 0.024, 0.187], SOFT)
    for number in (1, 2, 3, 4):
        box(f"knob {number}", [0, 0, 0.038], [0.014, 0.048, 0.018], bits=door)
        box(f"knob {number}", [0, 0, 0.013], [0.0443, 0.0443, 0.008], bits=door)  # a disc of 5 cm: a square as large
    box("slidelink", [0, -0.02, 0], [0.225, 0.03, 0.195], bits=door)
    box("hingeleftdoor", [0.184, -0.015, 0], [0.193, 0.03, 0.2], SOFT, door)
    box("hingerightdoor", [-0.185, -0.015, 0], [0.193, 0.03, 0.2], SOFT, door)
    box("microdoorroot", [0.259, -0.026, 0], [0.259, 0.024, 0.185], SOFT)
    slope = np.array([-0.3894, 0.9211, 0])  # the light switch's
    switch = np.array([0.0263, -0.065, 0])
    _capsule(spec, spec.body("lightswitchroot"), door, HARD, (switch - 0.03 * slope, switch + 0.03 * slope), 0.021)
    # Where the stock model has cylinders, half of the round ends stands out for the rims that they have not.
    handles = (
        ("slidelink", HARD, -0.183, -0.123, 0.149, 0.022, 0.114, 0.019),
        ("hingeleftdoor", SOFT, 0.302, -0.128, 0.149, 0.022, 0.114, 0.019),
        ("hingerightdoor", SOFT, -0.302, -0.128, 0.149, 0.022, 0.114, 0.019),
        ("microdoorroot", SOFT, 0.475, -0.108, 0.13, 0.02, 0.13, 0.02),
    )
    for name, group, x, y, half, radius, stub, stub_radius in handles:
        body = spec.body(name)
        _capsule(spec, body, door, group, ([x, y, -half], [x, y, half]), radius)
        for z in (-stub, stub):
            _capsule(spec, body, door, group, ([x, y, z], [x, -0.04, z]), stub_radius)


def _add_kettle(spec: mujoco.MjSpec) -> None:
    """The robot meets the kettle's box, handle and spout; furniture meets the corners of the box."""
    kettle, touched = spec.body("kettleroot"), (0, ROBOT_BIT)
    centre, size = np.array([0, 0, 0.058]), np.array([0.122, 0.122, 0.058])
    _add(spec, kettle, _GEOM.mjGEOM_BOX, touched, KETTLE, pos=centre, size=size)
    _capsule(spec, kettle, touched, KETTLE, ([-0.1, 0, 0.259], [0.1, 0, 0.259]), 0.032)
    for x in (-0.092, 0.092):
        _capsule(spec, kettle, touched, KETTLE, ([x, 0, 0.12], [x, 0, 0.24]), 0.023)
    along = np.array([np.sin(2.25), 0, np.cos(2.25)])
    spout = np.array([-0.126, 0, 0.07])
    _capsule(spec, kettle, touched, KETTLE, (spout - 0.025 * along, spout + 0.025 * along), 0.031)
    for signs in itertools.product((-1, 1), repeat=3):
        place = centre + size * signs
        _add(spec, kettle, _GEOM.mjGEOM_SPHERE, (KETTLE_BIT, 0), KETTLE, pos=place, size=[suite.POINT, 0, 0])
