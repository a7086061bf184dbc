"""The kitchen in C MuJoCo under LEXA's control, stock or reduced: what ours is compared with."""

import mujoco
import numpy as np

from envs import kitchen, kitchen_model

PHYSICS_STEPS = 40  # in an agent step


class KitchenInC:
    """One kitchen of a model with the stock joints, with MuJoCo's own solver settings."""

    def __init__(self, model: mujoco.MjModel, nudge: float = 0.0):
        """nudge: m and rad by which all coordinates of the start are moved."""
        self.model, self.nudge = model, nudge
        self.model.opt.iterations, self.model.opt.ls_iterations = 100, 50
        self.data = mujoco.MjData(self.model)
        self.row = self.model.body(kitchen_model.HAND).id
        self.reset()

    @classmethod
    def stock(cls) -> "KitchenInC":
        return cls(kitchen_model.stock_spec().compile())

    @classmethod
    def reduced(cls) -> "KitchenInC":
        return cls(kitchen_model.reduced_spec().compile())

    def reset(self) -> None:
        mujoco.mj_resetData(self.model, self.data)
        kitchen.start(self.model, self.data)
        self.data.qpos[:] += self.nudge
        mujoco.mj_forward(self.model, self.data)

    @property
    def hand(self) -> np.ndarray:
        """[3] m, of the link that the weld pulls, as of the last physics step's start."""
        return self.data.xpos[self.row]

    def physics_steps(self, action: np.ndarray):
        """One agent step with an action [7]: yields before each of its physics steps, when all is set for it."""
        action, data = np.clip(action, -1, 1), self.data
        goal = np.asarray(kitchen.from_euler(kitchen.to_euler(data.xquat[self.row]) - action[3:6]), float)
        data.ctrl[:7], data.ctrl[7], data.ctrl[8] = 0, action[6], -action[6]
        for _ in range(PHYSICS_STEPS):
            data.mocap_pos[0] = self.hand + kitchen.REACH * action[:3]
            quat = data.xquat[self.row] + kitchen.REACH * (goal - data.xquat[self.row])
            data.mocap_quat[0] = quat / np.linalg.norm(quat)
            yield
            mujoco.mj_step(self.model, data)

    def step(self, action: np.ndarray) -> None:
        for _ in self.physics_steps(action):
            pass

    def objects(self) -> np.ndarray:
        """[12] knobs, switch, slide, doors, microwave (rad, m), kettle xyz (m)."""
        names = list(kitchen.JOINT_START)
        return np.array([*(self.data.joint(name).qpos[0] for name in names), *self.data.joint("kettle").qpos[:3]])

    def done(self) -> dict[str, bool]:
        return {name: bool(done) for name, done in kitchen.tasks_done(self.model, self.data.qpos).items()}

    def episode(self, actions: np.ndarray) -> tuple[np.ndarray, dict[str, bool]]:
        """Objects [T+1, 12] under actions [T, 7] from the start, and which tasks were done at any step."""
        self.reset()
        path, done = [self.objects()], self.done()
        for action in actions:
            self.step(action)
            path.append(self.objects())
            done = {name: done[name] or now for name, now in self.done().items()}
        return np.array(path), done
