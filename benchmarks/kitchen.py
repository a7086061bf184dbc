"""The kitchen against C MuJoCo: one-step errors, random episodes, scripts that do the tasks, speed.

python -m benchmarks.kitchen steps      velocity errors after one physics step against C on the same reduced model
python -m benchmarks.kitchen episodes   objects moved or not in random episodes: ours, C reduced, C stock
python -m benchmarks.kitchen edits      the same in C for each edit of the stock model alone, and for rounding alone
python -m benchmarks.kitchen scripts    the six tasks by scripts of actions: ours, C reduced, C stock
python -m benchmarks.kitchen random     tasks that random actions do, over groups of 48 episodes as in an evaluation
python -m benchmarks.kitchen speed      physics steps per CPU-second, and CPU-seconds to trace and compile
"""

import argparse
import dataclasses
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import envs
from benchmarks._kitchen_c import PHYSICS_STEPS, KitchenInC
from benchmarks._kitchen_edits import EDITS, between
from envs import kitchen, physics
from envs.physics import PhysicsState

SCRIPTS = pathlib.Path(__file__).parent / "kitchen_scripts.json"
MOVED = 0.05  # rad or m, by which an object counts as moved
COPIES = 64
EVALUATED = 48  # episodes of an evaluation
TURNS, C_EPISODES = 5, 6  # of `speed`, and episodes in C in each


