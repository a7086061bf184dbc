"""Where capsules and spheres touch boxes and each other: exact distances, and contact points as C MuJoCo chooses them.

A capsule is a segment p + t h, t in [-1, 1], with a radius. Boxes are at the origin of their own axes, with half sides
s. All functions are element-wise: the components of p, h and s are arrays that broadcast against each other.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from envs.physics.vectors import Vec, cross, dot

Array = jax.Array
TINY = 1e-12  # m; below it a component of a segment counts as none
TIE = 1e-6  # share by which an edge must be nearer than an end of the segment to be preferred

# The twelve edges of a box: the axis they run along [12], and signs of their places on the axes [12, 3], zero there.
_EDGE_AXIS = np.repeat(np.arange(3), 4)
_EDGE_SIGN = np.array([np.insert(pair, axis, 0) for axis in range(3) for pair in itertools.product((-1, 1), repeat=2)])


def segment_box_distance(p: Vec, h: Vec, s: Vec) -> Array:
    """Distance, m, of a segment from a box; 0 where it enters the box.

    The squared distance of p + t h is convex in t, and its slope is piecewise linear with bends where the segment
    crosses a plane of a face. The slope at all bends brackets its root between two of them, where it is a line.
    """

    def slope(t: Array) -> Array:
        at = p + h * t
        return sum(hi * (x - jnp.clip(x, -si, si)) for x, hi, si in zip(at, h, s, strict=True))

    low, high = (jnp.full(jnp.broadcast_shapes(p[0].shape, h[0].shape, s[0].shape), end) for end in (-1.0, 1.0))
    low_slope, high_slope = slope(low), slope(high)
    for axis, side in itertools.product(range(3), (-1.0, 1.0)):
        bend = jnp.clip((side * s[axis] - p[axis]) / _away_from_zero(h[axis]), -1, 1)
        at = slope(bend)
        rises = (at <= 0) & (bend > low)
        falls = (at > 0) & (bend < high)
        low, low_slope = jnp.where(rises, bend, low), jnp.where(rises, at, low_slope)
        high, high_slope = jnp.where(falls, bend, high), jnp.where(falls, at, high_slope)
    share = jnp.clip(-low_slope / jnp.maximum(high_slope - low_slope, TINY**2), 0, 1)
    t = jnp.where(low_slope > 0, low, jnp.where(high_slope < 0, high, low + share * (high - low)))
    return point_box_distance(p + h * t, s)


def point_box_distance(p: Vec, s: Vec) -> Array:
    """Distance, m, of a point from a box; 0 inside."""
    return jnp.sqrt(sum(jnp.maximum(jnp.abs(x) - si, 0) ** 2 for x, si in zip(p, s, strict=True)))


def segment_segment(p: Vec, h: Vec, q: Vec, g: Vec) -> tuple[Vec, Vec]:
    """The nearest points of two segments p + t h and q + u g."""
    between = q - p
    hh, gg, hg = dot(h, h), dot(g, g), dot(h, g)
    along_h, along_g = dot(h, between), dot(g, between)
    bent = hh * gg - hg * hg
    t = jnp.where(bent > TIE * hh * gg, (gg * along_h - hg * along_g) / jnp.maximum(bent, TINY**2), 0.0)
    t = jnp.clip(t, -1, 1)
    u = jnp.clip((hg * t - along_g) / jnp.maximum(gg, TINY**2), -1, 1)
    t = jnp.clip((hg * u + along_h) / jnp.maximum(hh, TINY**2), -1, 1)
    return p + h * t, q + g * u


def sphere_box(p: Vec, radius: Array, s: Vec) -> tuple[Array, Vec, Vec]:
    """Contact of a sphere at p: distance, point and normal towards the box, in the box's axes.

    A sphere whose centre is inside is pushed out of the nearest face.
    """
    nearest = Vec(jnp.clip(x, -si, si) for x, si in zip(p, s, strict=True))
    towards = nearest - p
    gap = jnp.sqrt(dot(towards, towards))
    depth = Vec(si - jnp.abs(x) for x, si in zip(p, s, strict=True))
    least = jnp.minimum(jnp.minimum(depth[0], depth[1]), depth[2])
    first = [depth[0] == least, (depth[1] == least) & (depth[0] != least)]
    face = Vec((*first, ~(first[0] | first[1])))
    inward = Vec(jnp.where(f, jnp.where(x > 0, -1.0, 1.0), 0.0) for f, x in zip(face, p, strict=True))
    inside = gap <= TINY
    normal = Vec(jnp.where(inside, i, x / jnp.maximum(gap, TINY)) for i, x in zip(inward, towards, strict=True))
    gap = jnp.where(inside, -least, gap)
    return gap - radius, p + normal * (0.5 * (radius + gap)), normal


def capsule_box_places(p: Vec, h: Vec, s: Vec) -> tuple[Array, Array, Array]:
    """Where a capsule lies on a box: t of the nearest point, t of a second point, and whether there is one.

    This is C MuJoCo's choice: the nearest point is an end of the segment over a face, or the point nearest to an edge;
    the second is as far along the segment as there is box below, if the segment lies flat enough.
    """
    end, face = _nearest_end(p, h, s)
    edge = _nearest_edge(p, h, s)
    at_end = end["square"] * (1 - TIE) <= edge["square"]
    over_face = _second_over_face(p, h, s, end["t"], face)
    at_corner = edge["tip"] != 0
    corner = Vec(jnp.where(e, edge["tip"], c) for e, c in zip(edge["axis"], edge["sign"], strict=True))
    over_corner = _second_at_corner(h, s, edge["t"], corner)
    over_edge = _second_at_edge(h, s, edge["t"], edge["place"], edge["axis"], corner)
    step = jnp.where(at_end, over_face[0], jnp.where(at_corner, over_corner[0], over_edge[0]))
    second = jnp.where(at_end, over_face[1], jnp.where(at_corner, over_corner[1], over_edge[1]))
    t = jnp.where(at_end, end["t"], edge["t"])
    return t, t + step, second


def _nearest_end(p: Vec, h: Vec, s: Vec) -> tuple[dict[str, Array], Vec]:
    """The end of the segment nearest to the box among those inside or over a face, and which face (by axis)."""
    found = []
    for t in (-1.0, 1.0):
        at = p + h * t
        out = Vec(jnp.abs(x) > si for x, si in zip(at, s, strict=True))
        square = sum(jnp.maximum(jnp.abs(x) - si, 0) ** 2 for x, si in zip(at, s, strict=True))
        count = sum(o.astype(jnp.int32) for o in out)
        found.append((jnp.where(count > 1, jnp.inf, square), out))
    (low, low_out), (high, high_out) = found
    second = high < low
    face = Vec(jnp.where(second, b, a) for a, b in zip(low_out, high_out, strict=True))
    return {"t": jnp.where(second, 1.0, -1.0), "square": jnp.minimum(low, high)}, face


def _nearest_edge(p: Vec, h: Vec, s: Vec) -> dict:
    """The edge nearest to the segment: squared distance, t on the segment, place on the edge in [-1, 1], axis, signs.

    `tip` is the sign of the corner that the search was stopped by, or 0; C takes that for the nearest corner even where
    the place then moved back into the edge.
    """
    shape = jnp.broadcast_shapes(p[0].shape, h[0].shape, s[0].shape)
    p, h, s = (Vec(jnp.broadcast_to(c, shape) for c in v) for v in (p, h, s))
    column = (12,) + (1,) * len(shape)
    sign = Vec(_EDGE_SIGN[:, i].astype(np.float32).reshape(column) for i in range(3))
    on = Vec(np.equal(_EDGE_AXIS, i).reshape(column) for i in range(3))
    between = Vec(c * si - pi for c, si, pi in zip(sign, s, p, strict=True))
    half, h_along, off = (sum(jnp.where(o, c, 0.0) for o, c in zip(on, v, strict=True)) for v in (s, h, between))
    hh, ss, sh = dot(h, h), half * half, -half * h_along
    u, v = -half * off, dot(h, between)
    bent = jnp.maximum(ss * hh - sh * sh, TINY**2)
    place, t = (hh * u - sh * v) / bent, (ss * v - sh * u) / bent
    tip = jnp.where(jnp.abs(place) > 1, jnp.sign(place), 0.0)
    place = jnp.clip(place, -1, 1)
    t = jnp.where(tip == 0, t, (v - sh * place) / hh)
    again = (u - sh * jnp.clip(t, -1, 1)) / ss
    tip = jnp.where((jnp.abs(t) > 1) & (jnp.abs(again) > 1), jnp.sign(again), tip)
    place, t = jnp.where(jnp.abs(t) > 1, jnp.clip(again, -1, 1), place), jnp.clip(t, -1, 1)
    apart = Vec(b - hi * t + jnp.where(o, half * place, 0.0) for b, hi, o in zip(between, h, on, strict=True))
    square = dot(apart, apart)
    best = jnp.argmin(square, axis=0)
    chosen = best[None] == np.arange(12).reshape(column)

    def pick(x: Array) -> Array:
        return jnp.sum(jnp.where(chosen, x, 0.0), axis=0)

    return {
        "square": jnp.min(square, axis=0),
        "t": pick(t),
        "place": pick(place),
        "tip": pick(tip),
        "axis": Vec(jnp.any(chosen & o, axis=0) for o in on),
        "sign": Vec(pick(c) for c in sign),
    }


def _second_over_face(p: Vec, h: Vec, s: Vec, end: Array, face: Vec) -> tuple[Array, Array]:
    """From an end over a face, up to where the segment leaves the face's rectangle or ends."""
    way = -end
    room = 2.0
    for x, hi, si, f in zip(p + h * end, h, s, face, strict=True):
        for side in (-1.0, 1.0):
            reach = (side * si - x) / _away_from_zero(hi) * way
            room = jnp.where(~f & (reach > 0), jnp.minimum(room, reach), room)
    return way * room, face[0] | face[1] | face[2]


