"""Distances and contacts of capsules and boxes against C MuJoCo, over random poses."""

import functools

import jax
import mujoco
import numpy as np

from envs.physics import shapes
from envs.physics.vectors import Vec

POSES = 3000
XML = """<mujoco><worldbody><geom name="box" type="box" size="1 1 1" margin="9"/>
<body><freejoint/><geom name="capsule" type="capsule" size=".1 .1" margin="9"/></body></worldbody></mujoco>"""


@functools.cache
def poses() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
    """Places, half axes, radii of capsules in a box's axes, the box's half sides, and C's contacts of each pose.

    Rows of a contact: distance, point, normal. A third of the capsules lie almost along the box's axes.
    """
    model, rng = mujoco.MjModel.from_xml_string(XML), np.random.default_rng(0)
    data, rows = mujoco.MjData(model), []
    model.geom_rbound[:], model.geom_aabb[:, 3:], model.bvh_aabb[:, 3:] = 9, 9, 9
    for index in range(POSES):
        sides = np.exp(rng.uniform(np.log(0.02), np.log(0.5), 3))
        radius, half = rng.uniform(0.005, 0.05), np.exp(rng.uniform(np.log(0.009), np.log(0.3)))
        quat = rng.standard_normal(4) if index % 3 else [1, 0, 0, 0] + 0.02 * rng.standard_normal(4)
        place, axis = rng.uniform(-1, 1, 3) * sides, rng.integers(3)
        place[axis] = rng.choice([-1, 1]) * (sides[axis] + rng.uniform(0, half + radius))
        model.geom_size[:] = [sides, [radius, half, 0]]
        data.qpos[:] = [*place, *quat / np.linalg.norm(quat)]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        contacts = np.array([[c.dist, *c.pos, *c.frame[:3]] for c in data.contact])
        rows.append((place, data.geom_xmat[1].reshape(3, 3)[:, 2] * half, radius, sides, contacts))
    *columns, contacts = zip(*rows, strict=True)
    return *(np.array(column, np.float32) for column in columns), list(contacts)


def components(x: np.ndarray) -> Vec:
    return Vec(x.T)


def rows_of(contact) -> np.ndarray:
    """[poses, 7] distance, point, normal."""
    dist, point, normal = contact
    return np.stack([dist, *point, *normal], axis=1)


def test_capsules_touch_boxes_where_they_do_in_c():
    """Both contacts of a pair, or the only one, in every pose."""
    place, half, radius, sides, expected = poses()
    p, h, s = components(place), components(half), components(sides)
    t, second, used = jax.jit(lambda: shapes.capsule_box_places(p, h, s))()
    near, far = (rows_of(shapes.sphere_box(p + h * at, radius, s)) for at in (t, second))
    errors = []
    for index, contacts in enumerate(expected):
        found = np.stack([near[index], far[index]][: 1 + bool(used[index])])
        assert len(found) == len(contacts), index
        errors.append(min(np.abs(found - order).max() for order in (contacts, contacts[::-1])))
    assert 0.3 < np.mean(used) < 0.95
    assert np.quantile(errors, 0.99) < 1e-5
    assert np.quantile(errors, 0.999) < 1e-3  # normals of spheres whose centre all but touches the box are the rest


def test_distance_to_a_box_is_that_of_the_nearest_of_many_points():
    """mj_geomDistance is no reference here: it is wrong for some capsules that touch."""
    place, half, _, sides, _ = poses()
    found = jax.jit(lambda: shapes.segment_box_distance(components(place), components(half), components(sides)))()
    t = np.linspace(-1, 1, 2001)[:, None, None]
    out = np.maximum(np.abs(place[:300] + t * half[:300]) - sides[:300], 0)
    np.testing.assert_allclose(found[:300], np.linalg.norm(out, axis=-1).min(0), atol=2e-4)


def test_distance_to_a_box_is_that_of_its_contact():
    place, half, radius, sides, expected = poses()
    found = jax.jit(lambda: shapes.segment_box_distance(components(place), components(half), components(sides)))()
    least = np.array([contacts[:, 0].min() for contacts in expected])
    apart = np.asarray(found) > 1e-6  # a segment that enters the box has distance 0, but not always a deep contact in C
    assert apart.mean() > 0.5
    np.testing.assert_allclose(np.asarray(found)[apart], (least + radius)[apart], atol=2e-6)


def test_nearest_points_of_segments():
    """Against many points on both, with points and parallels among them."""
    rng = np.random.default_rng(1)
    p, q, h, g = rng.standard_normal((4, 60, 3)).astype(np.float32)
    g[:10], h[:10] = h[:10], 2 * h[:10]  # parallel
    h[10:20] = 0  # a sphere
    near, far = jax.jit(lambda *x: tuple(map(tuple, shapes.segment_segment(*map(components, x)))))(p, h, q, g)
    found = np.linalg.norm(np.stack(far) - np.stack(near), axis=0)
    t = np.linspace(-1, 1, 401)[:, None, None]
    expected = [
        np.linalg.norm((pi + t * hi) - (qi + t[:, 0] * gi), axis=-1).min()
        for pi, hi, qi, gi in zip(p, h, q, g, strict=True)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-2)
