"""The model as the physics needs it: tables built once from a `mujoco.MjModel`, and what is refused."""

import dataclasses

import mujoco
import numpy as np
from mujoco import mjx
from mujoco.mjx._src import collision_driver

from envs.physics import weld
from envs.physics.nearest import BOX, NUMERIC, Nearest
from envs.physics.tree import FREE, Tree

MJX_VERSION = "3.17.0"


@dataclasses.dataclass(frozen=True, eq=False)
class PhysicsModel:
    """One compiled model, its tree tables, its linear maps and what finds its contacts."""

    mj_model: mujoco.MjModel
    mjx_model: mjx.Model | None  # for MJX's collision detection, with a blank `mjx_data` to fill; None where the
    mjx_data: mjx.Data | None  # contacts are our own
    tree: Tree
    nearest: Nearest | None  # contacts of our own, where the model asks for them; else MJX's
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
        nearest = Nearest.of(model)
        mjx_data = mjx.make_data(model, impl="jax") if nearest is None else None
        _refuse_unsupported(model, np.full(1, 3) if mjx_data is None else mjx_data._impl.contact.dim)
        mjx_model = mjx.put_model(model, impl="jax") if nearest is None else None
        if nearest is None:
            _refuse_margins_of_boxes(mjx_model, mjx_data)
        tendon_length, tendon_jacobian = _tendon_maps(model)
        actuator_length, actuator_moment = _actuator_maps(model, tendon_length, tendon_jacobian)
        return cls(
            mj_model=model,
            mjx_model=mjx_model,
            mjx_data=mjx_data,
            nearest=nearest,
            tree=Tree.of(model),
            tendon_length=tendon_length,
            tendon_jacobian=tendon_jacobian,
            actuator_length=actuator_length,
            actuator_moment=actuator_moment,
        )

    @property
    def contact_dims(self) -> np.ndarray:
        """[k] MuJoCo's dimension of every contact: 1 without friction, 3 with, 6 for one that may also resist a spin
        (then its pair decides, from step to step)."""
        if self.nearest is not None:
            return np.full(self.nearest.points, 6 if self.nearest.spins else 3)
        return np.asarray(self.mjx_data._impl.contact.dim)


def _refuse_margins_of_boxes(mjx_model: mjx.Model, mjx_data: mjx.Data) -> None:
    """MJX's contacts of boxes give no force inside a margin, where C MuJoCo's do."""
    for key, contact in collision_driver._contact_groups(mjx_model, mjx_data).items():
        if BOX in key.types and (np.asarray(contact.includemargin) > 0).any():
            pair = np.asarray(contact.geom)[np.argmax(np.asarray(contact.includemargin) > 0)]
            raise ValueError(
                f"envs.physics does not support: contacts of boxes with a margin (geoms {pair[0]} and {pair[1]}): set "
                f"their margin to 0, or ask for contacts of our own with the numeric {NUMERIC!r}"
            )


def _refuse_unsupported(model: mujoco.MjModel, contact_dims: np.ndarray) -> None:
    mj, equality = mujoco, model.eq_type[model.eq_active0 > 0]
    checks = {
        "an integrator other than Euler": model.opt.integrator != mj.mjtIntegrator.mjINT_EULER,
        "explicit damping (eulerdamp disabled)": model.opt.disableflags & mj.mjtDisableBit.mjDSBL_EULERDAMP,
        "elliptic friction cones": model.opt.cone != mj.mjtCone.mjCONE_PYRAMIDAL,
        "contacts with torsional friction (condim above 3)": (contact_dims > 3).any(),
        "equalities other than between tendons and welds": np.isin(
            equality, [mj.mjtEq.mjEQ_TENDON, mj.mjtEq.mjEQ_WELD], invert=True
        ).any(),
        "nonlinear tendon equalities": (model.eq_data[model.eq_type == mj.mjtEq.mjEQ_TENDON, 2:5] != 0).any(),
        **weld.unsupported(model),
        "spatial tendons": (model.wrap_type != mj.mjtWrap.mjWRAP_JOINT).any(),
        "limited, damped or armatured tendons": (
            model.tendon_limited.any() or model.tendon_damping.any() or model.tendon_armature.any()
        ),
        "dry friction of tendons": model.tendon_frictionloss.any(),
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
