"""Kitchens between the stock and the reduced one: the stock model with any of our edits."""

import mujoco

from envs import kitchen_model
from envs.kitchen_model import KETTLE_BIT, ROBOT_BIT, SELF_BIT

_GEOM = mujoco.mjtGeom
FURNITURE = ("counters", "ovenroot", "hoodroot", "wallroot", "wall2", "slide", "hingecab", "microroot")
HAND_HEIGHT = 0.11  # m along link 7, from which on its capsules are the hand's
DISC_HEIGHT = 0.02  # m along a knob's axis, below which its disc is
# Edits of shapes, each with the geoms that it replaces or drops; then those of other things.
SHAPES = (
    *("base", "links 1 to 4", "links 5 to 7", "hand", "fingers"),
    *("solids", "out of reach", "handles", "knob discs", "kettle", "floor"),
)
EDITS = (*SHAPES, "self-contact", "couplings")


def between(edits: set[str]) -> mujoco.MjModel:
    """The stock model with these edits; all of `EDITS` make the reduced one (with its geoms in another order)."""
    spec, reduced = kitchen_model.stock_spec(), kitchen_model.reduced_spec().compile()
    kitchen_model.keep_inertias(spec, spec.compile())
    few = "self-contact" in edits
    for geom in list(spec.geoms):
        if geom.contype or geom.conaffinity:
            body = geom.parent.name
            part = _part(body, geom.type, geom.meshname == "hand_col", geom.pos[2])
            geom.contype, geom.conaffinity = _bits(part, body, few)
            if part in edits:
                spec.delete(geom)
    for row in range(reduced.ngeom):
        body, kind = reduced.body(reduced.geom_bodyid[row]).name, reduced.geom_type[row]
        height = reduced.geom_pos[row, 2]
        part = _part(body, kind, height > HAND_HEIGHT, height)
        if part in edits:
            _copy(spec, reduced, row, few)
    if "couplings" in edits:
        kitchen_model.drop_couplings(spec)
    return spec.compile()


def _part(body: str, kind: int, is_hand: bool, height: float) -> str:
    """The edit that a colliding geom of either model belongs to; "" for one that is the same in both."""
    if body.endswith("finger"):
        return "fingers"
    if body == "world":
        return "floor"
    if body.startswith("panda0_link") and body != "panda0_link0":
        moved = "hand" if body == kitchen_model.HAND and is_hand else "links 5 to 7"
        return moved if body[-1] in "567" else "links 1 to 4"
    if body in FURNITURE:
        return "solids" if kind == _GEOM.mjGEOM_BOX else "out of reach"
    if body.startswith("knob"):
        return "knob discs" if height < DISC_HEIGHT else ""
    if body == "kettleroot":
        return "kettle"
    if body in ("slidelink", "hingeleftdoor", "hingerightdoor", "microdoorroot"):
        return "" if kind == _GEOM.mjGEOM_BOX else "handles"
    return "" if body == "lightswitchroot" else "base"


def _bits(part: str, body: str, few: bool) -> tuple[int, int]:
    """A geom's bits in the scheme of the reduced model: the pairs of the stock model, or with few contacts of the arm
    with itself those of the reduced one."""
    if part == "kettle":
        return KETTLE_BIT, ROBOT_BIT
    if part == "fingers":
        return ROBOT_BIT | SELF_BIT, 0
    if part in ("hand", "links 1 to 4", "links 5 to 7"):
        meets = not few or (part != "links 1 to 4" and body[-1] != "5")
        return ROBOT_BIT | (SELF_BIT if meets else 0), SELF_BIT if not few or body[-1] in "125" else 0
    return (0, ROBOT_BIT) if part == "base" else (0, ROBOT_BIT | KETTLE_BIT)


def _copy(spec: mujoco.MjSpec, model: mujoco.MjModel, row: int, few: bool) -> None:
    """Adds a geom of the reduced model to the body of the same name; the pedestal's body has none."""
    name = model.body(model.geom_bodyid[row]).name
    geom = (spec.body(name) if name else spec.body("panda0_link0").parent).add_geom(spec.default, mass=0)
    for field in ("type", "pos", "quat", "size", "margin", "solref", "solimp", "condim", "friction"):
        setattr(geom, field, getattr(model, f"geom_{field}")[row])
    geom.contype, geom.conaffinity = int(model.geom_contype[row]), int(model.geom_conaffinity[row])
    if name.startswith("panda0_link") and name != "panda0_link0" and not few:
        geom.contype, geom.conaffinity = geom.contype | SELF_BIT, SELF_BIT
    elif name.endswith("finger") and not few:
        geom.contype |= SELF_BIT
