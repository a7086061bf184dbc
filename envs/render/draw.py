"""A picture from poses: rays once for every copy, light for what each ray meets first."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import custom_batching

from envs.render import rays, shading
from envs.render.rays import FAR, Shapes
from envs.render.scene import Scene
from envs.render.shading import Lamp

Array = jax.Array
PART = 24_000  # rays that a CPU follows at a time: their arrays stay in its cache
CLEAR = 1e-3  # share of its way by which light must be stopped before a point for the point to lie in shadow


def draw(scene: Scene, xpos: Array, xmat: Array, com: Array) -> Array:
    """uint8 [H, W, 3] of one copy: positions [nbody, 3] and rotations [nbody, 3, 3] of bodies, centre of mass [3].

    Under `vmap`, once or more, all copies are drawn by one program: on a CPU, a few of them at a time.
    """
    return _of_one_copy(lambda *poses: _pictures(scene, *poses))(xpos, xmat, com)


def _of_one_copy(pictures: Callable) -> Callable:
    """Makes a function of n copies (first axis) one of a single copy, to which vmap hands all at once."""

    @custom_batching.custom_vmap
    def many(*poses):
        return pictures(*poses)

    @many.def_vmap
    def more(size, batched, *poses):
        whole = [p if b else jnp.broadcast_to(p, (size, *p.shape)) for p, b in zip(poses, batched, strict=True)]
        out = many(*(p.reshape(-1, *p.shape[2:]) for p in whole))
        return out.reshape(size, -1, *out.shape[1:]), True

    return lambda *poses: many(*(p[None] for p in poses))[0]


def _pictures(scene: Scene, xpos: Array, xmat: Array, com: Array) -> Array:
    """uint8 [n, H, W, 3] of n copies."""
    poses = tuple(x.astype(jnp.float32) for x in (xpos, xmat, com))
    rows, columns = scene.window
    at_once = max(1, round(PART / ((rows.stop - rows.start) * (columns.stop - columns.start) or 1)))

    def layers(*poses: Array) -> tuple[Array, Array]:
        return _layers(scene, *poses)

    def parts(*poses: Array) -> tuple[Array, Array]:
        one_copy = lambda one: jax.tree.map(lambda x: x[0], layers(*(p[None] for p in one)))  # noqa: E731
        return jax.lax.map(one_copy, poses, batch_size=at_once)

    # The platform is known when the program is lowered, not when it is traced.
    whole = len(com) <= at_once
    ground, body = layers(*poses) if whole else jax.lax.platform_dependent(*poses, cpu=parts, default=layers)
    below = ground[:, rows, columns]
    packed = ground.at[:, rows, columns].set(jnp.where(body < 0, below, body))
    channels = jnp.stack([(packed >> shift) & 255 for shift in (16, 8, 0)], -1)
    if scene.subsamples == 1:
        return channels.astype(jnp.uint8)
    k, (height, width) = scene.subsamples, scene.size
    total = channels.reshape(-1, height, k, width, k, 3).sum((2, 4))
    return ((total + k * k // 2) // (k * k)).astype(jnp.uint8)


def _layers(scene: Scene, xpos: Array, xmat: Array, com: Array) -> tuple[Array, Array]:
    """Floor and sky [n, h, w], and the body in its window [n, rows, columns], -1 where it is not to be seen.

    One ray a pixel, with red, green and blue in one int32: XLA computes what several arrays share once for each of
    them; in one array it is computed once. For the same reason the layers are joined outside of the loop over parts:
    inside of it a CPU takes twice as long.
    """
    com = com if scene.camera.follows else jnp.zeros_like(com)
    pos = xpos - com[:, None]
    on = [True if lamp.cover is None else pos[:, lamp.cover[0], 2, None] >= lamp.cover[1] for lamp in scene.lamps]
    view = View(scene, _shapes(scene, pos, xmat), [_lamp_at(scene, lamp, pos) for lamp in scene.lamps], on)
    ground, floor_depth = _floor(view, com) if scene.backdrop is None else _backdrop(view, len(com))
    rows, columns = scene.window
    d = tuple(scene.rays[:, rows, columns].reshape(3, 1, -1))
    depth, index = rays.nearest(view.kinds, d, len(com))
    behind = floor_depth[:, rows, columns]
    front = (depth < behind.reshape(depth.shape)) & (depth < FAR / 2)
    return ground, jnp.where(front, _pack(_lit(view, depth, index, d)), -1).reshape(behind.shape)


def silhouette(scene: Scene, xpos: Array, xmat: Array, com: Array) -> Array:
    """bool [h, w]: where a ray of one copy meets a shape before the floor."""
    pos = xpos - com if scene.camera.follows else xpos
    view = View(scene, _shapes(scene, pos[None], xmat[None]), [], [])
    d = scene.rays.reshape(3, 1, -1)
    depth, _ = rays.nearest(view.kinds, tuple(d), 1)
    if scene.backdrop is not None:
        return depth.reshape(scene.rays.shape[1:]) < np.minimum(scene.backdrop.depth, FAR / 2)
    height = com[2] + scene.camera.offset[2] - scene.floor.height
    down = -np.einsum("j,jkp->kp", scene.camera.turn[2].astype(np.float32), d)
    floor_depth = jnp.where((down > 0) & (height > 0), height / np.maximum(down, 1e-6), FAR)
    return (depth < jnp.minimum(floor_depth, FAR / 2)).reshape(scene.rays.shape[1:])


def _pack(color: tuple) -> Array:
    red, green, blue = (jnp.round(jnp.clip(c, 0, 1) * 255).astype(jnp.int32) for c in color)
    return (red << 16) | (green << 8) | blue


@dataclasses.dataclass(frozen=True)
class View:
    """A scene as an eye sees it, n copies of it: the eye is the origin, axes are the camera's."""

    scene: Scene
    shapes: Shapes  # of all kinds in order, [S, n]
    lamps: list[tuple]  # positions of the scene's lamps, components [n or 1, 1]
    on: list[Array | bool]  # which of them shine [n, 1]

    @property
    def kinds(self) -> dict[str, Shapes]:
        """The shapes of each kind."""
        rows = self.scene.rows
        return {kind: {name: c[rows[kind]] for name, c in self.shapes.items()} for kind in rows}

    def moved(self, by: tuple) -> "View":
        """The same with everything moved by a vector of components [n, 1]."""
        shapes = self.shapes | {c: self.shapes[c] + b[:, 0] for c, b in zip("xyz", by, strict=True)}
        lamps = [tuple(a + b for a, b in zip(at, by, strict=True)) for at in self.lamps]
        return View(self.scene, shapes, lamps, self.on)


