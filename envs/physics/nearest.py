"""Contacts of our own for models of capsules, spheres and boxes: the pairs that are nearest by their true distance.

MJX ranks pairs by bounding spheres, which puts big boxes far too near, and its capsule against box differs from C
MuJoCo's. A model asks for this file with the custom numeric `nearest_contacts` (`suite.nearest_contacts`); others get
MJX's collisions. Every shape kind has a grid of pairs, whose distances are found at every step; the nearest pairs of
each kind become contact points, and the nearest of those are kept.

Distances are computed with the copies last; from the choice on the copies are the first axis, as in
`envs.physics.contacts`.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from envs.physics import shapes
from envs.physics.tree import Poses, Tree, attached
from envs.physics.vectors import Vec, constant, dot, mat_vec, transpose

Array = jax.Array
NUMERIC = "nearest_contacts"
SPHERE, CAPSULE, BOX = (int(getattr(mujoco.mjtGeom, f"mjGEOM_{name}")) for name in ("SPHERE", "CAPSULE", "BOX"))
ROLLING = 2e-4  # m, rolling friction up to which it is taken for none: MuJoCo's default is 1e-4
KINDS = ((CAPSULE, BOX), (CAPSULE, CAPSULE), (SPHERE, BOX))  # in the order of the numeric's entries


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Contact:
    """Contact points, fields [N, k, ...], named as MJX names them."""

    geom: Array  # [2] int
    dist: Array  # m
    pos: Array  # [3] m, world
    frame: Array  # [3, 3] rows: normal from the first geom to the second, two tangents
    includemargin: Array  # m
    friction: Array  # [2]
    solref: Array  # [2]
    solimp: Array  # [5]
    torsion: Array  # m, friction against a spin about the normal; of contacts of dimension 3 it is not used
    dim: Array  # MuJoCo's condim: 3, 4 or 6


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """All pairs of two lists of geoms of one shape kind; those that may not touch are marked."""

    kind: tuple[int, int]
    first: np.ndarray  # [a] geoms
    second: np.ndarray  # [b] geoms
    forbidden: np.ndarray  # [a, b, 1] 0 for a pair that may touch, else infinity
    parameters: np.ndarray  # [a * b, 12] margin, friction, solref, solimp, torsional friction, condim of each pair
    count: int  # pairs that become contact points

    @property
    def pairs(self) -> int:
        return int((self.forbidden == 0).sum())


@dataclasses.dataclass(frozen=True, eq=False)
class Nearest:
    """What `collide` needs of a model."""

    grids: tuple[Grid, ...]
    points: int  # contact points kept
    spins: bool  # some contacts have a condim above 3

    @classmethod
    def of(cls, model: mujoco.MjModel) -> "Nearest | None":
        """The model's grids, or None for a model that does not ask for them."""
        if NUMERIC not in [model.numeric(i).name for i in range(model.nnumeric)]:
            return None
        points, *counts = model.numeric(NUMERIC).data.astype(int)
        pairs = _pairs(model)
        _refuse_unsupported(model, pairs)
        kinds = model.geom_type[pairs]
        grids = [
            _grid(model, kind, pairs[(kinds == kind).all(1)], count) for kind, count in zip(KINDS, counts, strict=True)
        ]
        grids = tuple(grid for grid in grids if grid.pairs)
        spins = bool((model.geom_condim[pairs] > 3).any())
        return cls(grids, min(points, sum(g.count * _points(g.kind) for g in grids)), spins)


def _points(kind: tuple[int, int]) -> int:
    """Contact points of a pair."""
    return 2 if kind == (CAPSULE, BOX) else 1


