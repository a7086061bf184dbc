"""One physics step: MuJoCo's forward dynamics under constraints, then Euler with implicit damping."""

import dataclasses

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from envs.physics import constraints, contacts, dynamics, forces, solver, weld
from envs.physics.dynamics import Motion
from envs.physics.model import PhysicsModel
from envs.physics.tree import Poses, kinematics
from envs.physics.vectors import quat_mul

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PhysicsState:
    """What is carried from step to step. Inside `envs.physics` the copies are the last axis."""

    qpos: Array  # [nq, N]
    qvel: Array  # [nv, N]
    act: Array  # [na, N]
    warmstart: Array  # [nv, N] last step's acceleration, where the solver starts


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepRecord:
    """What sensors need of a physics step: the state it started from, its acceleration and its contact forces."""

    qpos: Array  # [nq, N]
    qvel: Array  # [nv, N]
    qacc: Array  # [nv, N]
    contact_pos: Array  # [k, 3, N] world
    contact_normal: Array  # [k, 3, N] from the first geom to the second
    contact_force: Array  # [k, 3, N] on the second body, world axes
    contact_body: Array  # [k, 2, N] int


def step(
    physics_model: PhysicsModel, state: PhysicsState, ctrl: Array, target: Array | None = None
) -> tuple[PhysicsState, StepRecord]:
    """Advances N copies by one physics time step; ctrl [nu, N].

    target: in a model with a weld, the pose [7, N] (m, unit quaternion) that it pulls its body to.
    """
    model, tree, timestep = physics_model.mj_model, physics_model.tree, np.float32(physics_model.mj_model.opt.timestep)
    poses = kinematics(tree, state.qpos)
    motion = dynamics.spatial_motion(tree, poses, state.qvel)
    inertia = dynamics.inertia_matrix(tree, motion)
    actuation, act = forces.actuation(physics_model, state.qpos, state.qvel, state.act, ctrl)
    passive = forces.passive(physics_model, poses, motion, state.qvel)
    force = actuation + passive - dynamics.bias_force(tree, motion, state.qvel)
    qacc, total_force, contact_fields = _constrain(physics_model, poses, motion, inertia, force, state, target)

    damping = np.diag(timestep * model.dof_damping).astype(np.float32)  # implicit in velocity, as mj_Euler
    with jax.named_scope("solver"):
        acceleration = solver.solve_spd_copies(inertia + damping, total_force)
    qvel = state.qvel + timestep * acceleration
    qpos = _integrate(physics_model, poses.qpos, qvel, timestep)
    return PhysicsState(qpos, qvel, act, warmstart=qacc), StepRecord(state.qpos, state.qvel, qacc, *contact_fields)


def _constrain(
    physics_model: PhysicsModel,
    poses: Poses,
    motion: Motion,
    inertia: Array,
    force: Array,
    state: PhysicsState,
    target: Array | None,
) -> tuple[Array, Array, tuple[Array, Array, Array, Array]]:
    """Acceleration [nv, N] under constraints, total force on the dofs, and the contact fields of a `StepRecord`."""
    model, copies = physics_model.mj_model, force.shape[1]
    if model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_CONSTRAINT:
        none = jnp.zeros((0, 3, copies))
        return jnp.zeros_like(force), force, (none, none, none, jnp.zeros((0, 2, copies), int))
    eq_jacobian, eq_stiffness, eq_reference = constraints.equalities(physics_model, poses.qpos, state.qvel)
    limits = constraints.limits(physics_model, poses.qpos, state.qvel)
    contact, bodies = contacts.collide(physics_model, poses)
    rows, layout = contacts.contact_rows(physics_model, poses, motion, contact, bodies, state.qvel)
    eq_inertia = jnp.einsum("ev,en,ew->nvw", eq_jacobian, eq_stiffness, eq_jacobian)
    eq_drive = eq_jacobian.T @ (eq_stiffness * eq_reference)
    pull = None if target is None else weld.rows(physics_model, poses, motion, state.qvel, target)
    if pull is not None:
        eq_inertia, eq_drive = eq_inertia + pull.inertia(), eq_drive + pull.force(jnp.zeros_like(force))
    with jax.named_scope("solver"):
        solution = solver.solve_copies(
            inertia + eq_inertia,
            force + eq_drive,
            limits,
            rows,
            state.warmstart,
            constraints.dry_friction(physics_model, state.qvel),
            model.opt.iterations,
            model.opt.ls_iterations,
        )
    qacc = solution.qacc
    eq_force = eq_jacobian.T @ (eq_stiffness * (eq_reference - eq_jacobian @ qacc))
    if pull is not None:
        eq_force = eq_force + pull.force(qacc)
    contact_force = jax.vmap(layout.total_force)(contact, solution.row_force.T)
    fields = contact.pos, contact.frame[:, :, 0], contact_force, bodies
    return qacc, force + eq_force + solution.force, tuple(jnp.moveaxis(field, 0, -1) for field in fields)


def _integrate(physics_model: PhysicsModel, qpos: Array, qvel: Array, timestep: np.float32) -> Array:
    """qpos after moving with qvel for one time step; the quaternion of a free joint turns about body axes."""
    parts, q0, v0 = [], 0, 0  # runs of coordinates that move straight, with the quaternions between them
    for _, q, v in physics_model.tree.free:
        spin = qvel[v + 3 : v + 6]
        speed = jnp.linalg.norm(spin, axis=0)
        half = 0.5 * timestep * speed
        axis = spin / jnp.maximum(speed, mujoco.mjMINVAL)
        quat = jnp.stack(quat_mul(qpos[q + 3 : q + 7], (jnp.cos(half), *(axis * jnp.sin(half)))))
        parts += [qpos[q0 : q + 3] + timestep * qvel[v0 : v + 3], quat]
        q0, v0 = q + 7, v + 6
    return jnp.concatenate([*parts, qpos[q0:] + timestep * qvel[v0:]])
