"""One physics step of N copies of a body: MuJoCo's equations on `envs.tree` and `envs.solver`, MJX's collisions.

It is MuJoCo's forward step for the features our bodies use: free, hinge and slide joints, fixed tendons, motors, servos
and filtered actuators, springs, damping, inertia-box drag, tendon equalities, joint limits, pyramidal contacts, Euler
integration with implicit damping. `Machine.of` refuses a model that needs more, and names what.
`mjx.step` remains the reference it is tested against; MJX's geometry and constraint laws live in private modules, so
the MJX version is checked too.
"""

import dataclasses

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import mjx
from mujoco.mjx._src import collision_driver

from envs import solver, tree
from envs.tree import Motion, Poses, Tree, Vec, constant

Array = jax.Array
MJX_VERSION = "3.17.0"
_DISABLE = mujoco.mjtDisableBit


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Physics:
    """What a body carries from step to step. In this module the copies are the last axis, as in `envs.tree`."""

    qpos: Array  # [nq, N]
    qvel: Array  # [nv, N]
    act: Array  # [na, N]
    warmstart: Array  # [nv, N] last step's acceleration, where the solver starts


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Instant:
    """What sensors need of the last physics step: the state it started from, its acceleration and contact forces."""

    qpos: Array
    qvel: Array
    qacc: Array
    contact_pos: Array  # [k, 3, N] world
    contact_normal: Array  # [k, 3, N] from the first geom to the second
    contact_force: Array  # [k, 3, N] on the second body, world axes
    contact_body: Array  # [k, 2, N] int


@dataclasses.dataclass(frozen=True, eq=False)
class Machine:
    """A compiled body: the model in C MuJoCo and in MJX, its tree tables and its linear maps."""

    model: mujoco.MjModel
    mjx_model: mjx.Model
    template: mjx.Data
    tree: Tree
    tendon_length: np.ndarray  # [nt, nq]
    tendon_jacobian: np.ndarray  # [nt, nv]
    actuator_length: np.ndarray  # [nu, nq]
    actuator_moment: np.ndarray  # [nu, nv]

    @classmethod
    def of(cls, model: mujoco.MjModel) -> "Machine":
        if mujoco.__version__ != MJX_VERSION:
            raise RuntimeError(
                f"envs.physics is written for mujoco-mjx {MJX_VERSION} and found {mujoco.__version__}: "
                "install the versions in requirements.txt"
            )
        _refuse_unsupported(model)
        tendon_length, tendon_jacobian = _tendon_maps(model)
        actuator_length, actuator_moment = _actuator_maps(model, tendon_length, tendon_jacobian)
        return cls(
            model, mjx.put_model(model), mjx.make_data(model), Tree.of(model),
            tendon_length, tendon_jacobian, actuator_length, actuator_moment,
        )  # fmt: skip


