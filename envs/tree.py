"""Kinematic-tree algorithms without tree levels.

MJX walks the kinematic tree level by level and unrolls every level in Python. The dog's tree is 31 levels deep, and XLA
on CPU then spends minutes in one fused kernel. Here the same quantities come out of a program whose length does not
depend on the depth:

* world poses by pointer doubling: each round composes a body's pose with its ancestor's, and ancestors double, so
  ceil(log2(depth)) rounds reach the root;
* every sum up or down the tree (composite inertia, velocities, bias forces) as one product with a constant 0/1 matrix.
  Gathers with constant indices are such products too; they are exact at the precision that `envs.base` asks for.

The copies of the body are the last axis of every array. Element-wise work then runs along contiguous copies (vector
lanes on CPU and TPU, coalesced threads on GPU), and a product with a constant is one matrix product for all of them.

The stages cover one tree of hinge and slide joints with an optional free root; `Tree.of` refuses anything else. They
are tested against MJX's own. nb bodies, nv dofs, nq coordinates, nj joints, N copies.
"""

import dataclasses

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

Array = jax.Array
FREE, HINGE, SLIDE = mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE


class Vec(tuple):
    """Components of a 3-vector, quaternion or spatial vector (angular part first), each an array [k, N].

    Kept apart, element-wise algebra on them fuses into straight loops. A matrix is a Vec of its rows.
    """

    def __getitem__(self, index):
        item = super().__getitem__(index)
        return Vec(item) if isinstance(index, slice) else item

    def __add__(self, other):
        return Vec(a + b for a, b in zip(self, other, strict=True))

    def __sub__(self, other):
        return Vec(a - b for a, b in zip(self, other, strict=True))

    def __mul__(self, scale):
        return Vec(a * scale for a in self)

    def at(self, row: int) -> "Vec":
        """The components [N] of one body, joint or dof; of each row where this is a matrix."""
        return Vec(c.at(row) if isinstance(c, Vec) else c[row] for c in self)

    def through(self, matrix: np.ndarray) -> "Vec":
        """Sums or picks along the first axis: each component c becomes matrix.T @ c, matrix [k, j]."""
        stacked = jnp.stack(self, axis=1)  # [k, components, N]: one product for all of them
        out = jnp.einsum("kj,kcn->jcn", matrix, stacked)
        return Vec(out[:, i] for i in range(len(self)))


def cross(a: Vec, b: Vec) -> Vec:
    return Vec((a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]))


def rotate(vec: Vec, quat: Vec) -> Vec:
    """Rotates a 3-vector by a unit quaternion."""
    t = cross(quat[1:], vec) * 2
    return cross(quat[1:], t) + t * quat[0] + vec


def quat_mul(p: Vec, q: Vec) -> Vec:
    """Hamilton product."""
    return Vec(
        (
            p[0] * q[0] - p[1] * q[1] - p[2] * q[2] - p[3] * q[3],
            p[0] * q[1] + p[1] * q[0] + p[2] * q[3] - p[3] * q[2],
            p[0] * q[2] - p[1] * q[3] + p[2] * q[0] + p[3] * q[1],
            p[0] * q[3] + p[1] * q[2] - p[2] * q[1] + p[3] * q[0],
        )
    )


def quat_to_mat(q: Vec) -> Vec:
    """Rotation matrix of a unit quaternion."""
    w, x, y, z = q
    return Vec(
        (
            Vec((1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y))),
            Vec((2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x))),
            Vec((2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))),
        )
    )


def mat_vec(mat: Vec, vec: Vec) -> Vec:
    return Vec(row[0] * vec[0] + row[1] * vec[1] + row[2] * vec[2] for row in mat)


def transpose(mat: Vec) -> Vec:
    return Vec(Vec(row[i] for row in mat) for i in range(3))


def mat_mul(a: Vec, b: Vec) -> Vec:
    return transpose(Vec(mat_vec(a, column) for column in transpose(b)))


def constant(x) -> np.ndarray:
    """A float32 constant with a trailing axis for the copies."""
    return np.asarray(x, np.float32)[..., None]


