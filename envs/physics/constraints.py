"""Soft constraints as the solver wants them: MuJoCo's spring law, tendon equalities, joint limits and dry friction.

A constraint row has a stiffness D and a reference acceleration; `envs.physics.solver` says how they enter the cost.
Rows of contacts are in `envs.physics.contacts`, those of a weld in `envs.physics.weld`.
"""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from envs.physics import solver
from envs.physics.model import PhysicsModel
from envs.physics.vectors import constant

Array = jax.Array


def spring_law(model: mujoco.MjModel, solref, solimp, gap) -> tuple[Array, Array, Array]:
    """Spring constant, damping and impedance of a constraint at distance `gap`: MuJoCo's solref and solimp law.

    `solref` and `solimp` are sequences of two and five parameters that broadcast against `gap`.
    """
    timeconst, dampratio = solref
    low, high, width, middle, power = solimp
    low, high, middle = (jnp.clip(x, mujoco.mjMINIMP, mujoco.mjMAXIMP) for x in (low, high, middle))
    width, power = jnp.maximum(width, mujoco.mjMINVAL), jnp.maximum(power, 1)
    safe = jnp.maximum(timeconst, np.float32(2 * model.opt.timestep))
    k = jnp.where(timeconst > 0, 1 / (high * safe * dampratio) ** 2, -timeconst / high**2)
    b = jnp.where(dampratio > 0, 2 / (high * safe), -dampratio / high)
    x = jnp.minimum(jnp.abs(gap) / width, 1.0)
    rising = x**power / middle ** (power - 1)
    falling = 1 - (1 - x) ** power / (1 - middle) ** (power - 1)
    return k, b, low + jnp.where(x < middle, rising, falling) * (high - low)


def row_stiffness(weight, impedance: Array) -> Array:
    """Solver stiffness D = 1 / R of a row, from its inverse inertia (`weight`) and its impedance."""
    return 1 / jnp.maximum(weight * (1 - impedance) / impedance, mujoco.mjMINVAL)


def equalities(physics_model: PhysicsModel, qpos: Array, qvel: Array) -> tuple[np.ndarray, Array, Array]:
    """Tendon equalities, first length = offset + slope * second: Jacobian [e, nv], stiffness and reference [e, N]."""
    model = physics_model.mj_model
    active = np.flatnonzero(model.eq_active0 & (model.eq_type == mujoco.mjtEq.mjEQ_TENDON))
    first, second = model.eq_obj1id[active], model.eq_obj2id[active]
    paired = second >= 0
    offset, slope = model.eq_data[active, 0], model.eq_data[active, 1] * paired
    jacobian = physics_model.tendon_jacobian[first] - constant(slope) * physics_model.tendon_jacobian[second]
    length = physics_model.tendon_length @ qpos - constant(model.tendon_length0)
    error = length[first] - constant(offset) - constant(slope) * length[second]
    weight = constant(model.tendon_invweight0[first] + model.tendon_invweight0[second] * paired)
    solref, solimp = constant(model.eq_solref[active].T), constant(model.eq_solimp[active].T)
    k, b, impedance = spring_law(model, solref, solimp, error)
    return jacobian, row_stiffness(weight, impedance), -b * (jacobian @ qvel) - k * impedance * error


def limits(physics_model: PhysicsModel, qpos: Array, qvel: Array) -> solver.Limits:
    """Joint limits, fields [nv, N]: the nearer end of each limited joint's range."""
    model = physics_model.mj_model
    joint = np.flatnonzero(model.jnt_limited)
    dof = model.jnt_dofadr[joint]
    q, (low, high) = qpos[model.jnt_qposadr[joint]], constant(model.jnt_range[joint].T)
    side = jnp.where(q - low < high - q, 1.0, -1.0)
    gap = jnp.minimum(q - low, high - q) - constant(model.jnt_margin[joint])
    solref, solimp = constant(model.jnt_solref[joint].T), constant(model.jnt_solimp[joint].T)
    k, b, impedance = spring_law(model, solref, solimp, gap)
    stiffness = row_stiffness(constant(model.dof_invweight0[dof]), impedance) * (gap < 0)

    def spread(x: Array) -> Array:
        return jnp.zeros_like(qvel).at[dof].set(x)

    return solver.Limits(
        sign=spread(side),
        reference=spread(-b * side * qvel[dof] - k * impedance * gap),
        stiffness=spread(stiffness),
    )


def dry_friction(physics_model: PhysicsModel, qvel: Array) -> solver.DryFriction | None:
    """Joint friction that does not depend on speed, fields [nv, N]; None in a model without."""
    model = physics_model.mj_model
    if not model.dof_frictionloss.any():
        return None
    solref, solimp = constant(model.dof_solref.T), constant(model.dof_solimp.T)
    _, b, impedance = spring_law(model, solref, solimp, jnp.zeros_like(qvel))
    loss = constant(model.dof_frictionloss)
    stiffness = row_stiffness(constant(model.dof_invweight0), impedance) * (loss > 0)
    return solver.DryFriction(
        reference=-b * qvel,
        stiffness=jnp.broadcast_to(stiffness, qvel.shape),
        loss=jnp.broadcast_to(loss, qvel.shape),
    )