@dataclasses.dataclass
class Ours:
    """Our kitchen as a function of whole episodes."""

    def __post_init__(self):
        self.env = envs.make("kitchen", normalize=False, bank_size=1)
        self.step = jax.jit(jax.vmap(self.env.step))

    def episodes(self, actions: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Objects [E, T+1, 12] as `KitchenInC.objects` under actions [E, T, 7], and the tasks done [E]."""
        paths = []
        for start in range(0, len(actions), COPIES):
            part = actions[start : start + COPIES]
            filled = np.concatenate([part, np.zeros((COPIES - len(part), *part.shape[1:]))]).astype(np.float32)
            state = jax.vmap(self.env.reset)(jax.random.split(jax.random.key(0), COPIES))
            path = [state.pipeline_state.physics.qpos]
            for action in filled.swapaxes(0, 1):
                state = self.step(state, action)
                path.append(state.pipeline_state.physics.qpos)
            if state.info["failed"].any():
                raise RuntimeError("the physics of an episode failed")
            paths.append(np.asarray(jnp.stack(path, 1))[: len(part)])
        qpos = np.concatenate(paths).astype(float)
        done = {name: flags.any(1) for name, flags in kitchen.tasks_done(self.env.model, qpos).items()}
        return qpos[..., kitchen.ARM_JOINTS : kitchen.ARM_JOINTS + 12], done


def random_actions(episodes: int, held: int, seed: int = 0) -> np.ndarray:
    """[E, 50, 7] uniform actions, each held for some agent steps."""
    rng = np.random.default_rng(seed)
    fresh = rng.uniform(-1, 1, (episodes, -(-50 // held), 7))
    return np.repeat(fresh, held, axis=1)[:, :50]


def one_step_errors(episodes: int = 12, every: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Largest velocity error of each state after one step against C, and which shape kinds touched [states, 3]."""
    c, rows, touched = KitchenInC.reduced(), [], []
    rng = np.random.default_rng(0)
    for actions in np.concatenate([random_actions(episodes // 2, 1), random_actions(episodes // 2, 10)]):
        c.reset()
        for action in actions:
            chosen = set(rng.choice(PHYSICS_STEPS, PHYSICS_STEPS // every, replace=False))
            for number, _ in enumerate(c.physics_steps(action)):
                if number in chosen:
                    rows.append(_before(c.data))
                    copy = mujoco.MjData(c.model)
                    mujoco.mj_copyData(copy, c.model, c.data)
                    mujoco.mj_step(c.model, copy)
                    rows[-1]["expected"] = copy.qvel.copy()
                    kinds = [tuple(c.model.geom_type[contact.geom]) for contact in copy.contact]
                    touched.append([kind in kinds for kind in physics.nearest.KINDS])
    physics_model = envs.make("kitchen", normalize=False, bank_size=1).physics_model
    columns = {name: np.array([row[name] for row in rows], np.float32).T for name in rows[0]}

    @jax.jit
    def step(qpos, qvel, warmstart, ctrl, target):
        state = PhysicsState(qpos, qvel, jnp.zeros((0, qpos.shape[1])), warmstart)
        return physics.step(physics_model, state, ctrl, target)[0].qvel

    with jax.default_matmul_precision("highest"):
        found = step(*(columns[name] for name in ("qpos", "qvel", "warmstart", "ctrl", "target")))
    return np.abs(np.asarray(found) - columns["expected"]).max(0), np.array(touched)


def _before(data: mujoco.MjData) -> dict[str, np.ndarray]:
    target = np.concatenate([data.mocap_pos[0], data.mocap_quat[0]])
    state = {"qpos": data.qpos, "qvel": data.qvel, "warmstart": data.qacc_warmstart, "ctrl": data.ctrl}
    return {name: value.copy() for name, value in state.items()} | {"target": target}


def steps(_) -> None:
    errors, touched = one_step_errors()
    groups = {"no contact": ~touched.any(1), "all": np.ones(len(errors), bool)}
    groups |= dict(zip(("capsule-box", "capsule-capsule", "sphere-box (kettle)"), touched.T, strict=True))
    for name, rows in groups.items():
        if rows.any():
            quantiles = np.quantile(errors[rows], [0.5, 0.9, 0.99, 1])
            print(f"{name}: {rows.sum()} states, error at 50/90/99/100 % {'/'.join(f'{q:.1e}' for q in quantiles)}")


def moved(paths: np.ndarray) -> np.ndarray:
    """[E, 10] which objects were moved at any step: nine joints, and the kettle in x or y."""
    away = np.abs(paths - paths[:, :1]).max(1) > MOVED
    return np.concatenate([away[:, :9], away[:, 9:11].any(1, keepdims=True)], axis=1)


def jaccard(one: np.ndarray, other: np.ndarray) -> float:
    """Moved in both over moved in any."""
    return float((one & other).sum() / max((one | other).sum(), 1))


def episodes(options) -> None:
    names = [*kitchen.JOINT_START, "kettle"]
    for held in options.held:
        actions = random_actions(options.episodes, held, options.seed)
        found = {"ours": moved(Ours().episodes(actions)[0])}
        for name, c in (("C reduced", KitchenInC.reduced()), ("C stock", KitchenInC.stock())):
            found[name] = moved(np.array([c.episode(a)[0] for a in actions]))
        print(f"{options.episodes} episodes, each action held for {held} steps; moved in C stock:")
        print("  " + ", ".join(f"{name} {count}" for name, count in zip(names, found["C stock"].sum(0), strict=True)))
        for one, other in (("ours", "C reduced"), ("ours", "C stock"), ("C reduced", "C stock")):
            agree = (found[one] == found[other]).mean()
            both, either = (found[one] & found[other]).sum(), (found[one] | found[other]).sum()
            rate = jaccard(found[one], found[other])
            print(f"  {one} against {other}: Jaccard {rate:.3f} ({both} of {either}), equal {agree:.3f}", flush=True)


def edits(options) -> None:
    """What each edit costs: C on the stock model with this edit alone against C stock."""
    actions = random_actions(options.episodes, options.held[-1], options.seed)

    def objects(model: mujoco.MjModel, nudge: float = 0.0) -> np.ndarray:
        c = KitchenInC(model, nudge)
        return moved(np.array([c.episode(a)[0] for a in actions]))

    stock, held = objects(between(set())), options.held[-1]
    print(f"{len(actions)} episodes, each action held for {held} steps; C stock moves {stock.sum()} objects")
    variants = {"start moved by 1e-9": (set(), 1e-9)} | {edit: ({edit}, 0.0) for edit in options.edits}
    for name, (chosen, nudge) in (variants | {"all": (set(EDITS), 0.0)}).items():
        found = objects(between(chosen), nudge)
        both, either = (found & stock).sum(), (found | stock).sum()
        print(f"{name}: Jaccard {jaccard(found, stock):.2f} ({both} of {either})", flush=True)


def scripts(_) -> None:
    stored = {name: np.array(rows) for name, rows in json.loads(SCRIPTS.read_text()).items()}
    padded = np.array([np.concatenate([a, np.zeros((50 - len(a), 7))]) for a in stored.values()])
    _, ours = Ours().episodes(padded)
    c = {"C reduced": KitchenInC.reduced(), "C stock": KitchenInC.stock()}
    for number, (task, actions) in enumerate(zip(stored, padded, strict=True)):
        done = {label: one.episode(actions)[1][task] for label, one in c.items()} | {"ours": bool(ours[task][number])}
        print(f"{task}: " + ", ".join(f"{label} {'done' if yes else 'not done'}" for label, yes in done.items()))


def random(options) -> None:
    """How many of the six tasks random actions do in 48 episodes, in ours: one group is one evaluation's figure."""
    ours, groups = Ours(), max(options.episodes // EVALUATED, 1)
    for held in options.held:
        _, done = ours.episodes(random_actions(groups * EVALUATED, held, options.seed))
        counts = sum(flags.reshape(groups, EVALUATED).any(1).astype(int) for flags in done.values())
        each = ", ".join(f"{name} {flags.mean():.4f}" for name, flags in done.items())
        print(f"{groups} x {EVALUATED} episodes, each action held for {held} steps: {counts.mean():.2f} tasks")
        print(f"  in each group {', '.join(map(str, counts))}; share of episodes that do it: {each}", flush=True)


def speed(options) -> None:
    env, count = envs.make("kitchen", normalize=False, bank_size=1), options.copies
    actions = jnp.asarray(random_actions(count, 1).swapaxes(0, 1), jnp.float32)
    state = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), count))
    began = time.process_time()
    lowered = jax.jit(jax.vmap(env.step)).lower(state, actions[0])
    traced = time.process_time()
    step = lowered.compile()
    compiled = time.process_time()
    c = {"C stock": KitchenInC.stock(), "C reduced": KitchenInC.reduced()}
    seconds = {name: np.zeros(TURNS) for name in ("ours", *c)}
    for turn, share in enumerate(np.split(actions, TURNS)):  # whole episodes: in turns for ours, a few a turn in C
        start = time.process_time()
        for action in share:
            state = step(state, action)
        jax.block_until_ready(state)
        seconds["ours"][turn] = time.process_time() - start
        for name, one in c.items():
            start = time.process_time()
            for episode in range(C_EPISODES):
                one.reset()
                for action in np.asarray(actions[:, turn * C_EPISODES + episode]):
                    next(one.physics_steps(action))  # sets the target, which then stays: no Python inside
                    mujoco.mj_step(one.model, one.data, PHYSICS_STEPS)
            seconds[name][turn] = time.process_time() - start
    made = dict.fromkeys(c, C_EPISODES * len(actions) * PHYSICS_STEPS) | {"ours": len(share) * count * PHYSICS_STEPS}
    print(f"{count} copies; CPU-seconds to trace {traced - began:.1f}, to compile {compiled - traced:.1f}")
    rates = {name: TURNS * made[name] / spent.sum() for name, spent in seconds.items()}
    for name, spent in seconds.items():
        slowest, fastest = made[name] / spent.max(), made[name] / spent.min()
        spread = f"{slowest:,.0f} to {fastest:,.0f} in {TURNS} turns"
        print(f"{name}: {rates[name]:,.0f} physics steps per CPU-second, {spread}")
    for name in c:
        print(f"ours over {name}, one thread: {rates['ours'] / rates[name]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"steps": steps, "episodes": episodes, "edits": edits, "scripts": scripts, "random": random, "speed": speed}
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--held", type=int, nargs="+", default=[1, 5], help="agent steps that random actions last")
    parser.add_argument("--seed", type=int, default=0, help="of the random actions of `episodes`")
    parser.add_argument("--edits", nargs="+", default=EDITS, choices=EDITS)
    parser.add_argument("--copies", type=int, default=COPIES)
    options = parser.parse_args()
    for part in options.parts:
        parts[part](options)


if __name__ == "__main__":
    main()