def _pairs(model: mujoco.MjModel) -> np.ndarray:
    """[n, 2] geoms that may touch, by MuJoCo's rules: the simpler shape first, of equal ones what moves."""
    weld, above = model.body_weldid, model.body_weldid[model.body_parentid]
    excluded = set(model.exclude_signature.tolist())
    found = []
    for pair in itertools.combinations(np.flatnonzero(model.geom_contype | model.geom_conaffinity), 2):
        one, other = sorted(pair, key=lambda g: (model.geom_type[g], model.body_weldid[model.geom_bodyid[g]] == 0))
        bits = model.geom_contype[[one, other]] & model.geom_conaffinity[[other, one]]
        a, b = model.geom_bodyid[[one, other]]
        related = weld[a] == weld[b] or (weld[a] and weld[b] and weld[b] == above[weld[a]])
        related = related or (weld[a] and weld[b] and weld[a] == above[weld[b]])
        if bits.any() and not related and (min(a, b) << 16) + max(a, b) not in excluded:
            found.append((one, other))
    return np.array(found, int).reshape(-1, 2)


def _refuse_unsupported(model: mujoco.MjModel, pairs: np.ndarray) -> None:
    kinds = {tuple(int(kind) for kind in row) for row in model.geom_type[pairs]} - set(KINDS)
    names = [" against ".join(mujoco.mjtGeom(kind).name for kind in pair) for pair in sorted(kinds)]
    geoms, condim = np.unique(pairs), model.geom_condim[pairs].max(1, initial=0)
    checks = {
        ", ".join(names): bool(names),
        "contacts of another condim than 3, 4 and 6": np.isin(condim, (3, 4, 6), invert=True).any(),
        "rolling friction": (model.geom_friction[pairs, 2].max(1, initial=0)[condim == 6] > ROLLING).any(),
        "geoms of different priority or solmix": np.ptp(model.geom_priority[geoms]) or np.ptp(model.geom_solmix[geoms]),
        "direct spring constants (negative solref)": (model.geom_solref[geoms] < 0).any(),
        "gaps inside margins": model.geom_gap[geoms].any(),
        "contact pairs with parameters of their own": model.npair > 0,
    }
    found = [what for what, present in checks.items() if present]
    if found:
        raise ValueError(
            f"{NUMERIC} knows contacts of capsules with boxes and capsules, and of spheres with boxes; this model has "
            f"{'; '.join(found)}: change its geoms, or let MJX collide"
        )


def _grid(model: mujoco.MjModel, kind: tuple[int, int], pairs: np.ndarray, count: int) -> Grid:
    """The grid of some pairs, with MuJoCo's rules for the parameters of two geoms."""
    first, row = np.unique(pairs[:, 0], return_inverse=True)
    second, column = np.unique(pairs[:, 1], return_inverse=True)
    forbidden = np.full((len(first), len(second), 1), np.inf, np.float32)
    forbidden[row, column] = 0
    both = np.stack([np.repeat(first, len(second)), np.tile(second, len(first))])
    slide = model.geom_friction[both, 0].max(0)
    values = (
        model.geom_margin[both].sum(0)[:, None],
        np.stack([slide, slide], axis=1),
        model.geom_solref[both].mean(0),
        model.geom_solimp[both].mean(0),
        model.geom_friction[both, 1].max(0)[:, None],
        model.geom_condim[both].max(0)[:, None],
    )
    parameters = np.concatenate(values, axis=1).astype(np.float32)
    return Grid(kind, first, second, forbidden, parameters, min(count, len(pairs)))


def collide(nearest: Nearest, model: mujoco.MjModel, tree: Tree, poses: Poses) -> Contact:
    """The nearest contact points of all copies."""
    from envs.physics.contacts import nearest as smallest  # it imports this module

    pos, mat = attached(tree, poses, model.geom_bodyid, model.geom_pos, model.geom_quat)
    frames = jnp.moveaxis(jnp.stack([*pos, *mat[0], *mat[1], *mat[2]], axis=1), -1, 0)  # [N, ng, 12]
    found = []
    for grid in nearest.grids:
        gap = _gaps(grid, model, pos, mat)  # [a * b, N]
        index = jax.vmap(lambda g, grid=grid: smallest(g, jnp.arange(len(g)), grid.count))(gap.T)
        found.append(_touch(grid, model, frames, index))
    contact = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *found)
    if contact.dist.shape[1] > nearest.points:
        contact = jax.vmap(lambda c: smallest(c.dist - c.includemargin, c, nearest.points))(contact)
    return contact


