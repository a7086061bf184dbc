"""Numbers that say what skills do, from the paths of E episodes: positions [E, T+1, 2 or 3] in metres (numpy)."""

import numpy as np


def coverage(positions: np.ndarray, bin_size: float) -> int:
    """Distinct bins that the positions visit; the last position is left out, as officially.

    They are not clipped to a 140 m square as the official grid is (docs/fidelity.md).
    """
    visited = np.asarray(positions)[:, :-1].reshape(-1, positions.shape[-1])
    return len(np.unique(np.floor(visited / bin_size).astype(np.int64), axis=0))


def displacement(positions: np.ndarray) -> np.ndarray:
    """[E, 2 or 3] from the first to the last position of each episode."""
    positions = np.asarray(positions)
    return positions[:, -1] - positions[:, 0]


def mean_distance(positions: np.ndarray) -> float:
    """Metres between the first and the last position, mean over the episodes."""
    return float(np.linalg.norm(displacement(positions), axis=-1).mean())


def directness(positions: np.ndarray) -> float:
    """Net displacement over the length of the path, mean over the episodes: 1 is a straight line, 0 ends at its start.

    An episode that never moves counts as 0.
    """
    positions = np.asarray(positions, np.float64)
    path = np.linalg.norm(np.diff(positions, axis=1), axis=-1).sum(-1)
    net = np.linalg.norm(displacement(positions), axis=-1)
    return float(np.mean(np.divide(net, path, out=np.zeros_like(net), where=path > 0)))


def mean_cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Mean over the rows of a [E, d] and b [E, d] of the cosine between them; a row of length 0 counts as 0."""
    a, b = np.asarray(a), np.asarray(b)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return float(np.mean((a * b).sum(-1) / np.maximum(norms, 1e-8)))


def consistency(origin: np.ndarray, shifted: np.ndarray) -> float:
    """Mean cosine between the displacements of the same skills from two starts; 1 is the same behaviour."""
    return mean_cosine(displacement(origin), displacement(shifted))


def upright_share(quaternions: np.ndarray, least: float = 0.0) -> float:
    """Share of the root orientations [E, 4] (w, x, y, z) whose z axis has a larger cosine with the vertical."""
    w, x, y, z = np.asarray(quaternions, np.float64).T
    return float(np.mean(w * w + z * z - x * x - y * y > least))
