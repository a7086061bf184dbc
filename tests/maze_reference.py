"""Mazes as the paper's code builds them, for comparison: the unedited body in C MuJoCo and one box a wall cell."""

import mujoco
import numpy as np

import envs

# First line is y = 6. Written down from the paper's description, apart from the texts in `envs.maze`.
FREE_CELLS = {
    "maze_easy": {(i, j) for i in range(7) for j in range(7) if j <= 2 or i >= 4},
    "maze_hard": {(i, j) for i in range(7) for j in range(7) if j <= 1 or j >= 5 or i >= 4},
}
EVERYTHING = 1


def is_free(task: str, xy: np.ndarray, side: float) -> np.ndarray:
    """[n] bool: is each point of xy [n, 2] in a free cell?"""
    return np.array([tuple(cell) in FREE_CELLS[task] for cell in np.floor(xy / side + 0.5).astype(int)])


def literal_maze(body: str, task: str, side: float) -> mujoco.MjModel:
    """The body among boxes of one cell each."""
    spec = envs.body_class(body).stock_spec()
    for i in range(-1, 8):
        for j in range(-1, 8):
            if (i, j) not in FREE_CELLS[task]:
                spec.worldbody.add_geom(
                    name=f"cell_{i}_{j}",
                    type=mujoco.mjtGeom.mjGEOM_BOX,
                    pos=[i * side, j * side, 1.5],
                    size=[side / 2, side / 2, 1.5],
                    contype=EVERYTHING,
                    conaffinity=EVERYTHING,
                )
    spec.option.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    return spec.compile()


def depth_in_walls(model: mujoco.MjModel, states: np.ndarray) -> np.ndarray:
    """[n] m: how deep the body sticks into the boxes in each state [n, nq]; 0 where it touches none."""
    data, depth = mujoco.MjData(model), np.zeros(len(states))
    box = np.array([model.geom(g).name.startswith("cell_") for g in range(model.ngeom)])
    for row, qpos in enumerate(states):
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        at_wall = box[data.contact.geom].any(1)
        depth[row] = max([0.0, *-data.contact.dist[at_wall]])
    return depth