def _one_hot(rows: np.ndarray, size: int) -> np.ndarray:
    """[size, len(rows)] with a one in each column: `x.through` it picks those rows."""
    return np.eye(size, dtype=np.float32)[:, rows]


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """Constant masks and tables of one model's kinematic tree (numpy, built once)."""

    model: mujoco.MjModel
    ancestors: np.ndarray  # [rounds, nb, nb] picks each body's ancestor 2^round generations up
    parent_of_joint: np.ndarray  # [nb, nj] picks the parent of each joint's body
    slots: tuple["Slot", ...]  # joints of each body in order: slot 0 holds every body's first joint
    slot_of_joint: np.ndarray  # [slots * nb, nj] picks each joint's entry in the concatenated slots
    subtree: np.ndarray  # [nb, nb] sums over each body's subtree
    subtree_of_dof: np.ndarray  # [nb, nv] the same, at each dof's body
    moving: np.ndarray  # [nv, nb] sums over the dofs that move each body
    before: np.ndarray  # [nv, nv] sums over the dofs that carry each dof's axis
    coupled: np.ndarray  # [nv, nv] 1 where the column's dof is the row's or above it: lower triangle of the inertia
    inertia: tuple  # xx, yy, zz, xy, xz, yz of each body [nb, 1], body axes
    root: int  # the body whose subtree is the whole machine

    @classmethod
    def of(cls, model: mujoco.MjModel) -> "Tree":
        _refuse_unsupported(model)
        nb, parent = model.nbody, np.array(model.body_parentid)
        subtree = np.eye(nb, dtype=np.float32)
        for body in range(1, nb):  # parents precede children
            subtree[body] += subtree[parent[body]]
        ancestors, up = [], parent
        while up.any():
            ancestors.append(_one_hot(up, nb))
            up = up[up]
        coupled = np.eye(model.nv, dtype=np.float32)
        for dof in range(model.nv):
            if model.dof_parentid[dof] >= 0:
                coupled[dof] += coupled[model.dof_parentid[dof]]
        before = (coupled - np.eye(model.nv, dtype=np.float32)).T
        if model.jnt_type[0] == FREE:
            before[:, :3] = 0  # world-fixed translation axes
            before[3:6, 3:6] = 0  # three axes of one rotation
        slot = np.arange(model.njnt) - model.body_jntadr[model.jnt_bodyid]
        return cls(
            model=model,
            ancestors=np.array(ancestors).reshape(-1, nb, nb),
            parent_of_joint=_one_hot(parent[model.jnt_bodyid], nb),
            slots=tuple(Slot.of(model, np.flatnonzero(slot == s)) for s in range(slot.max() + 1)),
            slot_of_joint=_one_hot(slot * nb + model.jnt_bodyid, (slot.max() + 1) * nb),
            subtree=subtree,
            subtree_of_dof=subtree[:, model.dof_bodyid],
            moving=subtree[:, model.dof_bodyid].T,
            before=before,
            coupled=coupled,
            inertia=_body_axes_inertia(model),
            root=int(model.body_rootid[model.body_dofnum > 0][0]),
        )


def _refuse_unsupported(model: mujoco.MjModel) -> None:
    kinds = {mujoco.mjtJoint(t) for t in model.jnt_type}
    if kinds - {FREE, HINGE, SLIDE}:
        raise ValueError(
            f"envs.tree supports free, hinge and slide joints; this model has {sorted(k.name for k in kinds)}"
        )
    if (model.jnt_type[1:] == FREE).any():
        raise ValueError("envs.tree supports a free joint at the root only")
    trees = len(set(model.body_rootid[model.body_dofnum > 0].tolist()))
    if trees != 1:
        raise ValueError(f"envs.tree supports one moving tree; this model has {trees}")
    if model.nmocap:
        raise ValueError("envs.tree does not support mocap bodies")


def _body_axes_inertia(model: mujoco.MjModel) -> tuple:
    full = np.zeros((model.nbody, 3, 3))
    for body in range(model.nbody):
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.body_iquat[body])
        turn = turn.reshape(3, 3)
        full[body] = turn @ np.diag(model.body_inertia[body]) @ turn.T
    return tuple(constant(full[:, i, j]) for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)))


@dataclasses.dataclass(frozen=True, eq=False)
class Slot:
    """The joints that are s-th on their body, one row a body; a body without one gets a hinge that never turns."""

    anchor: np.ndarray  # [3, nb, 1] body axes
    axis: np.ndarray  # [3, nb, 1]
    turn: np.ndarray  # [nb, nq] picks hinge angles
    turn0: np.ndarray  # [nb, 1] where they are zero
    slide: np.ndarray  # [nb, nq] picks slide displacements
    slide0: np.ndarray  # [nb, 1]
    free: np.ndarray | None  # [nb, 1] true at the body with the free joint

    @classmethod
    def of(cls, model: mujoco.MjModel, joints: np.ndarray) -> "Slot":
        anchor, axis = np.zeros((3, model.nbody)), np.zeros((3, model.nbody))
        pick = {HINGE: np.zeros((model.nbody, model.nq)), SLIDE: np.zeros((model.nbody, model.nq))}
        free = None
        for joint in joints:
            body, kind = model.jnt_bodyid[joint], mujoco.mjtJoint(model.jnt_type[joint])
            if kind == FREE:
                free, axis[:, body] = np.arange(model.nbody)[:, None] == body, (0, 0, 1)  # MuJoCo's convention
                continue
            anchor[:, body], axis[:, body] = model.jnt_pos[joint], model.jnt_axis[joint]
            pick[kind][body, model.jnt_qposadr[joint]] = 1
        turn0, slide0 = (constant(pick[kind] @ model.qpos0) for kind in (HINGE, SLIDE))
        turn, slide = (pick[kind].astype(np.float32) for kind in (HINGE, SLIDE))
        return cls(constant(anchor), constant(axis), turn, turn0, slide, slide0, free)


