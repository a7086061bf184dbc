"""Forces that depend on the state alone: actuators, springs, damping, drag."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from envs.physics.dynamics import Motion, generalized_force
from envs.physics.model import PhysicsModel
from envs.physics.tree import FREE, Poses, attached
from envs.physics.vectors import Vec, constant, cross, mat_vec, transpose

Array = jax.Array


def actuation(physics_model: PhysicsModel, qpos: Array, qvel: Array, act: Array, ctrl: Array) -> tuple[Array, Array]:
    """Joint forces [nv, N] of the actuators, and their next activations [na, N]."""
    model = physics_model.mj_model
    ctrl = _clamped(ctrl, model.actuator_ctrllimited, model.actuator_ctrlrange)
    length, velocity = physics_model.actuator_length @ qpos, physics_model.actuator_moment @ qvel
    drive = ctrl
    if model.na:
        drive, act = act, act + constant(model.opt.timestep / model.actuator_dynprm[:, 0]) * (ctrl - act)
    affine = model.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
    bias = constant(model.actuator_biasprm[:, :3].T * affine)
    force = constant(model.actuator_gainprm[:, 0]) * drive + bias[0] + bias[1] * length + bias[2] * velocity
    force = _clamped(force, model.actuator_forcelimited, model.actuator_forcerange)
    return physics_model.actuator_moment.T @ force, act


def _clamped(x: Array, limited: np.ndarray, bounds: np.ndarray) -> Array:
    """x [k, N], clipped to bounds [k, 2] in the rows that are limited [k]."""
    return jnp.where(limited[:, None] > 0, jnp.clip(x, *constant(bounds.T)), x)


def passive(physics_model: PhysicsModel, poses: Poses, motion: Motion, qvel: Array) -> Array:
    """[nv, N] springs, damping and, in a model with a fluid, drag (MuJoCo's `qfrc_passive`)."""
    model = physics_model.mj_model
    force = -constant(model.dof_damping) * qvel
    if model.jnt_stiffness.any():
        single = np.flatnonzero(model.jnt_type != FREE)
        coordinate, dof = model.jnt_qposadr[single], model.jnt_dofadr[single]
        pull = constant(model.jnt_stiffness[single]) * (
            constant(model.qpos_spring[coordinate]) - poses.qpos[coordinate]
        )
        force = force.at[dof].add(pull)
    if model.tendon_stiffness.any():
        low, high = constant(model.tendon_lengthspring.T)
        length = physics_model.tendon_length @ poses.qpos
        outside = jnp.maximum(low - length, 0) - jnp.maximum(length - high, 0)
        force = force + physics_model.tendon_jacobian.T @ (constant(model.tendon_stiffness) * outside)
    if model.opt.density:
        force = force + generalized_force(physics_model.tree, motion, _drag(physics_model, poses, motion))
    return force


def _drag(physics_model: PhysicsModel, poses: Poses, motion: Motion) -> Vec:
    """Drag wrenches [nb, N] about the centre of mass, each body taken as its inertia box (MuJoCo's default model)."""
    model = physics_model.mj_model
    xipos, ximat = attached(physics_model.tree, poses, np.arange(model.nbody), model.body_ipos, model.body_iquat)
    ixx, iyy, izz = model.body_inertia.T
    mass = np.maximum(model.body_mass, 1e-12)
    side = np.sqrt(6 * np.maximum([iyy + izz - ixx, ixx + izz - iyy, ixx + iyy - izz], 1e-12) / mass)
    x, y, z = constant(side * (model.body_mass > 0))
    offset, to_local = xipos - poses.com, transpose(ximat)
    spin = mat_vec(to_local, motion.cvel[:3])
    slip = mat_vec(to_local, motion.cvel[3:] - cross(offset, motion.cvel[:3]))
    area = y * z, x * z, x * y
    lever = x * (y**4 + z**4), y * (x**4 + z**4), z * (x**4 + y**4)
    density = np.float32(model.opt.density)

    def against(size: tuple[np.ndarray, ...], velocity: Vec) -> Vec:
        return Vec(-density * s * jnp.abs(v) * v for s, v in zip(size, velocity, strict=True))

    force = mat_vec(ximat, against(area, slip) * 0.5)
    torque = mat_vec(ximat, against(lever, spin) * (1 / 64))
    return Vec((*(torque + cross(offset, force)), *force))
