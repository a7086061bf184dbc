"""Vectors, quaternions and rotation matrices of many rows and many copies, kept as separate components."""

import jax.numpy as jnp
import numpy as np


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
    """Cross product of 3-vectors."""
    return Vec((a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]))


def dot(a: Vec, b: Vec):
    """Scalar product of 3-vectors."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def rotate(vec: Vec, quat: Vec) -> Vec:
    """Rotates a 3-vector by a unit quaternion."""
    t = cross(quat[1:], vec) * 2
    return cross(quat[1:], t) + t * quat[0] + vec


def quat_mul(p: Vec, q: Vec) -> Vec:
    """Hamilton product of two quaternions: the rotation q followed by p."""
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
    """Product of a 3 x 3 matrix and a 3-vector."""
    return Vec(row[0] * vec[0] + row[1] * vec[1] + row[2] * vec[2] for row in mat)


def transpose(mat: Vec) -> Vec:
    """Transpose of a 3 x 3 matrix; of a rotation, its inverse."""
    return Vec(Vec(row[i] for row in mat) for i in range(3))


def mat_mul(a: Vec, b: Vec) -> Vec:
    """Product of two 3 x 3 matrices."""
    return transpose(Vec(mat_vec(a, column) for column in transpose(b)))


def constant(x) -> np.ndarray:
    """A float32 constant with a trailing axis for the copies."""
    return np.asarray(x, np.float32)[..., None]


def one_hot(rows: np.ndarray, size: int) -> np.ndarray:
    """[size, len(rows)] with a one in each column: `x.through` it picks those rows."""
    return np.eye(size, dtype=np.float32)[:, rows]
