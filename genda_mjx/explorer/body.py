"""A body for the page: its model as XML that MuJoCo in the browser reads, and what its observation is made of.

The body's own `observe` and `sense` are traced on stand-ins for `Quantities` and `SensorQuantities` that read MuJoCo's
data (qpos, xpos, sensordata, ...) where the program computes the quantity itself. A sensor that they ask for is added
to the model. So there is no second description of an observation, and a new body needs none.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import mujoco
from jax import Array

from envs.body import Body
from envs.physics.vectors import Vec, mat_vec, transpose
from envs.tasks import collision
from envs.tasks.layout import Maze
from genda_mjx.explorer.tracing import Program, Untraceable, trace

SENSOR_ROOM = 4096  # entries of sensordata that a trace may ask for
# MuJoCo 3.17 writes what 3.14, the browser's, cannot read; a position servo is its gains and biases in both.
NEWER_WORDS = re.compile(r'(<general [^>]*?) input="\w+"')


@dataclass(frozen=True)
class PageBody:
    """What the page needs of a body."""

    xml: str
    observe: Program  # MuJoCo's data, sensors and what the reset drew -> the observation as the agent sees it
    sense: Program | None  # sensordata -> acceleration-stage sensors, where the body has any


class Sensors:
    """Sensors that were asked for, in the order of their places in sensordata."""

    def __init__(self, model: mujoco.MjModel, sensordata: Array):
        self.model, self.sensordata, self.asked, self._size = model, sensordata, [], 0

    def read(self, kind: mujoco.mjtSensor, of: mujoco.mjtObj, name: str, size: int = 3) -> Array:
        """[size, 1] of a sensor attached to the named object."""
        if (kind, of, name, size) not in self.asked:
            self.asked.append((kind, of, name, size))
        start = sum(row[-1] for row in self.asked[: self.asked.index((kind, of, name, size))])
        return self.sensordata[start : start + size]

    def add_to(self, spec: mujoco.MjSpec) -> None:
        for number, (kind, of, name, _) in enumerate(self.asked):
            spec.add_sensor(name=f"page{number}", type=kind, objtype=of, objname=name)


class PageQuantities:
    """`envs.physics.Quantities` of MuJoCo's own data: arrays [k, 1], whole rows of xpos, xmat, ..."""

    def __init__(self, asked: Sensors, **data: Array):
        self._sensors, self._data = asked, data
        self.qpos, self.qvel, self.act = data["qpos"], data["qvel"], data["act"]
        self.sensors, self.drawn = data["sensors"], data["drawn"]

    def position(self, body: str) -> Array:
        return self._data["xpos"][3 * self._body(body) :][:3]

    def vertical(self, body: str) -> Array:
        return self._data["xmat"][9 * self._body(body) :][6:9]

    def in_frame(self, body: str, vector: Array) -> Array:
        return jnp.stack(mat_vec(transpose(_matrix(self._data["xmat"], self._body(body))), vector))

    def subtree_velocity(self, body: str) -> Array:
        return self._sensors.read(mujoco.mjtSensor.mjSENS_SUBTREELINVEL, mujoco.mjtObj.mjOBJ_BODY, body)

    def geom(self, name: str) -> tuple[Vec, Vec]:
        row = self._sensors.model.geom(name).id
        return Vec(self._data["geom_xpos"][3 * row :][:3]), _matrix(self._data["geom_xmat"], row)

    def velocimeter(self, site: str) -> Array:
        return self._sensors.read(mujoco.mjtSensor.mjSENS_VELOCIMETER, mujoco.mjtObj.mjOBJ_SITE, site)

    def gyro(self, site: str) -> Array:
        return self._sensors.read(mujoco.mjtSensor.mjSENS_GYRO, mujoco.mjtObj.mjOBJ_SITE, site)

    def _body(self, name: str) -> int:
        return self._sensors.model.body(name).id


