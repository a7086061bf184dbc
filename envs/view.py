"""Named physical quantities of a body, for observations. As in `envs.tree`, the N copies are the last axis."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco.mjx._src import ray

from envs import tree
from envs.physics import Instant, Machine
from envs.tree import Vec

Array = jax.Array


class View:
    """Positions and velocities of a state. Poses and velocities are computed when first asked for."""

    def __init__(self, machine: Machine, qpos: Array, qvel: Array, act: Array, sensors: Array, drawn: Array):
        self.machine, self.qpos, self.qvel, self.act = machine, qpos, qvel, act
        self.sensors = sensors  # [ns, N] acceleration-stage sensors, read in the last physics step
        self.drawn = drawn  # [k, N] what the reset drew for this episode (fish: target position)

    @functools.cached_property
    def poses(self) -> tree.Poses:
        return tree.kinematics(self.machine.tree, self.qpos)

    @functools.cached_property
    def motion(self) -> tree.Motion:
        return tree.motion(self.machine.tree, self.poses, self.qvel)

    def position(self, body: str) -> Array:
        """[3, N] m, world."""
        return jnp.stack(self.poses.pos.at(self._body(body)))

    def vertical(self, body: str) -> Array:
        """[3, N] world-up direction in body axes: bottom row of the rotation matrix."""
        return jnp.stack(self.poses.mat.at(self._body(body))[2])

    def in_frame(self, body: str, vector: Array) -> Array:
        """World vector [3, N] in body axes."""
        return jnp.stack(tree.mat_vec(tree.transpose(self.poses.mat.at(self._body(body))), vector))

    def subtree_velocity(self, body: str) -> Array:
        """[3, N] m/s, world: velocity of the centre of mass of the body and all it carries."""
        return jnp.stack(tree.subtree_velocity(self.machine.tree, self.poses, self.motion, self._body(body)))

    def geom(self, name: str) -> tuple[Vec, Vec]:
        """World position and rotation of a geom, components [N]."""
        model = self.machine.model
        row = model.geom(name).id
        pos, mat = tree.attached(
            self.machine.tree, self.poses, model.geom_bodyid[[row]], model.geom_pos[[row]], model.geom_quat[[row]]
        )
        return pos.at(0), mat.at(0)

    def velocimeter(self, site: str) -> Array:
        """[3, N] m/s, site axes."""
        pos, mat, velocity = self._site(site)
        return jnp.stack(tree.mat_vec(tree.transpose(mat), _at_point(velocity, pos - self.poses.com)))

    def gyro(self, site: str) -> Array:
        """[3, N] rad/s, site axes."""
        _, mat, velocity = self._site(site)
        return jnp.stack(tree.mat_vec(tree.transpose(mat), velocity[:3]))

    def _body(self, name: str) -> int:
        return self.machine.model.body(name).id

    def _site(self, name: str) -> tuple[Vec, Vec, Vec]:
        pos, mat = site_frames(self.machine, self.poses, [name])
        return pos.at(0), mat.at(0), self.motion.cvel.at(int(self.machine.model.site(name).bodyid[0]))


def site_frames(machine: Machine, poses: tree.Poses, names: list[str]) -> tuple[Vec, Vec]:
    """World positions and rotations [k, N] of sites."""
    model = machine.model
    rows = [model.site(name).id for name in names]
    return tree.attached(machine.tree, poses, model.site_bodyid[rows], model.site_pos[rows], model.site_quat[rows])


def _at_point(spatial: Vec, offset: Vec) -> Vec:
    """Linear part of a spatial velocity or acceleration at a point, `offset` from the centre of mass."""
    return spatial[3:] - tree.cross(offset, spatial[:3])


class AccelerationView:
    """Acceleration-stage sensors of the last physics step, from the `Instant` it left behind.

    MuJoCo reads these sensors before it integrates, so they belong to the state the step started from.
    """

    def __init__(self, machine: Machine, instant: Instant):
        self.machine, self.instant = machine, instant
        self.poses = tree.kinematics(machine.tree, instant.qpos)
        self.motion = tree.motion(machine.tree, self.poses, instant.qvel)

    @functools.cached_property
    def acceleration(self) -> Vec:
        return tree.accelerations(self.machine.tree, self.motion, self.instant.qvel, self.instant.qacc)

    @functools.cached_property
    def internal_force(self) -> Vec:
        """Wrench [nb, N] between each body and its parent, about the centre of mass."""
        inertial = tree.inertial_forces(self.motion, self.acceleration)
        return (inertial - self._contact_wrench()).through(self.machine.tree.subtree)

    def _contact_wrench(self) -> Vec:
        """Contact forces as wrenches on the bodies [nb, N]."""
        body = jnp.arange(self.machine.model.nbody)[:, None, None]
        at = self.instant.contact_body
        sign = (at[None, :, 1] == body) * 1.0 - (at[None, :, 0] == body)  # [nb, k, N]
        pos, force = self.instant.contact_pos.swapaxes(0, 1), self.instant.contact_force.swapaxes(0, 1)
        offset = Vec(p - c for p, c in zip(pos, self.poses.com, strict=True))
        wrench = [*tree.cross(offset, force), *force]  # each [k, N]
        return Vec(jnp.sum(sign * component, axis=1) for component in wrench)

    def accelerometer(self, site: str) -> Array:
        """[3, N] m/s^2, site axes, gravity included."""
        pos, mat = site_frames(self.machine, self.poses, [site])
        body = int(self.machine.model.site(site).bodyid[0])
        offset, velocity = pos.at(0) - self.poses.com, self.motion.cvel.at(body)
        linear = _at_point(velocity, offset)
        proper = _at_point(self.acceleration.at(body), offset) + tree.cross(velocity[:3], linear)
        return jnp.stack(tree.mat_vec(tree.transpose(mat.at(0)), proper))

    def forces(self, sites: list[str]) -> Array:
        """[3 * sites, N] N, site axes: force between each site's body and its parent."""
        _, mat = site_frames(self.machine, self.poses, sites)
        return _interleave(tree.mat_vec(tree.transpose(mat), self._wrench_at(sites)[3:]))

    def torques(self, sites: list[str]) -> Array:
        """[3 * sites, N] N m, site axes, about each site."""
        pos, mat = site_frames(self.machine, self.poses, sites)
        wrench = self._wrench_at(sites)
        moment = wrench[:3] - tree.cross(pos - self.poses.com, wrench[3:])
        return _interleave(tree.mat_vec(tree.transpose(mat), moment))

    def _wrench_at(self, sites: list[str]) -> Vec:
        bodies = np.array([self.machine.model.site(name).bodyid[0] for name in sites])
        return Vec(component[bodies] for component in self.internal_force)

    def touch(self, sites: list[str]) -> Array:
        """[sites, N] N: normal forces of contacts on each site's body whose normal passes through the site's box."""
        model = self.machine.model
        rows = [model.site(name).id for name in sites]
        if set(model.site_type[rows]) != {int(mujoco.mjtGeom.mjGEOM_BOX)}:
            raise ValueError(f"touch sensors are supported on box sites, not on all of {sites}")
        pos, mat = site_frames(self.machine, self.poses, sites)
        normal, at = self.instant.contact_normal, self.instant.contact_body
        push = jnp.sum(self.instant.contact_force * normal, axis=1)  # [k, N] normal force
        readings = []
        for i, row in enumerate(rows):
            body, to_local = int(model.site_bodyid[row]), tree.transpose(mat.at(i))
            second = at[:, 1] == body
            point = Vec(p - c for p, c in zip(self.instant.contact_pos.swapaxes(0, 1), pos.at(i), strict=True))
            inward = normal.swapaxes(0, 1) * jnp.where(second, -1.0, 1.0)
            point, direction = (jnp.stack(tree.mat_vec(to_local, v), -1) for v in (point, inward))
            size = jnp.asarray(model.site_size[row], jnp.float32)
            box = lambda at, along, size=size: ray.ray_geom(size, at, along, mujoco.mjtGeom.mjGEOM_BOX)
            distance = jax.vmap(jax.vmap(box))(point, direction)
            hit = jnp.isfinite(distance) & (distance > 0) & (second | (at[:, 0] == body))
            readings.append(jnp.sum(push * hit, axis=0))
        return jnp.stack(readings)


def _interleave(vec: Vec) -> Array:
    """[3 * k, N] from components [k, N]: xyz of the first, xyz of the second, ..."""
    return jnp.stack(vec, axis=1).reshape(-1, vec[0].shape[-1])
