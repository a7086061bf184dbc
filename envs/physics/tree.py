"""The kinematic tree of a model: constant tables, and world poses from coordinates without walking tree levels.

MJX walks the kinematic tree level by level and unrolls every level in Python. The dog's tree is 31 levels deep, and XLA
on CPU then spends minutes in one fused kernel. Here the same quantities come out of a program whose length does not
depend on the depth:

* world poses by pointer doubling: each round composes a body's pose with its ancestor's, and ancestors double, so
  ceil(log2(depth)) rounds reach the root;
* every sum up or down the tree (composite inertia, velocities, bias forces) as one product with a constant 0/1 matrix.
  Gathers with constant indices are such products too; they are exact at the precision that `envs.body` asks for.

There may be several trees, with free, hinge and slide joints; `Tree.of` refuses anything else. A mocap body is allowed
as the target of a weld (`envs.physics.weld`): it has a pose of its own that no table here knows.
"""

import dataclasses

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from envs.physics.vectors import Vec, constant, mat_mul, mat_vec, one_hot, quat_mul, quat_to_mat, rotate

Array = jax.Array
FREE, HINGE, SLIDE = mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """Constant masks and tables of one model's kinematic tree (numpy, built once)."""

    model: mujoco.MjModel
    ancestors: np.ndarray  # [rounds, nb, nb] picks each body's ancestor 2^round generations up
    parent_of_joint: np.ndarray  # [nb, nj] picks the parent of each joint's body
    joint_slots: tuple["JointSlot", ...]  # joints of each body in order: slot 0 holds every body's first joint
    slot_of_joint: np.ndarray  # [slots * nb, nj] picks each joint's entry in the concatenated slots
    subtree: np.ndarray  # [nb, nb] sums over each body's subtree
    subtree_of_dof: np.ndarray  # [nb, nv] sums over the subtree of each dof's body
    moving: np.ndarray  # [nv, nb] sums over the dofs that move each body
    before: np.ndarray  # [nv, nv] sums over the dofs that carry each dof's axis
    coupled: np.ndarray  # [nv, nv] 1 where the column's dof is the row's or above it: lower triangle of the inertia
    inertia: tuple  # xx, yy, zz, xy, xz, yz of each body [nb, 1], body axes
    free: tuple[tuple[int, int, int], ...]  # joint, first coordinate and first dof of each free joint
    root: int  # the first body that moves; its subtree is everything that moves where there is one tree

    @classmethod
    def of(cls, model: mujoco.MjModel) -> "Tree":
        """Builds the tables, or raises a ValueError that names what is not supported."""
        _refuse_unsupported(model)
        nb, parent = model.nbody, np.array(model.body_parentid)
        subtree = np.eye(nb, dtype=np.float32)
        for body in range(1, nb):  # parents precede children
            subtree[body] += subtree[parent[body]]
        ancestors, up = [], parent
        while up.any():
            ancestors.append(one_hot(up, nb))
            up = up[up]
        coupled = np.eye(model.nv, dtype=np.float32)
        for dof in range(model.nv):
            if model.dof_parentid[dof] >= 0:
                coupled[dof] += coupled[model.dof_parentid[dof]]
        before = (coupled - np.eye(model.nv, dtype=np.float32)).T
        free = tuple((int(j), int(model.jnt_qposadr[j]), int(model.jnt_dofadr[j])) for j in _free_joints(model))
        for _, _, dof in free:
            before[:, dof : dof + 3] = 0  # world-fixed translation axes
            before[dof + 3 : dof + 6, dof + 3 : dof + 6] = 0  # three axes of one rotation
        slot = np.arange(model.njnt) - model.body_jntadr[model.jnt_bodyid]
        return cls(
            model=model,
            ancestors=np.array(ancestors).reshape(-1, nb, nb),
            parent_of_joint=one_hot(parent[model.jnt_bodyid], nb),
            joint_slots=tuple(JointSlot.of(model, np.flatnonzero(slot == s)) for s in range(slot.max() + 1)),
            slot_of_joint=one_hot(slot * nb + model.jnt_bodyid, (slot.max() + 1) * nb),
            subtree=subtree,
            subtree_of_dof=subtree[:, model.dof_bodyid],
            moving=subtree[:, model.dof_bodyid].T,
            before=before,
            coupled=coupled,
            inertia=_body_axes_inertia(model),
            free=free,
            root=int(model.body_rootid[model.body_dofnum > 0][0]),
        )