def _gaps(grid: Grid, model: mujoco.MjModel, pos: Vec, mat: Vec) -> Array:
    """[a * b, N] distances of a grid's pairs, m, less their margins; infinite where they may not touch."""
    a, b = grid.first, grid.second
    p, q = Vec(c[a][:, None] for c in pos), Vec(c[b][None] for c in pos)
    size_a, size_b = (constant(model.geom_size[geoms].T) for geoms in (a, b))  # [3, geoms, 1]
    h = Vec(row[2][a][:, None] * size_a[1][:, None] for row in mat)
    if grid.kind[1] == BOX:
        to_local = transpose(Vec(Vec(entry[b][None] for entry in row) for row in mat))
        local, sides = mat_vec(to_local, p - q), Vec(side[None] for side in size_b)
        if grid.kind[0] == SPHERE:
            apart = shapes.point_box_distance(local, sides)
        else:
            apart = shapes.segment_box_distance(local, mat_vec(to_local, h), sides)
        radius = size_a[0][:, None]
    else:
        g = Vec(row[2][b][None] * size_b[1][None] for row in mat)
        near, far = shapes.segment_segment(p, h, q, g)
        apart = jnp.sqrt(dot(far - near, far - near))
        radius = size_a[0][:, None] + size_b[0][None]
    margin = grid.parameters[:, 0].reshape(len(a), len(b), 1)
    return (apart - radius - margin + grid.forbidden).reshape(len(a) * len(b), -1)


def _touch(grid: Grid, model: mujoco.MjModel, frames: Array, index: Array) -> Contact:
    """Contact points of the chosen pairs, index [N, count] into the grid; frames [N, ng, 12] of all geoms."""
    pairs = np.stack([np.repeat(grid.first, len(grid.second)), np.tile(grid.second, len(grid.first))], axis=1)
    geom, size = jnp.asarray(pairs)[index], jnp.asarray(model.geom_size, jnp.float32)
    one, other = (jax.vmap(lambda f, g: f[g])(frames, geom[..., side]) for side in (0, 1))
    size_a, size_b = (Vec(jnp.moveaxis(size[geom[..., side]], -1, 0)) for side in (0, 1))
    p, q = (Vec(jnp.moveaxis(f[..., :3], -1, 0)) for f in (one, other))
    axis_a, axis_b = (Vec(f[..., 3 + i] for i in (2, 5, 8)) for f in (one, other))
    parameters = jnp.asarray(grid.parameters)[index]

    def contact(dist: Array, point: Vec, normal: Vec, used: Array | bool = True) -> Contact:
        frame = jnp.stack([jnp.stack(v, -1) for v in (normal, *shapes.tangents(normal))], axis=-2)
        margin, friction = parameters[..., 0], parameters[..., 1:3]
        dist = jnp.where(used & jnp.isfinite(dist), dist, margin + 1.0)  # open
        return Contact(
            geom,
            dist,
            jnp.stack(point, -1),
            frame,
            margin,
            friction,
            parameters[..., 3:5],
            parameters[..., 5:10],
            parameters[..., 10],
            parameters[..., 11],
        )

    if grid.kind[1] != BOX:
        near, far = shapes.segment_segment(p, axis_a * size_a[1], q, axis_b * size_b[1])
        apart = jnp.sqrt(dot(far - near, far - near))
        normal = (far - near) * (1 / jnp.maximum(apart, shapes.TINY))
        dist = apart - size_a[0] - size_b[0]
        return contact(dist, near + normal * (size_a[0] + 0.5 * dist), normal)
    mat = Vec(Vec(other[..., 3 + 3 * i + j] for j in range(3)) for i in range(3))
    local, half = mat_vec(transpose(mat), p - q), mat_vec(transpose(mat), axis_a * size_a[1])

    def sphere(t: Array, used: Array | bool = True) -> Contact:
        dist, point, normal = shapes.sphere_box(local + half * t, size_a[0], size_b)
        return contact(dist, mat_vec(mat, point) + q, mat_vec(mat, normal), used)

    if grid.kind[0] == SPHERE:
        return sphere(jnp.zeros_like(local[0]))
    t, second, used = shapes.capsule_box_places(local, half, size_b)
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), sphere(t), sphere(second, used))