def _second_at_corner(h: Vec, s: Vec, t: Array, corner: Vec) -> tuple[Array, Array]:
    """From a corner along an edge or a face: one axis must point the other way than the two others."""
    inward = [(hi > 0) != (c > 0) for hi, c in zip(h, corner, strict=True)]
    count = sum(i.astype(jnp.int32) for i in inward)
    way = jnp.where(count == 1, 1.0, -1.0)
    odd = [jnp.where(count == 1, i, ~i) for i in inward]
    width = [2 * si / jnp.maximum(jnp.abs(hi), TINY) for si, hi in zip(s, h, strict=True)]
    odd_width = sum(jnp.where(o, w, 0.0) for o, w in zip(odd, width, strict=True))
    other_width = jnp.inf
    for o, w in zip(odd, width, strict=True):
        other_width = jnp.minimum(other_width, jnp.where(o, jnp.inf, w))
    steep = sum(jnp.where(o, hi * hi, 0.0) for o, hi in zip(odd, h, strict=True)) > 0.5 * dot(h, h)
    on_edge = way * jnp.minimum(1 - way * t, odd_width)
    on_face = -way * jnp.minimum(1 + way * t, other_width)
    return jnp.where(steep, on_edge, on_face), (count == 1) | (count == 2)


def _second_at_edge(h: Vec, s: Vec, t: Array, place: Array, axis: Vec, corner: Vec) -> tuple[Array, Array]:
    """From the middle of an edge over the face that the segment is flatter to."""
    inward = Vec(((hi > 0) != (c > 0)) & ~a for hi, c, a in zip(h, corner, axis, strict=True))
    count = sum(i.astype(jnp.int32) for i in inward)
    length = Vec(jnp.where(a, -1.0, jnp.abs(hi)) for a, hi in zip(axis, h, strict=True))
    longest = jnp.maximum(jnp.maximum(length[0], length[1]), length[2])
    across, taken = [], jnp.zeros_like(count, bool)
    for x in length:
        across.append((x == longest) & ~taken)
        taken = taken | across[-1]
    enters = sum((a & i).astype(jnp.int32) for a, i in zip(across, inward, strict=True)) > 0
    way = jnp.where(enters, 1.0, -1.0)

    def of(which, v: Vec) -> Array:
        return sum(jnp.where(w, x, 0.0) for w, x in zip(which, v, strict=True))

    h_along = of(axis, h)
    ahead = 1 - jnp.where((h_along > 0) == enters, place, -place)
    room = jnp.minimum(1 - way * t, 2 * of(across, s) / jnp.maximum(longest, TINY))
    room = jnp.minimum(room, of(axis, s) * ahead / jnp.maximum(jnp.abs(h_along), TINY))
    return way * room, count == 1


def tangents(normal: Vec) -> tuple[Vec, Vec]:
    """The two directions across a contact normal that C MuJoCo gives its friction pyramid."""
    flat = jnp.abs(normal[1]) < 0.5
    start = Vec((jnp.zeros_like(normal[0]), jnp.where(flat, 1.0, 0.0), jnp.where(flat, 0.0, 1.0)))
    across = start - normal * dot(start, normal)
    across = across * (1 / jnp.sqrt(dot(across, across)))
    return across, cross(normal, across)


def _away_from_zero(x: Array) -> Array:
    return jnp.where(jnp.abs(x) < TINY, TINY, x)
