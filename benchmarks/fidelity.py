"""One physics step of ours against C MuJoCo's solver run to convergence, on the same edited model.

    python -m benchmarks.fidelity [body ...]

It prints how often the unedited body touches itself; then, over 480 states of random rollouts in C MuJoCo, most in
contact, the largest velocity error (rad/s, m/s) after one step: as the body is, with other solver trip counts, and
with other contact caps.
"""

import sys

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import envs
from envs import physics, suite
from envs.physics import PhysicsModel, PhysicsState

EPISODES, STEPS, EVERY = 16, 1200, 40
TRIPS = ((4, 6), (5, 6), (6, 6), (8, 6), (10, 6), (50, 20))
CAPS = {
    "humanoid": ((10, 8), (10, 16), (10, 32), (200, None)),
    "dog": ((20, 24), (20, 64), (200, None)),
    "quadruped": ((200, None),),
}


def reference_states(env: envs.SkillEnv) -> list[np.ndarray]:
    """qpos, qvel, act, warmstart, ctrl before a converged C step, and qvel after it."""
    model = env.edited_spec().compile()
    model.opt.iterations, model.opt.ls_iterations, model.opt.tolerance = 100, 50, 1e-10
    data, rng, rows = mujoco.MjData(model), np.random.default_rng(0), []
    for episode in range(EPISODES):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.act[:] = (getattr(env.bank, k)[episode] for k in ("qpos", "qvel", "act"))
        for k in range(STEPS):
            if k % env.physics_steps == 0:
                data.ctrl[:] = rng.uniform(*model.actuator_ctrlrange.T)
            before = [x.copy() for x in (data.qpos, data.qvel, data.act, data.qacc_warmstart, data.ctrl)]
            mujoco.mj_step(model, data)
            if k % EVERY == 0:
                rows.append((*before, data.qvel.copy()))
    return [np.array(column) for column in zip(*rows, strict=True)]


def self_contact(env: envs.SkillEnv, episodes: int = 64) -> float:
    """Share of agent steps of random episodes, unedited model in C MuJoCo, in which the body touches itself."""
    model = env.stock_spec().compile()
    data, rng, hits = mujoco.MjData(model), np.random.default_rng(0), 0
    for episode in range(episodes):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.act[:] = (getattr(env.bank, k)[episode] for k in ("qpos", "qvel", "act"))
        for _ in range(env.episode_length):
            data.ctrl[:] = rng.uniform(*model.actuator_ctrlrange.T)
            mujoco.mj_step(model, data, env.physics_steps)
            hits += bool((model.geom_bodyid[data.contact.geom].min(axis=1, initial=model.nbody) > 0).any())
    return hits / (episodes * env.episode_length)


def report(label: str, model: mujoco.MjModel, states: list[np.ndarray]) -> None:
    physics_model = PhysicsModel.of(model)

    def last(x: np.ndarray) -> jax.Array:
        """Moves the copies to the last axis."""
        return jnp.asarray(x.T, jnp.float32)

    *before, ctrl, expected = states
    with jax.default_matmul_precision("highest"):
        after, _ = jax.jit(lambda p, u: physics.step(physics_model, p, u))(PhysicsState(*map(last, before)), last(ctrl))
    error = np.abs(np.asarray(after.qvel).T - expected).max(axis=1)
    marks = [np.median(error), *np.percentile(error, (90, 99)), error.max()]
    print(f"  {label:32s}" + "".join(f"{m:10.1e}" for m in marks), flush=True)


def main(names: list[str]) -> None:
    for name in names or ["quadruped", "humanoid", "dog"]:
        env = envs.make(name, normalize=False)
        print(f"{name}: touches itself in {self_contact(env):.1%} of the steps of 64 random episodes, unedited")
        states = reference_states(env)
        print(f"{'one-step velocity error':34s}    median       90%       99%       max")
        report("as it is", env.model, states)
        for iterations, ls_iterations in TRIPS:
            model = env.edited_spec().compile()
            model.opt.iterations, model.opt.ls_iterations = iterations, ls_iterations
            report(f"{iterations} Newton, {ls_iterations} line search", model, states)
        for points, pairs in CAPS[name]:
            spec = env.edited_spec()
            suite.drop(spec, spec.numerics)
            suite.cap_contacts(spec, points, pairs)
            report(f"{points} contacts, {pairs or 'all'} pairs", spec.compile(), states)


if __name__ == "__main__":
    main(sys.argv[1:])
