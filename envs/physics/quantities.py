"""Named physical quantities, computed when asked for: of a state for observations, of a step for sensors.

As everywhere in `envs.physics`, the N copies are the last axis.
"""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco.mjx._src import ray

from envs.physics import dynamics
from envs.physics.dynamics import Motion
from envs.physics.model import PhysicsModel
from envs.physics.step import StepRecord
from envs.physics.tree import Poses, attached, kinematics
from envs.physics.vectors import Vec, cross, mat_vec, transpose

Array = jax.Array


class Quantities:
    """Positions and velocities of a state: what a body's `observe` is written in.

    Poses and velocities are computed when first asked for.
    """

    def __init__(self, physics_model: PhysicsModel, qpos: Array, qvel: Array, act: Array, sensors: Array, drawn: Array):
        self.physics_model, self.qpos, self.qvel, self.act = physics_model, qpos, qvel, act
        self.sensors = sensors  # [ns, N] acceleration-stage sensors, read in the last physics step
        self.drawn = drawn  # [k, N] what the reset drew for this episode (fish: target position)

    @functools.cached_property
    def poses(self) -> Poses:
        return kinematics(self.physics_model.tree, self.qpos)

    @functools.cached_property
    def motion(self) -> Motion:
        return dynamics.spatial_motion(self.physics_model.tree, self.poses, self.qvel)

    def position(self, body: str) -> Array:
        """[3, N] origin of a body: m, world."""
        return jnp.stack(self.poses.pos.at(self._body(body)))

    def vertical(self, body: str) -> Array:
        """[3, N] world-up direction in body axes: bottom row of the rotation matrix."""
        return jnp.stack(self.poses.mat.at(self._body(body))[2])

    def in_frame(self, body: str, vector: Array) -> Array:
        """World vector [3, N] in body axes."""
        return jnp.stack(mat_vec(transpose(self.poses.mat.at(self._body(body))), vector))

    def subtree_velocity(self, body: str) -> Array:
        """[3, N] m/s, world: velocity of the centre of mass of the body and all it carries."""
        return jnp.stack(dynamics.subtree_velocity(self.physics_model.tree, self.poses, self.motion, self._body(body)))

    def geom(self, name: str) -> tuple[Vec, Vec]:
        """World position and rotation of a geom, components [N]."""
        model = self.physics_model.mj_model
        row = model.geom(name).id
        pos, mat = attached(
            self.physics_model.tree, self.poses, model.geom_bodyid[[row]], model.geom_pos[[row]], model.geom_quat[[row]]
        )
        return pos.at(0), mat.at(0)

    def velocimeter(self, site: str) -> Array:
        """[3, N] velocity of a site: m/s, site axes."""
        pos, mat, velocity = self._site(site)
        return jnp.stack(mat_vec(transpose(mat), _at_point(velocity, pos - self.poses.com)))

    def gyro(self, site: str) -> Array:
        """[3, N] angular velocity of a site: rad/s, site axes."""
        _, mat, velocity = self._site(site)
        return jnp.stack(mat_vec(transpose(mat), velocity[:3]))

    def _body(self, name: str) -> int:
        return self.physics_model.mj_model.body(name).id

    def _site(self, name: str) -> tuple[Vec, Vec, Vec]:
        pos, mat = site_frames(self.physics_model, self.poses, [name])
        return pos.at(0), mat.at(0), self.motion.cvel.at(int(self.physics_model.mj_model.site(name).bodyid[0]))


def site_frames(physics_model: PhysicsModel, poses: Poses, names: list[str]) -> tuple[Vec, Vec]:
    """World positions and rotations [k, N] of sites."""
    model = physics_model.mj_model
    rows = [model.site(name).id for name in names]
    return attached(physics_model.tree, poses, model.site_bodyid[rows], model.site_pos[rows], model.site_quat[rows])


def _at_point(spatial: Vec, offset: Vec) -> Vec:
    """Linear part of a spatial velocity or acceleration at a point, `offset` from the centre of mass."""
    return spatial[3:] - cross(offset, spatial[:3])


