"""A weld that pulls one body to a given pose: MuJoCo's weld to a mocap body, whose pose comes from outside.

It always pulls, so `envs.physics.step` folds it into the inertia and the force before the solver starts.
"""

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from envs.physics.dynamics import Motion
from envs.physics.tree import Poses
from envs.physics.vectors import Vec, constant, cross, mat_vec, quat_mul, transpose

if TYPE_CHECKING:
    from envs.physics.model import PhysicsModel

Array = jax.Array


def unsupported(model: mujoco.MjModel) -> dict[str, bool]:
    """What of the model's welds is not supported, for `PhysicsModel.of`."""
    welds = _welds(model)
    first, data = model.eq_obj1id[welds], model.eq_data[welds]
    return {
        "more than one weld": len(welds) > 1,
        "welds to anything but a mocap body as first body": (model.eq_objtype[welds] != mujoco.mjtObj.mjOBJ_BODY).any()
        or (model.body_mocapid[first] < 0).any(),
        "welds with an offset between the bodies": (data[:, :10] != [0, 0, 0, 0, 0, 0, 1, 0, 0, 0]).any(),
    }


def _welds(model: mujoco.MjModel) -> np.ndarray:
    return np.flatnonzero(model.eq_active0 & (model.eq_type == mujoco.mjtEq.mjEQ_WELD))


@dataclasses.dataclass(frozen=True)
class WeldRows:
    """Six rows, three of position (m) and three of rotation: x = J a - reference, all of which always push."""

    jacobian: Array  # [6, nv, N]
    stiffness: Array  # [6, N]
    reference: Array  # [6, N]

    def inertia(self) -> Array:
        """[N, nv, nv] what they add to the joint-space inertia."""
        return jnp.einsum("evn,en,ewn->nvw", self.jacobian, self.stiffness, self.jacobian)

    def force(self, qacc: Array) -> Array:
        """[nv, N] their force on the dofs at an acceleration [nv, N]."""
        x = jnp.einsum("evn,vn->en", self.jacobian, qacc) - self.reference
        return -jnp.einsum("evn,en->vn", self.jacobian, self.stiffness * x)


def rows(physics_model: "PhysicsModel", poses: Poses, motion: Motion, qvel: Array, target: Array) -> WeldRows:
    """The weld's rows for a target pose [7, N] (m, unit quaternion).

    The error of the rotation is the vector part of conj(q) * q_target. As in C MuJoCo, and unlike in MJX, the reference
    counts in that the Jacobian changes while the body moves.
    """
    from envs.physics.constraints import row_stiffness, spring_law  # it imports the model, which asks `unsupported`

    model, tree = physics_model.mj_model, physics_model.tree
    index = int(_welds(model)[0])
    body, torque_scale = int(model.eq_obj2id[index]), np.float32(model.eq_data[index, 10])
    moving = tree.moving[:, body : body + 1]  # [nv, 1]
    pos, to_local = poses.pos.at(body), transpose(poses.mat.at(body))
    conj = Vec((1.0, -1.0, -1.0, -1.0))
    off = quat_mul(Vec(q * sign for q, sign in zip(poses.quat.at(body), conj, strict=True)), target[3:])

    def turned(scalar, spin: Vec) -> Vec:
        """Vector part of conj(q) * (scalar, spin) * q_target / 2 for a world vector."""
        spin = mat_vec(to_local, spin)
        return (spin * off[0] + cross(spin, off[1:]) + off[1:] * scalar) * (0.5 * torque_scale)

    def at_body(spatial: Vec) -> Vec:
        """Linear part of spatial vectors about the centre of mass at the body's origin."""
        return spatial[3:] - cross(pos - poses.com, spatial[:3])

    axes = motion.cdof * moving
    jacobian = -jnp.stack([*at_body(axes), *turned(0.0, axes[:3])])
    error = jnp.stack([*(Vec(target[:3]) - pos), *(off[1:] * torque_scale)])
    # What the rows accelerate with at qacc = 0: the body's own acceleration, and the turning of its frame.
    velocity = motion.cvel.at(body)
    rate = Vec(jnp.sum(c * moving, axis=0) for c in motion.cdof_dot * qvel)
    spin = velocity[:3]
    linear = at_body(rate) + cross(spin, at_body(velocity))
    drift = -jnp.stack([*linear, *turned(0.5 * sum(w * w for w in spin), rate[:3])])

    solref, solimp = model.eq_solref[index].astype(np.float32), model.eq_solimp[index].astype(np.float32)
    k, b, impedance = spring_law(model, solref, solimp, jnp.linalg.norm(error, axis=0))
    first = int(model.eq_obj1id[index])
    weight = constant(np.repeat(model.body_invweight0[first] + model.body_invweight0[body], 3))
    velocity_error = jnp.einsum("evn,vn->en", jacobian, qvel)
    reference = -b * velocity_error - k * impedance * error - drift
    return WeldRows(jacobian, row_stiffness(weight, impedance), reference)
