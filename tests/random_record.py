"""A run folder with a record of uniform actions in C MuJoCo, for `eval.py --video` where there is no trained run.

PYTHONPATH=. python tests/random_record.py humanoid FOLDER
"""

import sys
from pathlib import Path

import mujoco
import numpy as np

import envs
from genda_mjx.config import Config
from genda_mjx.evaluate import Episodes
from genda_mjx.runs.folder import save_episodes, write_text

EPISODES, STEPS = 4, 120  # agent steps


def write(name: str, folder: Path) -> None:
    body, rng = envs.body_class(name), np.random.default_rng(1)
    model = body.stock_spec().compile()
    data, qpos = mujoco.MjData(model), []
    physics_steps = round(body.action_repeat * body.control_timestep / model.opt.timestep)
    for _ in range(EPISODES):
        mujoco.mj_resetData(model, data)
        body.draw_start(model, data, rng)
        mujoco.mj_forward(model, data)
        qpos.append([data.qpos.copy()])
        for _ in range(STEPS):
            data.ctrl[:] = rng.uniform(*model.actuator_ctrlrange.T)
            mujoco.mj_step(model, data, physics_steps)
            qpos[-1].append(data.qpos.copy())
    qpos, angle = np.array(qpos, np.float16), np.arange(EPISODES) * 2 * np.pi / EPISODES
    traces = {"position": qpos[..., : body.position_size].astype(np.float32), "qpos": qpos}
    skills = np.stack([np.cos(angle), np.sin(angle)], -1)  # for the colours; nothing follows them
    save_episodes(folder / "evaluations" / "0.npz", Episodes(traces, None, skills, np.ones(EPISODES, bool)))
    write_text(folder / "config.json", Config(env=name, out=str(folder)).to_json())


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
