"""The model as the physics needs it: tables built once from a `mujoco.MjModel`, and what is refused."""

import dataclasses

import mujoco
import numpy as np
from mujoco import mjx

from envs.physics.tree import FREE, Tree

MJX_VERSION = "3.17.0"


@dataclasses.dataclass(frozen=True, eq=False)
class PhysicsModel:
    """One compiled model in C MuJoCo and in MJX, its tree tables and its linear maps."""

    mj_model: mujoco.MjModel
    mjx_model: mjx.Model
    mjx_data: mjx.Data  # a blank one, for MJX's collision detection to fill
    tree: Tree
    tendon_length: np.ndarray  # [nt, nq] lengths from coordinates
    tendon_jacobian: np.ndarray  # [nt, nv]
    actuator_length: np.ndarray  # [nu, nq]
    actuator_moment: np.ndarray  # [nu, nv]

    @classmethod
    def of(cls, model: mujoco.MjModel) -> "PhysicsModel":
        """Builds the tables, or raises an error that names what is not supported.

        MJX's implementation is named here because MJX would otherwise choose it by the device that it finds.
        """
        if mujoco.__version__ != MJX_VERSION:
            raise RuntimeError(
                f"envs.physics is written for mujoco-mjx {MJX_VERSION} and found {mujoco.__version__}: "
                "install the versions in requirements.txt"
            )
        mjx_data = mjx.make_data(model, impl="jax")
        _refuse_unsupported(model, contact_dims=mjx_data._impl.contact.dim)
        tendon_length, tendon_jacobian = _tendon_maps(model)
        actuator_length, actuator_moment = _actuator_maps(model, tendon_length, tendon_jacobian)
        return cls(
            mj_model=model,
            mjx_model=mjx.put_model(model, impl="jax"),
            mjx_data=mjx_data,
            tree=Tree.of(model),
            tendon_length=tendon_length,
            tendon_jacobian=tendon_jacobian,
            actuator_length=actuator_length,
            actuator_moment=actuator_moment,
        )


def _refuse_unsupported(model: mujoco.MjModel, contact_dims: np.ndarray) -> None:
    mj, equality = mujoco, model.eq_type[model.eq_active0 > 0]
    checks = {
        "an integrator other than Euler": model.opt.integrator != mj.mjtIntegrator.mjINT_EULER,
        "explicit damping (eulerdamp disabled)": model.opt.disableflags & mj.mjtDisableBit.mjDSBL_EULERDAMP,
        "elliptic friction cones": model.opt.cone != mj.mjtCone.mjCONE_PYRAMIDAL,
        "contacts with torsional friction (condim above 3)": (contact_dims > 3).any(),
        "equalities between other things than tendons": (equality != mj.mjtEq.mjEQ_TENDON).any(),
        "nonlinear tendon equalities": (model.eq_data[:, 2:5] != 0).any(),
        "spatial tendons": (model.wrap_type != mj.mjtWrap.mjWRAP_JOINT).any(),
        "limited, damped or armatured tendons": (
            model.tendon_limited.any() or model.tendon_damping.any() or model.tendon_armature.any()
        ),
        "dry friction": model.dof_frictionloss.any() or model.tendon_frictionloss.any(),
        "gravity compensation": model.body_gravcomp.any(),
        "a spring on the free joint": (model.jnt_stiffness[model.jnt_type == FREE] != 0).any(),
        "actuators on other things than joints and tendons": np.isin(
            model.actuator_trntype, [mj.mjtTrn.mjTRN_JOINT, mj.mjtTrn.mjTRN_TENDON], invert=True
        ).any(),
        "actuator gains other than fixed": (model.actuator_gaintype != mj.mjtGain.mjGAIN_FIXED).any(),
        "actuator biases other than affine": np.isin(
            model.actuator_biastype, [mj.mjtBias.mjBIAS_NONE, mj.mjtBias.mjBIAS_AFFINE], invert=True
        ).any(),
        "actuator dynamics other than filters": np.isin(
            model.actuator_dyntype, [mj.mjtDyn.mjDYN_NONE, mj.mjtDyn.mjDYN_FILTER], invert=True
        ).any(),
        "only some actuators with dynamics": model.na not in (0, model.nu),
        "limited activations or joint actuator forces": model.actuator_actlimited.any()
        or model.jnt_actfrclimited.any(),
    }
    found = [what for what, present in checks.items() if present]
    if found:
        raise ValueError(f"envs.physics does not support: {'; '.join(found)}")


def _tendon_maps(model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of fixed tendons from coordinates [nt, nq], and their rates from dof velocities [nt, nv]."""
    length, jacobian = np.zeros((model.ntendon, model.nq)), np.zeros((model.ntendon, model.nv))
    for tendon in range(model.ntendon):
        for wrap in range(model.tendon_adr[tendon], model.tendon_adr[tendon] + model.tendon_num[tendon]):
            joint = model.wrap_objid[wrap]
            length[tendon, model.jnt_qposadr[joint]] = model.wrap_prm[wrap]
            jacobian[tendon, model.jnt_dofadr[joint]] = model.wrap_prm[wrap]
    return length.astype(np.float32), jacobian.astype(np.float32)


def _actuator_maps(
    model: mujoco.MjModel, tendon_length: np.ndarray, tendon_jacobian: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of actuators from coordinates [nu, nq], and their rates from dof velocities [nu, nv]."""
    length, moment = np.zeros((model.nu, model.nq)), np.zeros((model.nu, model.nv))
    for actuator in range(model.nu):
        gear, target = model.actuator_gear[actuator, 0], model.actuator_trnid[actuator, 0]
        if model.actuator_trntype[actuator] == mujoco.mjtTrn.mjTRN_TENDON:
            length[actuator], moment[actuator] = gear * tendon_length[target], gear * tendon_jacobian[target]
        else:
            length[actuator, model.jnt_qposadr[target]] = moment[actuator, model.jnt_dofadr[target]] = gear
    return length.astype(np.float32), moment.astype(np.float32)