def _free_joints(model: mujoco.MjModel) -> np.ndarray:
    return np.flatnonzero(model.jnt_type == FREE)


def _refuse_unsupported(model: mujoco.MjModel) -> None:
    kinds = {mujoco.mjtJoint(t) for t in model.jnt_type}
    if kinds - {FREE, HINGE, SLIDE}:
        raise ValueError(
            f"envs.physics supports free, hinge and slide joints; this model has {sorted(k.name for k in kinds)}"
        )
    if not model.njnt:
        raise ValueError("envs.physics needs at least one joint; nothing in this model moves")
    mocap = np.flatnonzero(model.body_mocapid >= 0)
    if model.body_geomnum[mocap].any() or np.isin(model.body_parentid, mocap).any():
        raise ValueError("envs.physics supports mocap bodies as targets of welds only: without geoms and children")


def _body_axes_inertia(model: mujoco.MjModel) -> tuple:
    """Rotational inertia of each body about its own centre of mass, turned from principal to body axes."""
    full = np.zeros((model.nbody, 3, 3))
    for body in range(model.nbody):
        turn = np.zeros(9)
        mujoco.mju_quat2Mat(turn, model.body_iquat[body])
        turn = turn.reshape(3, 3)
        full[body] = turn @ np.diag(model.body_inertia[body]) @ turn.T
    return tuple(constant(full[:, i, j]) for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)))


@dataclasses.dataclass(frozen=True, eq=False)
class JointSlot:
    """The nth joint of every body, one row per body; a body with fewer joints gets a hinge that never turns.

    All bodies compose their nth joint at the same time, whatever level of the tree they are on.
    """

    anchor: np.ndarray  # [3, nb, 1] body axes
    axis: np.ndarray  # [3, nb, 1]
    turn: np.ndarray  # [nb, nq] picks hinge angles
    turn0: np.ndarray  # [nb, 1] where they are zero
    slide: np.ndarray  # [nb, nq] picks slide displacements
    slide0: np.ndarray  # [nb, 1] where they are zero
    free: tuple[tuple[np.ndarray, int], ...]  # [nb, 1] true at a body with a free joint, and its first coordinate

    @classmethod
    def of(cls, model: mujoco.MjModel, joints: np.ndarray) -> "JointSlot":
        """Tables of the given joints, at most one of each body."""
        anchor, axis = np.zeros((3, model.nbody)), np.zeros((3, model.nbody))
        pick = {HINGE: np.zeros((model.nbody, model.nq)), SLIDE: np.zeros((model.nbody, model.nq))}
        free = []
        for joint in joints:
            body, kind = model.jnt_bodyid[joint], mujoco.mjtJoint(model.jnt_type[joint])
            if kind == FREE:
                free.append((np.arange(model.nbody)[:, None] == body, int(model.jnt_qposadr[joint])))
                axis[:, body] = (0, 0, 1)  # MuJoCo's convention
                continue
            anchor[:, body], axis[:, body] = model.jnt_pos[joint], model.jnt_axis[joint]
            pick[kind][body, model.jnt_qposadr[joint]] = 1
        turn0, slide0 = (constant(pick[kind] @ model.qpos0) for kind in (HINGE, SLIDE))
        turn, slide = (pick[kind].astype(np.float32) for kind in (HINGE, SLIDE))
        return cls(constant(anchor), constant(axis), turn, turn0, slide, slide0, tuple(free))


@dataclasses.dataclass(frozen=True)
class Poses:
    """Where everything is, world frame."""

    qpos: Array  # [nq, N] with a unit quaternion
    pos: Vec  # body origins [nb, N]
    mat: Vec  # body rotations [nb, N]
    quat: Vec  # the same as quaternions [nb, N]
    anchor: Vec  # joint anchors [nj, N]
    axis: Vec  # joint axes [nj, N]
    com: Vec  # centre of mass of the whole model [N]