@dataclasses.dataclass(frozen=True)
class Poses:
    """World frame."""

    qpos: Array  # [nq, N] with a unit quaternion
    pos: Vec  # body origins [nb, N]
    mat: Vec  # body rotations [nb, N]
    anchor: Vec  # joint anchors [nj, N]
    axis: Vec  # joint axes [nj, N]
    com: Vec  # centre of mass of the machine [N]


@dataclasses.dataclass(frozen=True)
class Motion:
    """Spatial quantities about the machine's centre of mass, world axes, angular part first."""

    cinert: Vec  # body inertias: xx, yy, zz, xy, xz, yz; mass * offset; mass. [nb, N]
    cdof: Vec  # motion axis of each dof [nv, N]
    cvel: Vec  # body velocities [nb, N]
    cdof_dot: Vec  # rate of the motion axes [nv, N]


def kinematics(tree: Tree, qpos: Array) -> Poses:
    """Poses of all bodies from coordinates [nq, N]."""
    model = tree.model
    if model.jnt_type[0] == FREE:
        root_turn = qpos[3:7] / jnp.linalg.norm(qpos[3:7], axis=0)
        qpos = jnp.concatenate([qpos[:3], root_turn, qpos[7:]])
    full = lambda rows: Vec(jnp.broadcast_to(constant(row), (model.nbody, qpos.shape[1])) for row in rows)
    pos, quat = full(model.body_pos.T), full(model.body_quat.T)
    anchors, axes = [], []
    for slot in tree.slots:  # compose each body's joints, in the parent's frame
        anchor, axis = rotate(slot.anchor, quat) + pos, rotate(slot.axis, quat)
        half = 0.5 * (slot.turn @ qpos - slot.turn0)
        quat = quat_mul(quat, (jnp.cos(half), *(slot.axis * jnp.sin(half))))
        pos = anchor - rotate(slot.anchor, quat)
        if slot.slide.any():
            pos = pos + axis * (slot.slide @ qpos - slot.slide0)
        if slot.free is not None:
            place = lambda new, old, at=slot.free: Vec(jnp.where(at, n, o) for n, o in zip(new, old, strict=True))
            pos, quat, anchor = place(qpos[:3], pos), place(root_turn, quat), place(qpos[:3], anchor)
        anchors.append(anchor)
        axes.append(axis)
    for ancestor in tree.ancestors:
        above = Vec((*pos, *quat)).through(ancestor)
        pos, quat = rotate(pos, above[3:]) + above[:3], quat_mul(above[3:], quat)
    carrier = Vec((*pos, *quat)).through(tree.parent_of_joint)
    joined = lambda slots: [jnp.concatenate(c) for c in zip(*slots, strict=True)]
    local = Vec((*joined(anchors), *joined(axes))).through(tree.slot_of_joint)
    mat = quat_to_mat(quat)
    centre = mat_vec(mat, constant(model.body_ipos.T)) + pos
    mass = constant(model.body_mass / model.body_mass.sum())
    return Poses(
        qpos=qpos,
        pos=pos,
        mat=mat,
        anchor=rotate(local[:3], carrier[3:]) + carrier[:3],
        axis=rotate(local[3:], carrier[3:]),
        com=Vec(jnp.sum(c * mass, axis=0) for c in centre),
    )


def attached(tree: Tree, poses: Poses, body: np.ndarray, pos: np.ndarray, quat: np.ndarray) -> tuple[Vec, Vec]:
    """Positions and rotations [k, N] of frames fixed to bodies: geoms, sites, inertial frames."""
    rows = Vec((*poses.pos, *poses.mat[0], *poses.mat[1], *poses.mat[2])).through(_one_hot(body, tree.model.nbody))
    mat, local = Vec((rows[3:6], rows[6:9], rows[9:12])), np.zeros((len(body), 9))
    for row, q in zip(local, quat, strict=True):
        mujoco.mju_quat2Mat(row, q)
    local = constant(local.reshape(-1, 3, 3).transpose(1, 2, 0))
    return mat_vec(mat, constant(pos.T)) + rows[:3], mat_mul(mat, local)


