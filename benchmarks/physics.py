"""Physics speed of each body: ours, the unedited model in MJX, and C MuJoCo, in one run.

    python -m benchmarks.physics                       every body
    python -m benchmarks.physics fish dog --copies 16 128

Each measurement is a process of its own (so that compilation is cold) with a time limit, and takes random actions from
the body's own starts. Timings are noisy, so ours and C MuJoCo take turns and the ratio is the median of the pairs.
"""

import argparse
import json
import os
import subprocess
import sys
import time

COPIES = (1, 16, 128, 1024)
AGENT_STEPS = 5  # length of the timed scan
WARM_UP = 12  # runs of that scan before timing, so that bodies have fallen and touch the floor
PAIRS = 5
UNEDITED_MOST = 128  # the unedited models are too slow for more copies


def loadable_spec(name: str):
    """The unedited model, changed only as far as `mjx.put_model` needs."""
    import mujoco

    import envs

    spec = envs.body_class(name).stock_spec()
    if name == "fish":
        for geom in spec.geoms:
            geom.contype = geom.conaffinity = 0
    if name == "dog":  # ellipsoids against boxes are not implemented
        for geom in spec.geoms:
            if geom.type == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
                geom.contype = geom.conaffinity = 0
    return spec


def rollout_of(name: str, which: str, copies: int):
    """A function of (state, actions) that scans AGENT_STEPS agent steps, and its first arguments."""
    import jax
    import jax.numpy as jnp
    from mujoco import mjx

    import envs

    env = envs.make(name, normalize=False)
    keys = jax.random.split(jax.random.key(0), copies)
    actions = jax.random.uniform(jax.random.key(1), (AGENT_STEPS, copies, env.action_size), minval=-1)
    if which == "ours":
        step, state = jax.vmap(env.step), jax.jit(jax.vmap(env.reset))(keys)
    else:
        model = loadable_spec(name).compile()
        mx, data = mjx.put_model(model), mjx.make_data(model)
        low, high = model.actuator_ctrlrange.T

        def step_one(d, action):
            d = d.replace(ctrl=low + (high - low) * (action + 1) / 2)
            return jax.lax.fori_loop(0, env.physics_steps, lambda _, d: mjx.step(mx, d), d)

        def place(q, v, a):
            return data.replace(qpos=q, qvel=v, act=a)

        start = jnp.arange(copies) % len(env.bank.qpos)
        state = jax.vmap(place)(*(jnp.asarray(getattr(env.bank, k))[start] for k in ("qpos", "qvel", "act")))
        step = jax.vmap(step_one)
    return env, lambda s, a: jax.lax.scan(lambda s, a: (step(s, a), None), s, a)[0], state, actions


def c_mujoco(env, threads: int):
    """A function measuring physics steps/s of the unedited model under `mujoco.rollout`: no Python between steps."""
    import mujoco
    import numpy as np
    from mujoco import rollout

    model, batch, steps = env.stock_spec().compile(), 2 * threads, (WARM_UP + PAIRS) * AGENT_STEPS
    full = mujoco.mjtState.mjSTATE_FULLPHYSICS
    data, states = mujoco.MjData(model), np.zeros((batch, mujoco.mj_stateSize(model, full)))
    for row in range(batch):
        data.qpos[:], data.qvel[:], data.act[:] = (getattr(env.bank, k)[row] for k in ("qpos", "qvel", "act"))
        mujoco.mj_getState(model, data, states[row], full)
    actions = np.random.default_rng(0).uniform(*model.actuator_ctrlrange.T, (batch, steps, model.nu))
    control = np.repeat(actions, env.physics_steps, axis=1)
    workers = [mujoco.MjData(model) for _ in range(threads)]

    def speed(seconds: float = 1.0) -> float:
        begin, runs = time.perf_counter(), 0
        while runs == 0 or time.perf_counter() - begin < seconds:
            rollout.rollout(model, workers, states, control)
            runs += 1
        return runs * batch * control.shape[1] / (time.perf_counter() - begin)

    return speed


def measure(name: str, which: str, copies: int) -> dict:
    """One process's work: trace and compile seconds, physics steps/s, and the ratio to a C thread."""
    import jax
    import numpy as np

    env, run, state, actions = rollout_of(name, which, copies)
    clock = [time.perf_counter()]
    lowered = jax.jit(run).lower(state, actions)
    clock.append(time.perf_counter())
    compiled = lowered.compile()
    clock.append(time.perf_counter())
    for _ in range(WARM_UP if which == "ours" else 1):
        state = jax.block_until_ready(compiled(state, actions))
    one_thread, speeds, ratios = c_mujoco(env, threads=1), [], []
    for _ in range(PAIRS if which == "ours" else 1):
        begin = time.perf_counter()
        state = jax.block_until_ready(compiled(state, actions))
        speeds.append(copies * AGENT_STEPS * env.physics_steps / (time.perf_counter() - begin))
        ratios.append(speeds[-1] / one_thread())
    return {
        "trace": clock[1] - clock[0],
        "compile": clock[2] - clock[1],
        "speed": float(np.median(speeds)),
        "agent": float(np.median(speeds)) / env.physics_steps,
        "ratio": float(np.median(ratios)),
        "threads": c_mujoco(env, os.cpu_count())() if which == "ours" and copies == min(COPIES) else None,
    }


def measure_apart(name: str, which: str, copies: int, limit: float) -> dict | None:
    """`measure` in a process of its own; None if it did not finish in time."""
    command = [sys.executable, "-m", "benchmarks.physics", name, "--one", which, "--copies", str(copies)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def table(name: str, sizes: list[int], limit: float) -> None:
    header = (
        "copies",
        "trace s",
        "compile s",
        "physics/s",
        "agent/s",
        "x C thread",
        "| unedited: compile s",
        "physics/s",
        "ours x",
    )
    widths = [len(h) for h in header]
    print(f"\n{name}", flush=True)
    print("  ".join(header), flush=True)
    for copies in sizes:
        ours = measure_apart(name, "ours", copies, limit)
        if ours is None:
            print(f"{copies:6d}  not done in {limit:.0f} s", flush=True)
            continue
        cells = [copies, *(f"{ours[k]:.1f}" for k in ("trace", "compile"))]
        cells += [f"{ours['speed']:,.0f}", f"{ours['agent']:,.0f}", f"{ours['ratio']:.2f}"]
        if copies <= UNEDITED_MOST:
            stock = measure_apart(name, "unedited", copies, limit)
            if stock is None:
                cells += [f"| not done in {limit:.0f} s", "", ""]
            else:
                cells += [
                    f"| {stock['compile']:.1f}",
                    f"{stock['speed']:,.0f}",
                    f"{ours['speed'] / stock['speed']:.1f}",
                ]
        print("  ".join(f"{c!s:>{w}}" for c, w in zip(cells, widths, strict=False)), flush=True)
        if ours["threads"]:
            thread, every = ours["speed"] / ours["ratio"], ours["threads"]
            print(f"        (C MuJoCo: {thread:,.0f} physics/s one thread, {every:,.0f} `mujoco.rollout` all cores)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bodies", nargs="*", default=["point", "fish", "quadruped", "humanoid", "dog"])
    parser.add_argument("--copies", type=int, nargs="+", default=list(COPIES))
    parser.add_argument("--limit", type=float, default=300, help="seconds a measurement may take")
    parser.add_argument("--one", choices=("ours", "unedited"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.bodies[0], args.one, args.copies[0])))
        return
    for name in args.bodies:
        table(name, args.copies, args.limit)


if __name__ == "__main__":
    main()