def _refuse_unsupported(model: mujoco.MjModel) -> None:
    mj, equality = mujoco, model.eq_type[model.eq_active0 > 0]
    checks = {
        "an integrator other than Euler": model.opt.integrator != mj.mjtIntegrator.mjINT_EULER,
        "explicit damping (eulerdamp disabled)": model.opt.disableflags & _DISABLE.mjDSBL_EULERDAMP,
        "elliptic friction cones": model.opt.cone != mj.mjtCone.mjCONE_PYRAMIDAL,
        "contacts with torsional friction (condim above 3)": (mjx.make_data(model)._impl.contact.dim > 3).any(),
        "equalities between other things than tendons": (equality != mj.mjtEq.mjEQ_TENDON).any(),
        "nonlinear tendon equalities": (model.eq_data[:, 2:5] != 0).any(),
        "spatial tendons": (model.wrap_type != mj.mjtWrap.mjWRAP_JOINT).any(),
        "limited, damped or armatured tendons": (
            model.tendon_limited.any() or model.tendon_damping.any() or model.tendon_armature.any()
        ),
        "dry friction": model.dof_frictionloss.any() or model.tendon_frictionloss.any(),
        "gravity compensation": model.body_gravcomp.any(),
        "a spring on the free joint": (model.jnt_stiffness[model.jnt_type == tree.FREE] != 0).any(),
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
    length, jacobian = np.zeros((model.ntendon, model.nq)), np.zeros((model.ntendon, model.nv))
    for tendon in range(model.ntendon):
        for wrap in range(model.tendon_adr[tendon], model.tendon_adr[tendon] + model.tendon_num[tendon]):
            joint = model.wrap_objid[wrap]
            length[tendon, model.jnt_qposadr[joint]] = model.wrap_prm[wrap]
            jacobian[tendon, model.jnt_dofadr[joint]] = model.wrap_prm[wrap]
    return length.astype(np.float32), jacobian.astype(np.float32)


def _actuator_maps(model: mujoco.MjModel, tendon_length, tendon_jacobian) -> tuple[np.ndarray, np.ndarray]:
    length, moment = np.zeros((model.nu, model.nq)), np.zeros((model.nu, model.nv))
    for actuator in range(model.nu):
        gear, target = model.actuator_gear[actuator, 0], model.actuator_trnid[actuator, 0]
        if model.actuator_trntype[actuator] == mujoco.mjtTrn.mjTRN_TENDON:
            length[actuator], moment[actuator] = gear * tendon_length[target], gear * tendon_jacobian[target]
        else:
            length[actuator, model.jnt_qposadr[target]] = moment[actuator, model.jnt_dofadr[target]] = gear
    return length.astype(np.float32), moment.astype(np.float32)


def step(machine: Machine, physics: Physics, ctrl: Array) -> tuple[Physics, Instant]:
    """Advances N copies by one physics time step; ctrl [nu, N]."""
    model, timestep = machine.model, np.float32(machine.model.opt.timestep)
    poses = tree.kinematics(machine.tree, physics.qpos)
    mo = tree.motion(machine.tree, poses, physics.qvel)
    inertia = tree.inertia_matrix(machine.tree, mo)
    actuation, act = _actuation(machine, physics, ctrl)
    force = actuation + _passive(machine, poses, mo, physics.qvel) - tree.bias_force(machine.tree, mo, physics.qvel)
    qacc, total_force, contacts = _constrain(machine, poses, mo, inertia, force, physics)

    damping = np.diag(timestep * model.dof_damping).astype(np.float32)  # implicit in velocity, as mj_Euler
    qvel = physics.qvel + timestep * jax.vmap(solver.solve_spd)(inertia + damping, total_force.T).T
    qpos = _integrate(machine, poses.qpos, qvel, timestep)
    return Physics(qpos, qvel, act, warmstart=qacc), Instant(physics.qpos, physics.qvel, qacc, *contacts)


def _actuation(machine: Machine, physics: Physics, ctrl: Array) -> tuple[Array, Array]:
    """Joint forces [nv, N] of the actuators, and their next activations [na, N]."""
    model = machine.model
    clamp = lambda x, limited, bounds: jnp.where(limited[:, None] > 0, jnp.clip(x, *constant(bounds.T)), x)
    ctrl = clamp(ctrl, model.actuator_ctrllimited, model.actuator_ctrlrange)
    length, velocity = machine.actuator_length @ physics.qpos, machine.actuator_moment @ physics.qvel
    drive, act = ctrl, physics.act
    if model.na:
        drive, act = act, act + constant(model.opt.timestep / model.actuator_dynprm[:, 0]) * (ctrl - act)
    affine = model.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
    bias = constant(model.actuator_biasprm[:, :3].T * affine)
    force = constant(model.actuator_gainprm[:, 0]) * drive + bias[0] + bias[1] * length + bias[2] * velocity
    force = clamp(force, model.actuator_forcelimited, model.actuator_forcerange)
    return machine.actuator_moment.T @ force, act


def _passive(machine: Machine, poses: Poses, mo: Motion, qvel: Array) -> Array:
    """[nv, N] springs, damping and, for a body that swims, drag."""
    model = machine.model
    force = -constant(model.dof_damping) * qvel
    if model.jnt_stiffness.any():
        single = np.flatnonzero(model.jnt_type != tree.FREE)
        coordinate, dof = model.jnt_qposadr[single], model.jnt_dofadr[single]
        pull = constant(model.jnt_stiffness[single]) * (
            constant(model.qpos_spring[coordinate]) - poses.qpos[coordinate]
        )
        force = force.at[dof].add(pull)
    if model.tendon_stiffness.any():
        low, high = constant(model.tendon_lengthspring.T)
        length = machine.tendon_length @ poses.qpos
        outside = jnp.maximum(low - length, 0) - jnp.maximum(length - high, 0)
        force = force + machine.tendon_jacobian.T @ (constant(model.tendon_stiffness) * outside)
    if model.opt.density:
        force = force + tree.generalized_force(machine.tree, mo, _drag(machine, poses, mo))
    return force


def _drag(machine: Machine, poses: Poses, mo: Motion) -> Vec:
    """Drag wrenches [nb, N] about the centre of mass, each body taken as its inertia box (MuJoCo's default model)."""
    model = machine.model
    xipos, ximat = tree.attached(machine.tree, poses, np.arange(model.nbody), model.body_ipos, model.body_iquat)
    ixx, iyy, izz = model.body_inertia.T
    mass = np.maximum(model.body_mass, 1e-12)
    side = np.sqrt(6 * np.maximum([iyy + izz - ixx, ixx + izz - iyy, ixx + iyy - izz], 1e-12) / mass)
    x, y, z = constant(side * (model.body_mass > 0))
    offset, to_local = xipos - poses.com, tree.transpose(ximat)
    spin = tree.mat_vec(to_local, mo.cvel[:3])
    slip = tree.mat_vec(to_local, mo.cvel[3:] - tree.cross(offset, mo.cvel[:3]))
    area = y * z, x * z, x * y
    lever = x * (y**4 + z**4), y * (x**4 + z**4), z * (x**4 + y**4)
    density = np.float32(model.opt.density)
    against = lambda size, v: Vec(-density * s * jnp.abs(c) * c for s, c in zip(size, v, strict=True))
    force = tree.mat_vec(ximat, against(area, slip) * 0.5)
    torque = tree.mat_vec(ximat, against(lever, spin) * (1 / 64))
    return Vec((*(torque + tree.cross(offset, force)), *force))


def _integrate(machine: Machine, qpos: Array, qvel: Array, timestep: np.float32) -> Array:
    """qpos after moving with qvel for one time step; the root quaternion turns about body axes."""
    if machine.model.jnt_type[0] != tree.FREE:
        return qpos + timestep * qvel
    spin = qvel[3:6]
    speed = jnp.linalg.norm(spin, axis=0)
    half = 0.5 * timestep * speed
    axis = spin / jnp.maximum(speed, mujoco.mjMINVAL)
    quat = jnp.stack(tree.quat_mul(qpos[3:7], (jnp.cos(half), *(axis * jnp.sin(half)))))
    return jnp.concatenate([qpos[:3] + timestep * qvel[:3], quat, qpos[7:] + timestep * qvel[6:]])


def _constrain(machine: Machine, poses: Poses, mo: Motion, inertia: Array, force: Array, physics: Physics):
    """Acceleration [nv, N] under constraints, total force on the dofs, and the contacts as `Instant` stores them."""
    model, copies = machine.model, force.shape[1]
    if model.opt.disableflags & _DISABLE.mjDSBL_CONSTRAINT:
        none = jnp.zeros((0, 3, copies))
        return jnp.zeros_like(force), force, (none, none, none, jnp.zeros((0, 2, copies), int))
    eq_jacobian, eq_stiffness, eq_reference = _equalities(machine, poses.qpos, physics.qvel)
    limits = _limits(machine, poses.qpos, physics.qvel)
    contact, bodies = _collide(machine, poses)
    rows, edges = _contact_rows(machine, poses, mo, contact, bodies, physics.qvel)
    solution = jax.vmap(solver.solve, in_axes=(0, 0, 0, 0, 0, None, None))(
        inertia + jnp.einsum("ev,en,ew->nvw", eq_jacobian, eq_stiffness, eq_jacobian),
        (force + eq_jacobian.T @ (eq_stiffness * eq_reference)).T,
        jax.tree.map(jnp.transpose, limits), rows, physics.warmstart.T, model.opt.iterations, model.opt.ls_iterations,
    )  # fmt: skip
    qacc = solution.qacc.T
    eq_force = eq_jacobian.T @ (eq_stiffness * (eq_reference - eq_jacobian @ qacc))
    contact_force = jax.vmap(edges.total)(contact, solution.row_force)
    last = lambda x: jnp.moveaxis(x, 0, -1)
    contacts = last(contact.pos), last(contact.frame[:, :, 0]), last(contact_force), last(bodies)
    return qacc, force + eq_force + solution.force.T, contacts


def _spring(model: mujoco.MjModel, solref, solimp, gap) -> tuple[Array, Array, Array]:
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


def _stiffness(weight, impedance: Array) -> Array:
    """Solver stiffness D = 1 / R of a row."""
    return 1 / jnp.maximum(weight * (1 - impedance) / impedance, mujoco.mjMINVAL)


def _equalities(machine: Machine, qpos: Array, qvel: Array) -> tuple[np.ndarray, Array, Array]:
    """Tendon equalities, first length = offset + slope * second: Jacobian [e, nv], stiffness and reference [e, N]."""
    model = machine.model
    active = np.flatnonzero(model.eq_active0)
    first, second = model.eq_obj1id[active], model.eq_obj2id[active]
    paired = second >= 0
    offset, slope = model.eq_data[active, 0], model.eq_data[active, 1] * paired
    jacobian = machine.tendon_jacobian[first] - constant(slope) * machine.tendon_jacobian[second]
    length = machine.tendon_length @ qpos - constant(model.tendon_length0)
    error = length[first] - constant(offset) - constant(slope) * length[second]
    weight = constant(model.tendon_invweight0[first] + model.tendon_invweight0[second] * paired)
    k, b, impedance = _spring(model, constant(model.eq_solref[active].T), constant(model.eq_solimp[active].T), error)
    return jacobian, _stiffness(weight, impedance), -b * (jacobian @ qvel) - k * impedance * error


def _limits(machine: Machine, qpos: Array, qvel: Array) -> solver.Limits:
    """Joint limits, fields [nv, N]: the nearer end of each limited joint's range."""
    model = machine.model
    joint = np.flatnonzero(model.jnt_limited)
    dof = model.jnt_dofadr[joint]
    q, (low, high) = qpos[model.jnt_qposadr[joint]], constant(model.jnt_range[joint].T)
    side = jnp.where(q - low < high - q, 1.0, -1.0)
    gap = jnp.minimum(q - low, high - q) - constant(model.jnt_margin[joint])
    k, b, impedance = _spring(model, constant(model.jnt_solref[joint].T), constant(model.jnt_solimp[joint].T), gap)
    stiffness = _stiffness(constant(model.dof_invweight0[dof]), impedance) * (gap < 0)
    spread = lambda x: jnp.zeros_like(qvel).at[dof].set(x)
    return solver.Limits(spread(side), spread(-b * side * qvel[dof] - k * impedance * gap), spread(stiffness))


def _collide(machine: Machine, poses: Poses):
    """MJX's contacts on our geom poses, and the bodies they join [N, k, 2]. Copies first, as MJX's functions want."""
    model = machine.model
    pos, mat = tree.attached(machine.tree, poses, model.geom_bodyid, model.geom_pos, model.geom_quat)

    def one(xpos: Array, xmat: Array):
        data = machine.template.replace(geom_xpos=xpos, geom_xmat=xmat)
        contact = collision_driver.collision(machine.mjx_model, data)._impl.contact
        return contact.replace(frame=_capsule_frames(model, contact, xmat))

    rows = jnp.stack([jnp.stack(row, -1) for row in mat], -2)  # [ng, N, 3, 3]
    contact = jax.vmap(one)(jnp.stack(pos, -1).swapaxes(0, 1), rows.swapaxes(0, 1))
    return contact, jnp.asarray(model.geom_bodyid)[contact.geom]


def _capsule_frames(model: mujoco.MjModel, contact, xmat: Array) -> Array:
    """Contact frames [k, 3, 3] with the friction pyramid along a capsule's axis where it meets a plane.

    C MuJoCo does this at any slope. MJX gives up on capsules steeper than 60 degrees, and the other pyramid then pushes
    the dog's fingers and toes in other directions: the largest of its one-step differences to C.
    """
    plane, capsule = (model.geom_type == kind for kind in (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_CAPSULE))
    aligned = jnp.asarray(plane)[contact.geom[:, 0]] & jnp.asarray(capsule)[contact.geom[:, 1]]
    normal, axis = contact.frame[:, 0], xmat[contact.geom[:, 1], :, 2]
    along = axis - normal * jnp.sum(normal * axis, axis=-1, keepdims=True)
    length = jnp.linalg.norm(along, axis=-1, keepdims=True)
    along = along / jnp.maximum(length, mujoco.mjMINVAL)
    frame = jnp.stack([normal, along, jnp.cross(normal, along)], axis=1)
    return jnp.where((aligned[:, None] & (length > 1e-6))[..., None], frame, contact.frame)


@dataclasses.dataclass(frozen=True, eq=False)
class Edges:
    """Which rows a contact has: its normal n if it is frictionless, else the four edges n +- mu t of its pyramid."""

    slippery: np.ndarray
    frictional: np.ndarray

    @property
    def contact(self) -> np.ndarray:
        """[r] contact of each row."""
        return np.concatenate([self.slippery, *[self.frictional] * 4])

    def directions(self, contact) -> Array:
        """[r, 3] world directions of the rows."""
        normal, tangents = contact.frame[:, 0], contact.frame[:, 1:] * contact.friction[:, :2, None]
        f = self.frictional
        along = [normal[f] + sign * tangents[f, i] for i in (0, 1) for sign in (1, -1)]
        return jnp.concatenate([normal[self.slippery], *along])

    def total(self, contact, row_force: Array) -> Array:
        """[k, 3] world force of each contact from its rows' forces [r]."""
        force = row_force[:, None] * self.directions(contact)
        split = len(self.slippery)
        total = jnp.zeros_like(contact.pos).at[self.slippery].set(force[:split])
        return total.at[self.frictional].set(force[split:].reshape(4, -1, 3).sum(0))


def _contact_rows(machine: Machine, poses: Poses, mo: Motion, contact, bodies: Array, qvel: Array):
    """Solver rows of the contacts, copies first, and how the rows belong to contacts."""
    model, mx = machine.model, machine.mjx_model
    dim = np.asarray(machine.template._impl.contact.dim)
    edges = Edges(np.flatnonzero(dim == 1), np.flatnonzero(dim == 3))
    moved = jnp.asarray(machine.tree.moving)

    def one(contact, bodies, cdof, qvel, com):
        edge = edges.directions(contact).T  # [3, r]
        lever = tree.cross((contact.pos[edges.contact] - com).T, edge)
        relative = moved[:, bodies[:, 1]] - moved[:, bodies[:, 0]]  # [nv, k]
        jacobian = (cdof.T @ jnp.stack([*lever, *edge])) * relative[:, edges.contact]
        gap = contact.dist - contact.includemargin
        k, b, impedance = _spring(model, contact.solref.T, contact.solimp.T, gap)
        weight = mx.body_invweight0[bodies[:, 0], 0] + mx.body_invweight0[bodies[:, 1], 0]
        mu2 = contact.friction[:, 0] ** 2
        weight = jnp.where(dim == 3, 2 * mu2 * (1 + mu2) / mx.opt.impratio * weight, weight)
        stiffness = _stiffness(weight, impedance) * (gap < 0)
        reference = -b[edges.contact] * (qvel @ jacobian) - (k * impedance * gap)[edges.contact]
        return solver.Rows(jacobian, reference, stiffness[edges.contact])

    first = lambda x: jnp.moveaxis(x, -1, 0)
    rows = jax.vmap(one)(contact, bodies, first(jnp.stack(mo.cdof)), first(qvel), first(jnp.stack(poses.com)))
    return rows, edges