def _shapes(scene: Scene, pos: Array, mat: Array) -> Shapes:
    """All shapes in camera axes, from positions [n, nb, 3] relative to the centre of mass and rotations of bodies."""
    turn, offset, copies = scene.camera.turn.astype(np.float32), scene.camera.offset.astype(np.float32), len(pos)
    body = scene.joined("body")
    with jax.default_matmul_precision("highest"):
        frame = jnp.einsum("ji,nbjk->nbik", turn, mat)[:, body]
        centre = jnp.einsum("ji,nbj->nbi", turn, pos - offset)[:, body]
    centre = centre + (frame * scene.joined("pos")[:, None]).sum(-1)
    axes = (frame[..., None] * scene.joined("turn")[:, None]).sum(-2)
    found = {c: centre[..., i].T for i, c in enumerate("xyz")}
    found |= {c + a: axes[..., i, j].T for i, c in enumerate("xyz") for j, a in enumerate("xyz")}
    size = scene.joined("size")
    return found | {c: jnp.broadcast_to(size[:, i, None], (len(body), copies)) for i, c in enumerate("abc")}


def _lamp_at(scene: Scene, lamp: Lamp, pos: Array) -> tuple:
    """Position of a lamp, components [n or 1, 1], camera axes."""
    turn = scene.camera.turn
    at = (turn.T @ (lamp.offset - scene.camera.offset)).astype(np.float32)[None]
    if lamp.body is not None:
        at = at + jnp.einsum("ji,nj->ni", turn.astype(np.float32), pos[:, lamp.body], precision="highest")
    return tuple(at[:, i, None] for i in range(3))


def _light(view: View, point: tuple, normal: tuple, to_eye: np.ndarray, textured: bool = False) -> tuple[Array, Array]:
    """Strengths of diffuse and specular light at points [n, P] with unit normals; to_eye [3, 1, P] is constant.

    OpenGL cuts the light of each pass at 1 before a texture colours it; without one the colour itself is cut.
    """
    diffuse, shine = shading.head_light(view.scene.head, normal, to_eye)
    diffuse = jnp.minimum(diffuse, 1) if textured else diffuse
    for lamp, at, on in zip(view.scene.lamps, view.lamps, view.on, strict=True):
        axis = (view.scene.camera.turn.T @ lamp.direction).astype(np.float32)
        to_lamp = tuple(-axis) if lamp.directional else tuple(a - p for a, p in zip(at, point, strict=True))
        more, more_shine = shading.spot_light(lamp, to_lamp, axis, normal, to_eye)
        if lamp.cover is not None:
            more, more_shine = jnp.where(on, more, 0), jnp.where(on, more_shine, 0)
        if view.scene.shadow:
            dark = _in_shadow(view, at, to_lamp)
            more, more_shine = jnp.where(dark, 0, more), jnp.where(dark, 0, more_shine)
        diffuse, shine = diffuse + more, shine + more_shine
    return diffuse, shine


