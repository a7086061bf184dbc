"""Pictures a CPU-second: `envs.render` against MuJoCo's software renderer and against the physics of the same copies.

    python -m benchmarks.render [--bodies quadruped humanoid] [--copies 8 128] [--pictures_only]

All in one process, with the same states, 64 x 64 pixels and the same content (no shadow, no reflection); CPU time, as
other work on the machine then changes little. MuJoCo draws with four samples a pixel, as it does unless told otherwise,
and with one, as ours. Its renderer needs software OpenGL (Debian: apt install libosmesa6) and is left out, with a line
that says so, where there is none.
"""

import os

os.environ.setdefault("MUJOCO_GL", "osmesa")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import envs
from envs import kitchen_picture, render
from envs.render.camera import Camera

SECONDS = 2.0  # CPU time of a measurement
WARM_STEPS = 30  # agent steps of uniform actions before anything is drawn


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one call, the mean over SECONDS after one call that is not counted."""
    jax.block_until_ready(work())
    calls, begin = 0, time.process_time()
    while time.process_time() - begin < SECONDS:
        jax.block_until_ready(work())
        calls += 1
    return (time.process_time() - begin) / calls


def states(env: envs.Body, copies: int, with_step: bool) -> tuple[float | None, np.ndarray]:
    """CPU seconds of one env.step of all copies, and their coordinates [copies, nq] after some; or start states."""
    if not with_step:
        return None, np.resize(env.bank.qpos, (copies, env.model.nq))
    step = jax.jit(jax.vmap(env.step))
    state = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), copies))
    actions = jax.random.uniform(jax.random.key(1), (WARM_STEPS, copies, env.action_size), minval=-1)
    for action in actions:
        state = step(state, action)
    return cpu_seconds(lambda: step(state, actions[0])), np.asarray(state.pipeline_state.physics.qpos)


def measure_ours(env: envs.Body, qpos: np.ndarray) -> float:
    """CPU seconds of one picture of all copies, kinematics included."""
    scene = render.scene_of(env)
    picture = jax.jit(jax.vmap(lambda q: render.draw(scene, *render.poses(env, q))))
    qpos = jnp.asarray(qpos)
    return cpu_seconds(lambda: picture(qpos))


def free_camera(camera: Camera) -> mujoco.MjvCamera:
    """MuJoCo's free camera that stands where ours does."""
    free, forward = mujoco.MjvCamera(), -camera.turn[:, 2]
    free.lookat[:], free.distance = camera.offset + forward, 1.0
    free.azimuth = np.degrees(np.arctan2(forward[1], forward[0]))
    free.elevation = np.degrees(np.arcsin(forward[2]))
    return free


def measure_mujoco(env: envs.Body, qpos: np.ndarray, samples: int) -> float | None:
    """CPU seconds of one picture by MuJoCo's software renderer, kinematics included; None without OpenGL."""
    model = env.stock_spec().compile()
    camera = env.camera
    if isinstance(camera, Camera):  # a room; the kitchen's stock model has coordinates that are not simulated
        index, scale = kitchen_picture.coordinates(model, env.model)
        camera, qpos = free_camera(camera), qpos[:, index] * scale
    model.vis.quality.offsamples = samples if samples > 1 else 0
    data = mujoco.MjData(model)
    try:
        renderer = mujoco.Renderer(model, 64, 64)
    except Exception as error:  # whatever the OpenGL loader raises
        print(f"no software OpenGL, so MuJoCo's renderer is left out ({error}); apt install libosmesa6")
        return None

    def picture() -> np.ndarray:
        for coordinates in qpos[:8]:
            data.qpos[:] = coordinates
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_camlight(model, data)
            renderer.update_scene(data, camera)
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                renderer.scene.flags[flag] = False
            renderer.render()
        return jnp.zeros(())

    found = cpu_seconds(picture) / len(qpos[:8])
    renderer.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", nargs="+", default=["quadruped", "humanoid"], choices=envs.NAMES)
    parser.add_argument("--copies", nargs="+", type=int, default=[8, 128])
    parser.add_argument("--pictures_only", action="store_true", help="no physics, which takes longest to compile")
    options = parser.parse_args()
    print(
        "body        copies  env.step/s  pictures/s  picture : step  ours : MuJoCo, 4 samples  ours : MuJoCo, 1 sample"
    )
    for name in options.bodies:
        env = envs.make(name)
        for copies in options.copies:
            step, qpos = states(env, copies, not options.pictures_only)
            picture = measure_ours(env, qpos) / copies
            ratio = f"{copies / step:10.0f}  {1 / picture:10.0f}  {picture * copies / step:13.2f}x" if step else ""
            theirs = [measure_mujoco(env, qpos, samples) for samples in (4, 1)]
            beside = [f"{t / picture:9.1f}x ({1 / t:.0f}/s)" if t else "" for t in theirs]
            print(f"{name:10}  {copies:6}  {ratio or f'{1 / picture:22.0f}'}  {'  '.join(beside)}", flush=True)


if __name__ == "__main__":
    main()