def motion(tree: Tree, poses: Poses, qvel: Array) -> Motion:
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
    xx, yy, zz, xy, xz, yz = tree.inertia
    rotated = mat_mul(poses.mat, ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz)))
    about = lambda i, j: sum(rotated[i][k] * poses.mat[j][k] for k in range(3))
    mass = constant(tree.model.body_mass)
    x, y, z = inertial_offset(tree, poses)
    return Vec((
        about(0, 0) + mass * (y * y + z * z), about(1, 1) + mass * (x * x + z * z),
        about(2, 2) + mass * (x * x + y * y),
        about(0, 1) - mass * x * y, about(0, 2) - mass * x * z, about(1, 2) - mass * y * z,
        mass * x, mass * y, mass * z, jnp.broadcast_to(mass, x.shape),
    ))  # fmt: skip


def inertial_offset(tree: Tree, poses: Poses) -> Vec:
    """Centres of mass of the bodies [nb, N], seen from the machine's."""
    return mat_vec(poses.mat, constant(tree.model.body_ipos.T)) + poses.pos - poses.com


def _motion_axes(tree: Tree, poses: Poses) -> Vec:
    """A hinge turns about its anchor, a slide shifts along its axis, a free joint shifts and turns along three axes."""
    model = tree.model
    hinge = (model.jnt_type == HINGE)[:, None]
    lever = cross(poses.axis, Vec(c - a for c, a in zip(poses.com, poses.anchor, strict=True)))
    linear = Vec(jnp.where(hinge, turning, shifting) for turning, shifting in zip(lever, poses.axis, strict=True))
    single = Vec((*(poses.axis * hinge), *linear))
    if model.jnt_type[0] != FREE:
        return single
    body_axes = Vec(jnp.stack(row) for row in poses.mat.at(model.jnt_bodyid[0]))  # each [3 axes, N]
    lever = cross(body_axes, poses.com - poses.anchor.at(0))
    shift = [jnp.zeros_like(body_axes[0])] * 3 + [jnp.zeros_like(body_axes[0]).at[i].set(1.0) for i in range(3)]
    turn = [*body_axes, *lever]
    return Vec(jnp.concatenate([s, t, c[1:]]) for s, t, c in zip(shift, turn, single, strict=True))


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


def inertia_matrix(tree: Tree, mo: Motion) -> Array:
    """Joint-space inertia M [N, nv, nv] from composite rigid bodies; copies first, as matrix factorisations want."""
    momentum = inertia_times(mo.cinert.through(tree.subtree_of_dof), mo.cdof)
    product = jnp.einsum("vcn,wcn->nvw", jnp.stack(momentum, 1), jnp.stack(mo.cdof, 1))
    above = (tree.coupled - np.eye(len(tree.coupled), dtype=np.float32)).T
    lower = product * tree.coupled
    return lower + jnp.swapaxes(product, 1, 2) * above + np.diag(tree.model.dof_armature).astype(np.float32)


def accelerations(tree: Tree, mo: Motion, qvel: Array, qacc: Array | None = None) -> Vec:
    """Body accelerations [nb, N]; gravity appears as an upward acceleration of the world."""
    rate = mo.cdof_dot * qvel
    rate = rate if qacc is None else rate + mo.cdof * qacc
    model = tree.model
    weightless = model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_GRAVITY
    gravity = np.zeros(3) if weightless else model.opt.gravity
    return rate.through(tree.moving) - Vec(np.float32(g) for g in (0, 0, 0, *gravity))


def inertial_forces(mo: Motion, cacc: Vec) -> Vec:
    """Forces [nb, N] that make each body accelerate with cacc while it moves with cvel."""
    return inertia_times(mo.cinert, cacc) + force_cross(mo.cvel, inertia_times(mo.cinert, mo.cvel))


def bias_force(tree: Tree, mo: Motion, qvel: Array) -> Array:
    """[nv, N] Coriolis, centrifugal and gravity forces."""
    return generalized_force(tree, mo, inertial_forces(mo, accelerations(tree, mo, qvel)))


def generalized_force(tree: Tree, mo: Motion, wrench: Vec) -> Array:
    """[nv, N] effect on the dofs of wrenches on the bodies [nb, N], about the centre of mass."""
    return sum(axis * total for axis, total in zip(mo.cdof, wrench.through(tree.subtree_of_dof), strict=True))


def subtree_velocity(tree: Tree, poses: Poses, mo: Motion, body: int) -> Vec:
    """Velocity [N] of the centre of mass of a body's subtree, world axes (MuJoCo's `subtreelinvel`)."""
    mass = tree.model.body_mass * tree.subtree[:, body]
    velocity = mo.cvel[3:] - cross(inertial_offset(tree, poses), mo.cvel[:3])
    return Vec(jnp.sum(c * constant(mass / mass.sum()), axis=0) for c in velocity)