class SensorQuantities:
    """Acceleration-stage sensors of a physics step, from its `StepRecord`: what a body's `sense` is written in.

    MuJoCo reads these sensors before it integrates, so they belong to the state the step started from.
    """

    def __init__(self, physics_model: PhysicsModel, record: StepRecord):
        self.physics_model, self.record = physics_model, record
        self.poses = kinematics(physics_model.tree, record.qpos)
        self.motion = dynamics.spatial_motion(physics_model.tree, self.poses, record.qvel)

    @functools.cached_property
    def acceleration(self) -> Vec:
        """Spatial accelerations of the bodies [nb, N], gravity included."""
        return dynamics.accelerations(self.physics_model.tree, self.motion, self.record.qvel, self.record.qacc)

    @functools.cached_property
    def internal_force(self) -> Vec:
        """Wrench [nb, N] between each body and its parent, about the centre of mass."""
        inertial = dynamics.inertial_forces(self.motion, self.acceleration)
        return (inertial - self._contact_wrench()).through(self.physics_model.tree.subtree)

    def _contact_wrench(self) -> Vec:
        """Contact forces as wrenches on the bodies [nb, N]."""
        body = jnp.arange(self.physics_model.mj_model.nbody)[:, None, None]
        at = self.record.contact_body
        sign = (at[None, :, 1] == body) * 1.0 - (at[None, :, 0] == body)  # [nb, k, N]
        pos, force = self.record.contact_pos.swapaxes(0, 1), self.record.contact_force.swapaxes(0, 1)
        offset = Vec(p - c for p, c in zip(pos, self.poses.com, strict=True))
        wrench = [*cross(offset, force), *force]  # each [k, N]
        return Vec(jnp.sum(sign * component, axis=1) for component in wrench)

    def accelerometer(self, site: str) -> Array:
        """[3, N] acceleration of a site, gravity included: m/s^2, site axes."""
        pos, mat = site_frames(self.physics_model, self.poses, [site])
        body = int(self.physics_model.mj_model.site(site).bodyid[0])
        offset, velocity = pos.at(0) - self.poses.com, self.motion.cvel.at(body)
        linear = _at_point(velocity, offset)
        proper = _at_point(self.acceleration.at(body), offset) + cross(velocity[:3], linear)
        return jnp.stack(mat_vec(transpose(mat.at(0)), proper))

    def forces(self, sites: list[str]) -> Array:
        """[3 * sites, N] force between each site's body and its parent: N, site axes."""
        _, mat = site_frames(self.physics_model, self.poses, sites)
        return _interleave(mat_vec(transpose(mat), self._wrench_at(sites)[3:]))

    def torques(self, sites: list[str]) -> Array:
        """[3 * sites, N] torque about each site between its body and the parent: N m, site axes."""
        pos, mat = site_frames(self.physics_model, self.poses, sites)
        wrench = self._wrench_at(sites)
        moment = wrench[:3] - cross(pos - self.poses.com, wrench[3:])
        return _interleave(mat_vec(transpose(mat), moment))

    def _wrench_at(self, sites: list[str]) -> Vec:
        bodies = np.array([self.physics_model.mj_model.site(name).bodyid[0] for name in sites])
        return Vec(component[bodies] for component in self.internal_force)

    def touch(self, sites: list[str]) -> Array:
        """[sites, N] sum of normal forces, N, of the contacts on each site's body that point through the site's box."""
        model = self.physics_model.mj_model
        rows = [model.site(name).id for name in sites]
        if set(model.site_type[rows]) != {int(mujoco.mjtGeom.mjGEOM_BOX)}:
            raise ValueError(f"touch sensors are supported on box sites, not on all of {sites}")
        pos, mat = site_frames(self.physics_model, self.poses, sites)
        normal, at = self.record.contact_normal, self.record.contact_body
        push = jnp.sum(self.record.contact_force * normal, axis=1)  # [k, N] normal force
        readings = []
        for i, row in enumerate(rows):
            body, to_local = int(model.site_bodyid[row]), transpose(mat.at(i))
            second = at[:, 1] == body
            point = Vec(p - c for p, c in zip(self.record.contact_pos.swapaxes(0, 1), pos.at(i), strict=True))
            inward = normal.swapaxes(0, 1) * jnp.where(second, -1.0, 1.0)
            point, direction = (jnp.stack(mat_vec(to_local, v), -1) for v in (point, inward))
            size = jnp.asarray(model.site_size[row], jnp.float32)
            distance = _distance_to_box(size, point, direction)
            hit = jnp.isfinite(distance) & (distance > 0) & (second | (at[:, 0] == body))
            readings.append(jnp.sum(push * hit, axis=0))
        return jnp.stack(readings)


def _distance_to_box(size: Array, point: Array, direction: Array) -> Array:
    """[k, N] distance from points [k, N, 3] along directions [k, N, 3] to a box at the origin: MJX's rays, mapped."""

    def one(point: Array, direction: Array) -> Array:
        return ray.ray_geom(size, point, direction, mujoco.mjtGeom.mjGEOM_BOX)

    return jax.vmap(jax.vmap(one))(point, direction)


def _interleave(vec: Vec) -> Array:
    """[3 * k, N] from components [k, N]: xyz of the first, xyz of the second, ..."""
    return jnp.stack(vec, axis=1).reshape(-1, vec[0].shape[-1])