def kinematics(tree: Tree, qpos: Array) -> Poses:
    """Poses of all bodies from coordinates [nq, N]."""
    model = tree.model
    for _, q, _ in tree.free:
        unit_quat = qpos[q + 3 : q + 7] / jnp.linalg.norm(qpos[q + 3 : q + 7], axis=0)
        qpos = jnp.concatenate([qpos[: q + 3], unit_quat, qpos[q + 7 :]])
    pos, quat, anchors, axes = _in_parent_frames(tree, qpos)
    for ancestor in tree.ancestors:
        above = Vec((*pos, *quat)).through(ancestor)
        pos, quat = rotate(pos, above[3:]) + above[:3], quat_mul(above[3:], quat)
    carrier = Vec((*pos, *quat)).through(tree.parent_of_joint)
    local = Vec((*_concatenated(anchors), *_concatenated(axes))).through(tree.slot_of_joint)
    mat = quat_to_mat(quat)
    centre = mat_vec(mat, constant(model.body_ipos.T)) + pos
    mass = constant(model.body_mass / model.body_mass.sum())
    return Poses(
        qpos=qpos,
        pos=pos,
        mat=mat,
        quat=quat,
        anchor=rotate(local[:3], carrier[3:]) + carrier[:3],
        axis=rotate(local[3:], carrier[3:]),
        com=Vec(jnp.sum(c * mass, axis=0) for c in centre),
    )


def _in_parent_frames(tree: Tree, qpos: Array) -> tuple[Vec, Vec, list[Vec], list[Vec]]:
    """Positions and quaternions of bodies [nb, N], and anchors and axes of each joint slot, in the parent's frame."""
    model = tree.model
    full_size = (model.nbody, qpos.shape[1])
    pos = Vec(jnp.broadcast_to(constant(row), full_size) for row in model.body_pos.T)
    quat = Vec(jnp.broadcast_to(constant(row), full_size) for row in model.body_quat.T)
    anchors, axes = [], []
    for slot in tree.joint_slots:
        anchor, axis = rotate(slot.anchor, quat) + pos, rotate(slot.axis, quat)
        half = 0.5 * (slot.turn @ qpos - slot.turn0)
        quat = quat_mul(quat, (jnp.cos(half), *(slot.axis * jnp.sin(half))))
        pos = anchor - rotate(slot.anchor, quat)
        if slot.slide.any():
            pos = pos + axis * (slot.slide @ qpos - slot.slide0)
        for body, q in slot.free:
            pos = _replaced(body, pos, qpos[q : q + 3])
            quat = _replaced(body, quat, qpos[q + 3 : q + 7])
            anchor = _replaced(body, anchor, qpos[q : q + 3])
        anchors.append(anchor)
        axes.append(axis)
    return pos, quat, anchors, axes


def _replaced(where: np.ndarray, old: Vec, new: Array) -> Vec:
    """old, with the components of new in the rows that `where` marks."""
    return Vec(jnp.where(where, n, o) for n, o in zip(new, old, strict=True))


def _concatenated(slots: list[Vec]) -> list[Array]:
    """Components [slots * nb, N] of all slots, one after the other."""
    return [jnp.concatenate(c) for c in zip(*slots, strict=True)]


def attached(tree: Tree, poses: Poses, body: np.ndarray, pos: np.ndarray, quat: np.ndarray) -> tuple[Vec, Vec]:
    """Positions and rotations [k, N] of frames fixed to bodies: geoms, sites, inertial frames."""
    rows = Vec((*poses.pos, *poses.mat[0], *poses.mat[1], *poses.mat[2])).through(one_hot(body, tree.model.nbody))
    mat, local = Vec((rows[3:6], rows[6:9], rows[9:12])), np.zeros((len(body), 9))
    for row, q in zip(local, quat, strict=True):
        mujoco.mju_quat2Mat(row, q)
    local = constant(local.reshape(-1, 3, 3).transpose(1, 2, 0))
    return mat_vec(mat, constant(pos.T)) + rows[:3], mat_mul(mat, local)
