"""Contacts: MJX's collision detection on our poses or our own (`nearest`), and the solver rows they become.

MJX's functions and the solver work on one copy each, so here the copies are the first axis, added by vmap.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from mujoco import mjx
from mujoco.mjx._src import collision_driver

from envs.physics import nearest as own
from envs.physics import solver
from envs.physics.constraints import row_stiffness, spring_law
from envs.physics.dynamics import Motion
from envs.physics.model import PhysicsModel
from envs.physics.tree import Poses, attached
from envs.physics.vectors import Vec, cross

Array = jax.Array
SHORT = 64  # entries of a list that accelerators rank instead of sorting


def collide(physics_model: PhysicsModel, poses: Poses):
    """The contacts of all copies (MJX's or ours, fields [N, k, ...]) and the bodies they join [N, k, 2]."""
    model = physics_model.mj_model
    if physics_model.nearest is not None:
        contact = own.collide(physics_model.nearest, model, physics_model.tree, poses)
        return contact, jnp.asarray(model.geom_bodyid)[contact.geom]
    pos, mat = attached(physics_model.tree, poses, model.geom_bodyid, model.geom_pos, model.geom_quat)

    def collide_one(xpos: Array, xmat: Array):
        data = physics_model.mjx_data.replace(geom_xpos=xpos, geom_xmat=xmat)
        contact = _contacts(physics_model.mjx_model, data)
        return contact.replace(frame=_capsule_frames(model, contact, xmat))

    rows = jnp.stack([jnp.stack(row, -1) for row in mat], -2)  # [ng, N, 3, 3]
    contact = jax.vmap(collide_one)(jnp.stack(pos, -1).swapaxes(0, 1), rows.swapaxes(0, 1))
    return contact, jnp.asarray(model.geom_bodyid)[contact.geom]


def _contacts(mjx_model: mjx.Model, data: mjx.Data):
    """The contacts of one copy: `collision_driver.collision` with a choice of our own where MJX sorts (`nearest`)."""
    if not data._impl.ncon:
        return data._impl.contact
    most_pairs, most_points = (
        collision_driver._numeric(mjx_model, name) for name in ("max_geom_pairs", "max_contact_points")
    )
    by_dimension: dict[int, list] = {}
    for key, contact in collision_driver._contact_groups(mjx_model, data).items():
        culled = most_pairs > -1 and not set(key.types) & collision_driver._GEOM_NO_BROADPHASE
        if culled and len(contact.geom) > most_pairs:
            (first, second), sizes = data.geom_xpos[contact.geom.T], mjx_model.geom_rbound[contact.geom.T]
            distance = jax.vmap(jnp.linalg.norm)(second - first) - (sizes[0] + sizes[1])
            contact = nearest(distance, contact, most_pairs)
        collide_pair = collision_driver._COLLISION_FUNC[key.types]
        distance, pos, frame = collide_pair(mjx_model, data, key, contact.geom)
        if collide_pair.ncon > 1:
            contact = jax.tree.map(lambda x, times=collide_pair.ncon: jnp.repeat(x, times, axis=0), contact)
        found = contact.replace(dist=distance, pos=pos, frame=frame)
        by_dimension.setdefault(key.condim, []).append(found)
    for dimension, contacts in by_dimension.items():
        contact = jax.tree.map(lambda *x: jnp.concatenate(x), *contacts)
        if -1 < most_points < len(contact.geom):
            contact = nearest(contact.dist, contact, most_points)
        by_dimension[dimension] = contact
    return jax.tree.map(lambda *x: jnp.concatenate(x), *(by_dimension[dim] for dim in sorted(by_dimension)))


def nearest(distance: Array, entries: Any, count: int) -> Any:
    """The `count` entries (leaves [n, ...]) with the smallest distances [n], nearest first, the earlier one of equals.

    A CPU sorts and gathers. On accelerators both are slow and want the copies first; comparing every two entries is
    cheaper there as long as the list is short. Of a long one a TPU gathers whole rows (docs/accelerators.md).
    """
    if len(distance) <= SHORT:
        ways = {"cpu": nearest_by_sorting, "default": nearest_by_ranks}
    else:
        ways = {"tpu": nearest_in_rows, "default": nearest_by_sorting}
    return jax.lax.platform_dependent(
        distance, entries, **{platform: partial(way, count=count) for platform, way in ways.items()}
    )


def nearest_by_sorting(distance: Array, entries: Any, count: int) -> Any:
    _, index = jax.lax.top_k(-distance, k=count)
    return jax.tree.map(lambda x: x[index], entries)


def nearest_in_rows(distance: Array, entries: Any, count: int) -> Any:
    """The same with one row per entry: of every array that it gathers, a TPU fills up the rows to 128 numbers.

    The arrays are joined across, entries last, where nothing is filled up, and turned into rows once. Whole numbers
    pass as float32, which has them exactly up to 2^24; they name geoms or pairs of them.
    """
    leaves, tree = jax.tree.flatten(entries)
    columns = [leaf.reshape(len(distance), -1).astype(jnp.float32).T for leaf in leaves]
    ends = np.cumsum([len(column) for column in columns])
    table = with_layout_constraint(jnp.concatenate(columns), Layout((0, 1)))
    _, index = jax.lax.top_k(-distance, k=count)
    found = jnp.split(table.T[index], ends[:-1], axis=1)
    return tree.unflatten(
        [part.reshape(count, *leaf.shape[1:]).astype(leaf.dtype) for part, leaf in zip(found, leaves, strict=True)]
    )


def nearest_by_ranks(distance: Array, entries: Any, count: int) -> Any:
    """Compares each entry with every other, which gives its rank; a place then sums over the one entry of its rank."""
    order = np.arange(len(distance))
    sooner = (distance < distance[:, None]) | ((distance == distance[:, None]) & (order < order[:, None]))
    taken = sooner.sum(1) == np.arange(count)[:, None]  # [count, n]

    def take(x: Array) -> Array:
        return jnp.where(taken.reshape(*taken.shape, *[1] * (x.ndim - 1)), x, 0).sum(1, dtype=x.dtype)

    return jax.tree.map(take, entries)


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
class RowLayout:
    """Which rows a contact has: the normal n of a frictionless one, else the four edges n +- mu t of its pyramid.

    A contact that may resist a spin (condim 4 and 6) has two more edges, of a turn about n. Those of condim 6 against
    rolling are four times n where rolling friction is next to nothing: one row, four times as stiff.
    """

    frictionless: np.ndarray  # indices of contacts
    frictional: np.ndarray
    spinning: np.ndarray  # of the frictional ones

    @classmethod
    def of(cls, dim: np.ndarray) -> "RowLayout":
        """The layout of contacts with MuJoCo's dimensions [k], each 1, 3 or (for one that may spin) 6."""
        return cls(np.flatnonzero(dim == 1), np.flatnonzero(dim >= 3), np.flatnonzero(dim == 6))

    @property
    def contact(self) -> np.ndarray:
        """[r] contact of each row."""
        return np.concatenate([self.frictionless, *[self.frictional] * 4, *[self.spinning] * 3])

    def directions(self, contact) -> Array:
        """[r, 3] world directions of the rows."""
        normal, tangents = contact.frame[:, 0], contact.frame[:, 1:] * contact.friction[:, :2, None]
        f = self.frictional
        along = [normal[f] + sign * tangents[f, i] for i in (0, 1) for sign in (1, -1)]
        return jnp.concatenate([normal[self.frictionless], *along, *[normal[self.spinning]] * 3])

    def turns(self, contact, lever: Vec) -> Vec:
        """Angular parts of the rows, components [r]: the lever of their direction, and the turn of those of a spin."""
        if not len(self.spinning):
            return lever
        axis = (contact.frame[:, 0] * contact.torsion[:, None])[self.spinning]
        none = jnp.zeros((len(self.frictionless) + 4 * len(self.frictional), 3))
        return lever + Vec(jnp.concatenate([none, axis, -axis, jnp.zeros_like(axis)]).T)

    def stiffness(self, contact, stiffness: Array) -> Array:
        """[r] stiffness of the rows from that of the contacts' edges [k]."""
        if not len(self.spinning):
            return stiffness[self.contact]
        resists, rolls = ((contact.dim[self.spinning] > least).astype(jnp.float32) for least in (3, 4))
        whole = jnp.ones(len(self.frictionless) + 4 * len(self.frictional))
        return stiffness[self.contact] * jnp.concatenate([whole, resists, resists, 4 * rolls])

    def total_force(self, contact, row_force: Array) -> Array:
        """[k, 3] world force of each contact from its rows' forces [r]."""
        force = row_force[:, None] * self.directions(contact)
        split = len(self.frictionless)
        total = jnp.zeros_like(contact.pos).at[self.frictionless].set(force[:split])
        edges, more = jnp.split(force[split:], [4 * len(self.frictional)])
        total = total.at[self.frictional].set(edges.reshape(4, -1, 3).sum(0))
        return total.at[self.spinning].add(more.reshape(3, -1, 3).sum(0)) if len(self.spinning) else total


def contact_rows(
    physics_model: PhysicsModel, poses: Poses, motion: Motion, contact, bodies: Array, qvel: Array
) -> tuple[solver.Rows, RowLayout]:
    """Solver rows of the contacts, copies first, and how the rows belong to contacts."""
    model = physics_model.mj_model
    inverse_weight = jnp.asarray(model.body_invweight0[:, 0], jnp.float32)
    dim = physics_model.contact_dims
    layout = RowLayout.of(dim)
    moving = jnp.asarray(physics_model.tree.moving)

    def rows_of_one(contact, bodies: Array, cdof: Array, qvel: Array, com: Array) -> solver.Rows:
        edge = layout.directions(contact).T  # [3, r]
        lever = cross((contact.pos[layout.contact] - com).T, edge)
        relative = moving[:, bodies[:, 1]] - moving[:, bodies[:, 0]]  # [nv, k]
        jacobian = (cdof.T @ jnp.stack([*layout.turns(contact, lever), *edge])) * relative[:, layout.contact]
        gap = contact.dist - contact.includemargin
        k, b, impedance = spring_law(model, contact.solref.T, contact.solimp.T, gap)
        weight = inverse_weight[bodies[:, 0]] + inverse_weight[bodies[:, 1]]
        mu2 = contact.friction[:, 0] ** 2
        weight = jnp.where(dim >= 3, 2 * mu2 * (1 + mu2) / np.float32(model.opt.impratio) * weight, weight)
        stiffness = row_stiffness(weight, impedance) * (gap < 0)
        reference = -b[layout.contact] * (qvel @ jacobian) - (k * impedance * gap)[layout.contact]
        return solver.Rows(jacobian, reference, layout.stiffness(contact, stiffness))

    cdof, qvel, com = (jnp.moveaxis(x, -1, 0) for x in (jnp.stack(motion.cdof), qvel, jnp.stack(poses.com)))
    return jax.vmap(rows_of_one)(contact, bodies, cdof, qvel, com), layout