def _in_shadow(view: View, at: tuple, to_lamp: tuple) -> Array:
    """Where [n, P] a shape stands between the lamp and a point: rays from the lamp, which reach the point at t = 1."""
    copies = len(to_lamp[0])
    from_lamp = view.moved(tuple(jnp.broadcast_to(-a, (copies, 1)) for a in at))
    depth, _ = rays.nearest(from_lamp.kinds, tuple(-c for c in to_lamp), copies)
    return depth < 1 - CLEAR


def _lit(view: View, depth: Array, index: Array, d: tuple) -> tuple:
    """Red, green, blue [n, P] of the shapes that the rays meet."""
    moving = [name for name in view.shapes if name not in "abc"]
    table = jnp.stack([view.shapes[name].T for name in moving], -1)  # [n, S, 12]
    one = dict(zip(moving, jnp.moveaxis(jnp.take_along_axis(table, index[..., None], 1), -1, 0), strict=True))
    fixed = np.concatenate([view.scene.joined("size"), view.scene.joined("surface")], -1)
    a, b, c, red, green, blue, specular = jnp.moveaxis(jnp.asarray(fixed)[index], -1, 0)
    one |= {"a": a, "b": b, "c": c}
    point = tuple(depth * c for c in d)
    normal = _normal(view.scene, one, point, index)
    diffuse, shine = _light(view, point, normal, -shading.unit(np.stack(d)))
    return tuple(c * diffuse + specular * shine for c in (red, green, blue))


def _normal(scene: Scene, one: Shapes, point: tuple, index: Array) -> tuple:
    """Unit normal at a point of a shape, camera axes."""
    away = tuple(p - one[c] for p, c in zip(point, "xyz", strict=True))
    axes = [rays.axis(one, name) for name in "xyz"]
    local = [a[0] * away[0] + a[1] * away[1] + a[2] * away[2] for a in axes]

    def is_kind(kind: str) -> Array:
        return (index >= scene.rows[kind].start) & (index < scene.rows[kind].stop)

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


def _floor(view: View, com: Array) -> tuple[Array, Array]:
    """Packed colours [n, h, w] of floor and sky, and the floor's depth, FAR where there is none."""
    scene, floor = view.scene, view.scene.floor
    turn, d = scene.camera.turn.astype(np.float32), scene.rays.reshape(3, 1, -1)
    world = np.einsum("ij,jkp->ikp", turn, d)
    eye = (com + scene.camera.offset.astype(np.float32)).T[..., None]  # [3, n, 1]
    above = eye[2] - floor.height
    depth = above / np.maximum(-world[2], 1e-6)
    x, y = eye[0] + depth * world[0], eye[1] + depth * world[1]
    seen = (world[2] < 0) & (above > 0) & (jnp.abs(x) < floor.edge) & (jnp.abs(y) < floor.edge)
    normal = tuple(turn[2])
    diffuse, shine = _light(view, tuple(depth * c for c in d), normal, -shading.unit(d), textured=True)
    light = diffuse + floor.specular * shine  # the texture colours both
    colors = [c * light for c in floor.color(x, y, floor.size)]
    if scene.mirror:
        shown = _mirrored(view, above, depth, d)
        colors = [c + floor.reflectance * m for c, m in zip(colors, shown, strict=True)]
    sky = scene.sky.reshape(3, 1, -1)
    packed = _pack(tuple(jnp.where(seen, c, s) for c, s in zip(colors, sky, strict=True)))
    full = (len(com), *scene.rays.shape[1:])
    return packed.reshape(full), jnp.where(seen, depth, FAR).reshape(full)


def _backdrop(view: View, copies: int) -> tuple[Array, Array]:
    """Packed colours [n, h, w] of a room and its depth, with its covered lamps as they are in each copy."""
    backdrop = view.scene.backdrop
    colors = jnp.broadcast_to(backdrop.off, (copies, *backdrop.off.shape))
    for lamp, on in zip(view.scene.lamps, view.on, strict=True):
        if lamp.cover is not None:
            colors = jnp.where(on[..., None], backdrop.on, colors)
    return colors, jnp.broadcast_to(np.minimum(backdrop.depth, FAR), colors.shape)


def _mirrored(view: View, above: Array, floor_depth: Array, d: np.ndarray) -> list[Array]:
    """Red, green, blue [n, P] of what the floor reflects: seen by an eye as far below the floor, along flipped rays."""
    normal = view.scene.camera.turn[2].astype(np.float32)
    below = view.moved(tuple(2 * above * n for n in normal))
    flipped = d - 2 * np.einsum("i,ikp->kp", normal, d) * normal[:, None, None]
    depth, index = rays.nearest(below.kinds, tuple(flipped), len(above))
    hit = (depth > floor_depth) & (depth < FAR / 2)
    return [jnp.where(hit, c, 0) for c in _lit(below, depth, index, tuple(flipped))]
