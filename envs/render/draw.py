"""A picture from poses: rays once for every copy, light for what each ray meets first."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import custom_batching

from envs.render import rays, shading
from envs.render.rays import FAR, Shapes
from envs.render.scene import Scene
from envs.render.shading import Lamp

Array = jax.Array
PART = 8  # copies that a CPU draws at a time: their arrays stay in its cache
CLEAR = 1e-3  # m, by which a shadow's cause must be nearer to the lamp than the point it falls on


def draw(scene: Scene, xpos: Array, xmat: Array, com: Array) -> Array:
    """uint8 [H, W, 3] of one copy: positions [nbody, 3] and rotations [nbody, 3, 3] of bodies, centre of mass [3].

    Under `vmap`, once or more, all copies are drawn by one program: on a CPU, PART of them at a time.
    """
    return _of_one_copy(lambda *poses: _pictures(scene, *poses))(xpos, xmat, com)


def _of_one_copy(pictures):
    """Makes a function of n copies (first axis) one of a single copy, to which vmap hands all at once."""

    @custom_batching.custom_vmap
    def many(*poses):
        return _in_parts_on_a_cpu(pictures, *poses)

    @many.def_vmap
    def more(size, batched, *poses):
        whole = [p if b else jnp.broadcast_to(p, (size, *p.shape)) for p, b in zip(poses, batched, strict=True)]
        out = many(*(p.reshape(-1, *p.shape[2:]) for p in whole))
        return out.reshape(size, -1, *out.shape[1:]), True

    return lambda *poses: many(*(p[None] for p in poses))[0]


def _in_parts_on_a_cpu(pictures, *poses):
    """pictures(*poses) of n copies, PART after PART where that is faster. The platform is known at lowering only."""
    count = len(poses[0])
    if count <= PART:
        return pictures(*poses)

    def parts(*poses):
        return jax.lax.map(lambda one: pictures(*(p[None] for p in one))[0], poses, batch_size=PART)

    return jax.lax.platform_dependent(*poses, cpu=parts, default=pictures)


def _pictures(scene: Scene, xpos: Array, xmat: Array, com: Array) -> Array:
    """uint8 [n, H, W, 3]."""
    xpos, xmat, com = (x.astype(jnp.float32) for x in (xpos, xmat, com))
    kinds = _shapes(scene, xpos - com[:, None], xmat)
    ground, depth_floor = _floor(scene, com, xpos)
    rows, columns = scene.window
    inside = scene.rays[:, rows, columns].reshape(3, 1, -1)
    depth, index = rays.nearest(kinds, tuple(inside), len(com))
    lit = _lit(scene, kinds, depth, index, tuple(inside), xpos - com[:, None])
    shape = (len(com), rows.stop - rows.start, columns.stop - columns.start)
    front = (depth < depth_floor[:, rows, columns].reshape(depth.shape)) & (depth < FAR / 2)
    channels = []
    for below, above in zip(ground, lit, strict=True):
        merged = jnp.where(front, above, below[:, rows, columns].reshape(depth.shape))
        channels.append(below.at[:, rows, columns].set(merged.reshape(shape)))
    picture = jnp.stack(channels, -1)
    if scene.subsamples > 1:
        k, (height, width) = scene.subsamples, scene.size
        picture = picture.reshape(-1, height, k, width, k, 3).mean((2, 4))
    return jnp.round(jnp.clip(picture, 0, 1) * 255).astype(jnp.uint8)


def _shapes(scene: Scene, pos: Array, mat: Array) -> dict[str, Shapes]:
    """Shapes of each kind in camera axes, from body positions relative to the centre of mass."""
    kinds, turn = {}, scene.camera.turn.astype(np.float32)
    with jax.default_matmul_precision("highest"):
        for name, part in scene.parts.items():
            frame = jnp.einsum("ji,nsjk->nsik", turn, mat[:, part.body])
            centre = pos[:, part.body] - scene.camera.offset.astype(np.float32)
            centre = jnp.einsum("ji,nsj->nsi", turn, centre) + jnp.einsum("nsij,sj->nsi", frame, part.pos)
            axes = jnp.einsum("nsij,sjk->snik", frame, part.turn)
            found = {c: centre[..., i].T for i, c in enumerate("xyz")}
            found |= {c + a: axes[..., i, j] for i, c in enumerate("xyz") for j, a in enumerate("xyz")}
            found |= {c: jnp.broadcast_to(part.size[:, i, None], axes.shape[:2]) for i, c in enumerate("abc")}
            kinds[name] = found
    return kinds


def _lamp_in_camera(scene: Scene, lamp: Lamp, pos: Array) -> tuple[list[Array], np.ndarray]:
    """Position of a lamp [n or 1, 1] and its axis, camera axes."""
    turn = scene.camera.turn
    offset = (turn.T @ (lamp.offset - scene.camera.offset)).astype(np.float32)
    at = np.broadcast_to(offset, (1, 3))
    if lamp.body is not None:
        at = at + jnp.einsum("ji,nj->ni", turn.astype(np.float32), pos[:, lamp.body], precision="highest")
    return [at[:, i, None] for i in range(3)], (turn.T @ lamp.direction).astype(np.float32)


def _lit(scene: Scene, kinds: dict[str, Shapes], depth: Array, index: Array, d: tuple, pos: Array) -> tuple:
    """Red, green, blue [n, P] of the shapes that the rays meet."""
    table = jnp.concatenate([jnp.stack(list(shapes.values()), -1) for shapes in kinds.values()])  # [S, n, 15]
    names = list(next(iter(kinds.values())))
    found = jnp.take_along_axis(jnp.moveaxis(table, 1, 0), index[..., None], 1)
    one = {name: found[..., i] for i, name in enumerate(names)}
    surfaces = np.concatenate([part.surface for part in scene.parts.values()])
    red, green, blue, specular, shininess = jnp.moveaxis(jnp.asarray(surfaces)[index], -1, 0)
    point = tuple(depth * c for c in d)
    normal = _normal(scene, one, point, index)
    view = shading.normalized(tuple(-c for c in d))
    diffuse, shine = shading.head_light(scene.head, normal, view, shininess)
    for lamp in scene.lamps:
        at, axis = _lamp_in_camera(scene, lamp, pos)
        to_lamp = tuple(a - p for a, p in zip(at, point, strict=True))
        more, more_shine = shading.spot_light(lamp, to_lamp, axis, normal, view, shininess)
        diffuse, shine = diffuse + more, shine + more_shine
    return tuple(c * diffuse + specular * shine for c in (red, green, blue))


def _normal(scene: Scene, one: Shapes, point: tuple, index: Array) -> tuple:
    """Unit normal at a point of a shape, camera axes."""
    away = tuple(p - one[c] for p, c in zip(point, "xyz", strict=True))
    axes = [rays.axis(one, name) for name in "xyz"]
    local = [a[0] * away[0] + a[1] * away[1] + a[2] * away[2] for a in axes]
    sizes = [len(part.body) for part in scene.parts.values()]
    first = dict(zip(scene.parts, np.cumsum([0, *sizes]), strict=False))

    def is_kind(kind: str) -> Array:
        return (index >= first[kind]) & (index < first[kind] + len(scene.parts[kind].body))

    out = list(local)
    long = [is_kind(kind) for kind in ("capsule", "cylinder") if kind in scene.parts]
    if long:
        stretch = sum(long[1:], start=long[0])
        out[2] = jnp.where(stretch, local[2] - jnp.clip(local[2], -one["c"], one["c"]), out[2])
    if "ellipsoid" in scene.parts:
        out = [jnp.where(is_kind("ellipsoid"), v / one[s] ** 2, o) for v, s, o in zip(local, "abc", out, strict=True)]
    if "cylinder" in scene.parts:
        lid = is_kind("cylinder") & (jnp.abs(local[2]) > one["c"] * (1 - 1e-3))
        flat = (0.0, 0.0, jnp.sign(local[2]))
        out = [jnp.where(lid, f, o) for f, o in zip(flat, out, strict=True)]
    if "box" in scene.parts:
        share = [jnp.abs(v) / one[s] for v, s in zip(local, "abc", strict=True)]
        largest = jnp.maximum(jnp.maximum(share[0], share[1]), share[2])
        flat = [jnp.where(s >= largest, jnp.sign(v), 0) for s, v in zip(share, local, strict=True)]
        out = [jnp.where(is_kind("box"), f, o) for f, o in zip(flat, out, strict=True)]
    turned = tuple(sum(a[i] * v for a, v in zip(axes, out, strict=True)) for i in range(3))
    return shading.normalized(turned)


def _floor(scene: Scene, com: Array, xpos: Array) -> tuple[tuple, Array]:
    """Red, green, blue [n, h, w] of floor and sky, and the floor's depth, FAR where there is none."""
    turn, floor = scene.camera.turn.astype(np.float32), scene.floor
    world = np.einsum("ij,jhw->ihw", turn, scene.rays)
    eye = com + scene.camera.offset.astype(np.float32)
    eye = [eye[:, i, None, None] for i in range(3)]
    above = eye[2] - floor.height
    depth = above / np.maximum(-world[2], 1e-6)
    x, y = eye[0] + depth * world[0], eye[1] + depth * world[1]
    seen = (world[2] < 0) & (above > 0) & (jnp.abs(x) < floor.size) & (jnp.abs(y) < floor.size)
    normal = tuple(turn[2])
    view = tuple(-scene.rays / np.linalg.norm(scene.rays, axis=0))
    diffuse, shine = shading.head_light(scene.head, tuple(np.float32(n) for n in normal), view, floor.shininess)
    point = tuple(depth * c for c in scene.rays)
    for lamp in scene.lamps:
        at, axis = _lamp_in_camera(scene, lamp, xpos - com[:, None])
        to_lamp = tuple(a[..., None] - p for a, p in zip(at, point, strict=True))
        more, more_shine = shading.spot_light(lamp, to_lamp, axis, normal, view, floor.shininess)
        diffuse, shine = diffuse + more, shine + more_shine
    colors = floor.color(x, y, floor.size)
    lit = (jnp.where(seen, c * (diffuse + floor.specular * shine), s) for c, s in zip(colors, scene.sky, strict=True))
    return tuple(lit), jnp.where(seen, depth, FAR)
