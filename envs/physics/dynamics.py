"""Inertias, velocities, accelerations and the forces they need, on the poses of `envs.physics.tree`.

Spatial vectors have their angular part first, are taken about the centre of mass of the whole model, and lie along
world axes. Names are MuJoCo's: cinert, cdof, cvel, cdof_dot, qfrc.
"""

import dataclasses

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from envs.physics.tree import HINGE, Poses, Tree
from envs.physics.vectors import Vec, constant, cross, mat_mul, mat_vec

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Motion:
    """Spatial inertias and how they move."""

    cinert: Vec  # body inertias: xx, yy, zz, xy, xz, yz; mass * offset; mass. [nb, N]
    cdof: Vec  # motion axis of each dof [nv, N]
    cvel: Vec  # body velocities [nb, N]
    cdof_dot: Vec  # rate of the motion axes [nv, N]


def spatial_motion(tree: Tree, poses: Poses, qvel: Array) -> Motion:
    """Inertias, motion axes and velocities for dof velocities [nv, N]."""
    cdof = _motion_axes(tree, poses)
    moving = cdof * qvel
    return Motion(
        cinert=_inertias(tree, poses),
        cdof=cdof,
        cvel=moving.through(tree.moving),
        cdof_dot=motion_cross(moving.through(tree.before), cdof),
    )


def _inertias(tree: Tree, poses: Poses) -> Vec:
    """Body inertias about the centre of mass of the whole model, world axes, laid out as `Motion.cinert`."""
    xx, yy, zz, xy, xz, yz = tree.inertia
    rotated = mat_mul(poses.mat, ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz)))

    def about(i: int, j: int) -> Array:
        return sum(rotated[i][k] * poses.mat[j][k] for k in range(3))

    mass = constant(tree.model.body_mass)
    x, y, z = inertial_offset(tree, poses)
    moments = (
        about(0, 0) + mass * (y * y + z * z),
        about(1, 1) + mass * (x * x + z * z),
        about(2, 2) + mass * (x * x + y * y),
    )
    products = (about(0, 1) - mass * x * y, about(0, 2) - mass * x * z, about(1, 2) - mass * y * z)
    return Vec((*moments, *products, mass * x, mass * y, mass * z, jnp.broadcast_to(mass, x.shape)))


def inertial_offset(tree: Tree, poses: Poses) -> Vec:
    """Centres of mass of the bodies [nb, N], seen from that of the whole model."""
    return mat_vec(poses.mat, constant(tree.model.body_ipos.T)) + poses.pos - poses.com


def _motion_axes(tree: Tree, poses: Poses) -> Vec:
    """Spatial axis of each dof [nv, N].

    A hinge turns about its anchor, a slide shifts along its axis, a free joint shifts and turns along three axes.
    """
    model = tree.model
    hinge = (model.jnt_type == HINGE)[:, None]
    lever = cross(poses.axis, Vec(c - a for c, a in zip(poses.com, poses.anchor, strict=True)))
    linear = Vec(jnp.where(hinge, turning, shifting) for turning, shifting in zip(lever, poses.axis, strict=True))
    single = Vec((*(poses.axis * hinge), *linear))
    parts, start = [], 0  # runs of single joints with the free ones between them
    for joint, _, _ in tree.free:
        body_axes = Vec(jnp.stack(row) for row in poses.mat.at(model.jnt_bodyid[joint]))  # each [3 axes, N]
        lever = cross(body_axes, poses.com - poses.anchor.at(joint))
        none = jnp.zeros_like(body_axes[0])
        shift = Vec([none] * 3 + [none.at[i].set(1.0) for i in range(3)])
        parts += [Vec(c[start:joint] for c in single), shift, Vec((*body_axes, *lever))]
        start = joint + 1
    parts.append(Vec(c[start:] for c in single))
    return Vec(jnp.concatenate(c) for c in zip(*parts, strict=True)) if tree.free else single


def inertia_times(cinert: Vec, v: Vec) -> Vec:
    """Momentum (or force) of inertias moving (or accelerating) with v."""
    xx, yy, zz, xy, xz, yz = cinert[:6]
    h, mass, w, u = cinert[6:9], cinert[9], v[:3], v[3:]
    spin = mat_vec(((xx, xy, xz), (xy, yy, yz), (xz, yz, zz)), w) + cross(h, u)
    return Vec((*spin, *(u * mass - cross(h, w))))


def motion_cross(v: Vec, axis: Vec) -> Vec:
    """Rate of change of motion axes carried along with velocities v."""
    return Vec((*cross(v[:3], axis[:3]), *(cross(v[:3], axis[3:]) + cross(v[3:], axis[:3]))))


def force_cross(v: Vec, force: Vec) -> Vec:
    """Rate of change of forces carried along with velocities v."""
    return Vec((*(cross(v[:3], force[:3]) + cross(v[3:], force[3:])), *cross(v[:3], force[3:])))


def inertia_matrix(tree: Tree, motion: Motion) -> Array:
    """Joint-space inertia M [N, nv, nv] from composite rigid bodies; copies first, as matrix factorisations want."""
    momentum = inertia_times(motion.cinert.through(tree.subtree_of_dof), motion.cdof)
    product = jnp.einsum("vcn,wcn->nvw", jnp.stack(momentum, 1), jnp.stack(motion.cdof, 1))
    above = (tree.coupled - np.eye(len(tree.coupled), dtype=np.float32)).T
    lower = product * tree.coupled
    return lower + jnp.swapaxes(product, 1, 2) * above + np.diag(tree.model.dof_armature).astype(np.float32)


def accelerations(tree: Tree, motion: Motion, qvel: Array, qacc: Array | None = None) -> Vec:
    """Body accelerations [nb, N]; gravity appears as an upward acceleration of the world."""
    rate = motion.cdof_dot * qvel
    rate = rate if qacc is None else rate + motion.cdof * qacc
    model = tree.model
    weightless = model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_GRAVITY
    gravity = np.zeros(3) if weightless else model.opt.gravity
    return rate.through(tree.moving) - Vec(np.float32(g) for g in (0, 0, 0, *gravity))


def inertial_forces(motion: Motion, cacc: Vec) -> Vec:
    """Forces [nb, N] that make each body accelerate with cacc while it moves with cvel."""
    return inertia_times(motion.cinert, cacc) + force_cross(motion.cvel, inertia_times(motion.cinert, motion.cvel))


def bias_force(tree: Tree, motion: Motion, qvel: Array) -> Array:
    """[nv, N] Coriolis, centrifugal and gravity forces (MuJoCo's `qfrc_bias`)."""
    return generalized_force(tree, motion, inertial_forces(motion, accelerations(tree, motion, qvel)))


def generalized_force(tree: Tree, motion: Motion, wrench: Vec) -> Array:
    """[nv, N] effect on the dofs of wrenches on the bodies [nb, N], about the centre of mass."""
    return sum(axis * total for axis, total in zip(motion.cdof, wrench.through(tree.subtree_of_dof), strict=True))


def subtree_velocity(tree: Tree, poses: Poses, motion: Motion, body: int) -> Vec:
    """Velocity [N] of the centre of mass of a body's subtree, world axes (MuJoCo's `subtreelinvel`)."""
    mass = tree.model.body_mass * tree.subtree[:, body]
    velocity = motion.cvel[3:] - cross(inertial_offset(tree, poses), motion.cvel[:3])
    return Vec(jnp.sum(c * constant(mass / mass.sum()), axis=0) for c in velocity)