class PageSensors:
    """`envs.physics.SensorQuantities`, read from MuJoCo's sensors of the last physics step."""

    def __init__(self, sensors: Sensors):
        self._sensors = sensors

    def accelerometer(self, site: str) -> Array:
        return self._at_site(mujoco.mjtSensor.mjSENS_ACCELEROMETER, site)

    def forces(self, sites: list[str]) -> Array:
        return jnp.concatenate([self._at_site(mujoco.mjtSensor.mjSENS_FORCE, site) for site in sites])

    def torques(self, sites: list[str]) -> Array:
        return jnp.concatenate([self._at_site(mujoco.mjtSensor.mjSENS_TORQUE, site) for site in sites])

    def touch(self, sites: list[str]) -> Array:
        return jnp.concatenate([self._at_site(mujoco.mjtSensor.mjSENS_TOUCH, site, size=1) for site in sites])

    def _at_site(self, kind: mujoco.mjtSensor, site: str, size: int = 3) -> Array:
        return self._sensors.read(kind, mujoco.mjtObj.mjOBJ_SITE, site, size)


def _matrix(rows: Array, index: int) -> Vec:
    """Rotation `index` of flat matrices [9 k, 1] as rows of components."""
    flat = rows[9 * index :][:9]
    return Vec(Vec(flat[3 * i : 3 * i + 3]) for i in range(3))


def export(env: Body, maze: Maze | None = None) -> PageBody:
    """The body as the page needs it, in its maze; raises `Untraceable` where the browser cannot follow it."""
    model = env.model
    drawn, sensed = env.bank.drawn.shape[1], env.bank.sensors.shape[1]
    sizes = {
        "qpos": model.nq,
        "qvel": model.nv,
        "act": model.na,
        "xpos": 3 * model.nbody,
        "xmat": 9 * model.nbody,
        "geom_xpos": 3 * model.ngeom,
        "geom_xmat": 9 * model.ngeom,
        "sensordata": SENSOR_ROOM,
        "sensors": sensed,
        "drawn": drawn,
    }
    sensors = Sensors(model, jnp.zeros((SENSOR_ROOM, 1)))

    def observe(**data: Array) -> Array:
        sensors.sensordata = data["sensordata"]
        raw = jnp.concatenate(env.seen(PageQuantities(sensors, **data)))
        return env._normalized(raw[:, 0])

    def sense(sensordata: Array) -> Array:
        sensors.sensordata = sensordata
        return jnp.concatenate(env.sense(PageSensors(sensors)))

    observing = _traced(env, observe, {name: (size, 1) for name, size in sizes.items()})
    sensing = _traced(env, sense, {"sensordata": (SENSOR_ROOM, 1)}) if sensed else None
    return PageBody(xml(env, sensors, maze), observing, sensing)


def _traced(env: Body, fn: Callable[..., Array], inputs: dict[str, tuple[int, ...]]) -> Program:
    try:
        return trace(fn, inputs)
    except AttributeError as error:
        raise Untraceable(f"{env.name}'s observation uses a quantity that the page does not have ({error})") from error


def xml(env: Body, sensors: Sensors, maze: Maze | None) -> str:
    """The simulated model with the sensors that its observation asks for, without pictures."""
    spec = env.edited_spec()
    if maze is not None:
        collision.enclose(spec, maze, env.wall_condim, env.wall_tolerance)
    sensors.add_to(spec)
    for skin in list(spec.skins):
        spec.delete(skin)
    for material in spec.materials:
        material.textures = [""] * len(material.textures)
    for texture in list(spec.textures):
        spec.delete(texture)
    spec.compile()
    text = NEWER_WORDS.sub(r"\1", spec.to_xml())
    read = mujoco.MjModel.from_xml_string(text)
    if (read.nq, read.nv, read.na, read.ngeom) != (env.model.nq, env.model.nv, env.model.na, env.model.ngeom):
        raise Untraceable(f"{env.name}'s model is not the same after it was written as XML")
    return text
