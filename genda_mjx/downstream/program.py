"""A controller over frozen skills, trained on a goal task: like program.py, one program on the device.

    reset -> M macro steps, each one skill for K env.steps -> ring [C, M+1, obs]
          -> batch (s, a, s', goal) -> hindsight goals -> controller.update

One iteration plays N episodes side by side, writes them into the ring and runs a fixed number of gradient steps. An
episode ends at its first success; shapes are fixed, so what follows is simulated but neither stored nor counted.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from brax.envs.base import State
from jax import Array

from envs.tasks.goals import GoalTask
from genda_mjx import replay
from genda_mjx.agents import Agent, AgentState
from genda_mjx.agents.base import Metrics
from genda_mjx.config import UserError
from genda_mjx.downstream.controller import Controller, ControllerConfig, MacroBatch, see_place
from genda_mjx.program import learn
from genda_mjx.replay import EpisodeRing, Places
from genda_mjx.rollout import whole_episodes
from genda_mjx.state import TrainState


@flax.struct.dataclass
class MacroEpisode:
    """One episode by macro steps; with a leading axis, N of them, or the C in the ring. Rows after `length` repeat."""

    observations: Any  # [M+1, ...] as the policy saw them where a skill begins, and after the last
    positions: Array  # [M+1, g], m, likewise
    actions: Array  # [M, d], or [M] for skills in a list
    goal: Array  # [g], m
    length: Array  # macro steps until success, or M
    success: Array  # bool


@flax.struct.dataclass
class Mark:
    """Where N episodes are; a mark stops moving at success."""

    observation: Any  # of N
    position: Array  # [N, g]
    reached: Array  # [N] bool


class Played(NamedTuple):
    """E evaluation episodes."""

    path: Array  # [E, horizon+1, g], m; stays where the goal was reached
    goal: Array  # [E, g], m
    success: Array  # [E] bool
    failed: Array  # [E] bool, the physics went non-finite before success


class Schedule(NamedTuple):
    """What follows from the options and a task."""

    macro_length: int  # M, macro steps per episode
    iterations: int
    warmup_iterations: int
    eval_iterations: int  # between evaluations
    capacity: int  # C, every episode of the budget


class Program(NamedTuple):
    """The controller's program. `state` is donated; `skills` is the frozen agent's state."""

    init: Callable[[Array], TrainState]  # key -> state
    iterate: Callable[[TrainState, AgentState], tuple[TrainState, Metrics]]  # state, skills
    evaluate: Callable[[AgentState, AgentState, Array], Played]  # controller's state, skills, key


def schedule(config: ControllerConfig, horizon: int) -> Schedule:
    """The schedule of N episodes per iteration; the budget is rounded up to whole iterations."""
    if horizon % config.skill_steps:
        fitting = [k for k in range(1, horizon + 1) if horizon % k == 0]
        nearest = min(fitting, key=lambda k: abs(k - config.skill_steps))
        raise UserError(
            f"--controller.skill_steps {config.skill_steps} does not divide the task's {horizon} steps; try {nearest}"
        )
    length = horizon // config.skill_steps
    iterations = math.ceil(config.macro_steps / (length * config.num_episodes))
    return Schedule(
        macro_length=length,
        iterations=iterations,
        warmup_iterations=math.ceil(config.warmup_episodes / config.num_episodes),
        eval_iterations=math.ceil(config.eval_every / config.num_episodes),
        capacity=iterations * config.num_episodes,
    )


def make(config: ControllerConfig, plan: Schedule, task: GoalTask, agent: Agent, controller: Controller) -> Program:
    def see(mark: Mark, goal: Array) -> Any:
        return controller.see(mark.observation, mark.position, goal)

    def collect(state: AgentState, skills: AgentState, key: Array, warmup: Array) -> tuple[MacroEpisode, Array]:
        def choose(mark: Mark, goal: Array, key: Array) -> Array:
            uniform = controller.explore(key, config.num_episodes)
            return jnp.where(warmup, uniform, controller.act(state, see(mark, goal), key))

        episodes, _, failed = play(task, agent, skills, controller.skill, choose, key, config, plan, evaluate=False)
        return episodes, ~failed

    def init(key: Array) -> TrainState:
        key_controller, key_run = jax.random.split(key)
        state = controller.init(key_controller)
        skills = jax.eval_shape(agent.init, key)
        episodes, _ = jax.eval_shape(collect, state, skills, key, jnp.zeros((), bool))
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), episodes)
        ring = replay.empty(one, plan.capacity, config.num_episodes)
        return TrainState(state, ring, key_run, jnp.zeros((), jnp.int32))

    def iterate(state: TrainState, skills: AgentState) -> tuple[TrainState, Metrics]:
        """One iteration: N episodes -> insert -> scan(sample, hindsight, update)."""
        with jax.default_matmul_precision("highest"):
            key, key_collect, key_learn = jax.random.split(state.key, 3)
            warmup = state.iteration < plan.warmup_iterations
            episodes, valid = collect(state.agent, skills, key_collect, warmup)
            ring = replay.insert(state.ring, episodes, valid)
            places = replay.places(ring)

            def update(state: AgentState, key: Array) -> tuple[AgentState, Metrics]:
                key_batch, key_update = jax.random.split(key)
                size, share = config.batch_size, config.her_ratio
                batch = sample_batch(ring, places, key_batch, size, share, task.radius, controller.see)
                return controller.update(state, batch, key_update)

            learned, metrics = learn(update, state.agent, key_learn, config.gradient_steps, warmup)
        metrics |= {
            "train_success": episodes.success.mean(),
            "valid_episodes": places.count,
            "failed_episodes": ring.rejected.sum(),
            "updates": learned.updates,
        }
        return TrainState(learned, ring, key, state.iteration + 1), metrics

    def evaluate(state: AgentState, skills: AgentState, key: Array) -> Played:
        def choose(mark: Mark, goal: Array, _: Array) -> Array:
            return controller.act(state, see(mark, goal), None)

        with jax.default_matmul_precision("highest"):
            episodes, path, failed = play(
                task, agent, skills, controller.skill, choose, key, config, plan, evaluate=True
            )
        return Played(path, episodes.goal, episodes.success, failed)

    return Program(jax.jit(init), jax.jit(iterate, donate_argnums=0), jax.jit(evaluate))


def reached(position: Array, goal: Array, radius: float, step: Array) -> Array:
    """Success of [..., g] after env step number `step` (from 0); the first step of an episode never counts."""
    return (jnp.linalg.norm(position - goal, axis=-1) <= radius) & (step > 0)


def play(
    task: GoalTask,
    agent: Agent,
    skills: AgentState,
    skill: Callable[[Array], Array],
    choose: Callable[[Mark, Array, Array], Array],
    key: Array,
    config: ControllerConfig,
    plan: Schedule,
    *,
    evaluate: bool,
) -> tuple[MacroEpisode, Array, Array]:
    """Plays N episodes with actions choose(mark, goal, key) -> [N, ...]; the evaluation's number if `evaluate`.

    Returns also their path [N, horizon+1, g] by env steps, and which of them failed [N].
    """
    n = config.eval_episodes if evaluate else config.num_episodes
    key_reset, key_choose = jax.random.split(key)
    start, goal = jax.vmap(lambda k: task.reset(k, evaluate))(jax.random.split(key_reset, n))

    def env_step(carry: tuple[State, Mark], step: Array, z: Array) -> tuple[tuple[State, Mark], Array]:
        state, mark = carry
        state = jax.vmap(task.env.step)(state, agent.act(skills, state.obs, z, None))
        position = state.info["position"]

        def keep(old: Array, new: Array) -> Array:
            return jnp.where(mark.reached.reshape(-1, *[1] * (old.ndim - 1)), old, new)

        mark = Mark(
            observation=jax.tree.map(keep, mark.observation, state.obs),
            position=keep(mark.position, position),
            reached=mark.reached | reached(position, goal, task.radius, step),
        )
        return (state, mark), mark.position

    def macro_step(carry: tuple[State, Mark], inputs: tuple[Array, Array]):
        number, key = inputs
        mark = carry[1]
        action = choose(mark, goal, key)
        z = skill(action)
        steps = number * config.skill_steps + jnp.arange(config.skill_steps)
        after, path = jax.lax.scan(lambda carry, step: env_step(carry, step, z), carry, steps)
        return after, (mark, action, path)

    begin = Mark(start.obs, start.info["position"], jnp.zeros(n, bool))
    inputs = jnp.arange(plan.macro_length), jax.random.split(key_choose, plan.macro_length)
    (last, end), (marks, actions, path) = jax.lax.scan(macro_step, (start, begin), inputs)
    episode = MacroEpisode(
        observations=whole_episodes(marks.observation, end.observation),
        positions=whole_episodes(marks.position, end.position),
        actions=actions.swapaxes(0, 1),
        goal=goal,
        length=(~marks.reached).sum(0),
        success=end.reached,
    )
    path = jnp.concatenate([begin.position[None], path.reshape(-1, *path.shape[2:])]).swapaxes(0, 1)
    return episode, path, last.info["failed"] & ~end.reached


def sample_batch(
    ring: EpisodeRing,
    places: Places,
    key: Array,
    batch: int,
    her_ratio: float,
    radius: float,
    see: Callable[[Any, Array, Array], Any] = see_place,
) -> MacroBatch:
    """B macro transitions of valid episodes; a share of them with a hindsight goal.

    Such a goal is the position after one of the macro steps t..length-1 ("future"), and success is judged by it at the
    end of step t alone.
    """
    key_episode, key_time, key_share, key_later = jax.random.split(key, 4)
    episodes: MacroEpisode = ring.episodes
    place = replay.sample_episodes(places, key_episode, batch)
    length, success = replay.entries(episodes.length, place), replay.entries(episodes.success, place)
    t = jax.random.randint(key_time, (batch,), 0, length)
    later = jax.random.randint(key_later, (batch,), t + 1, length + 1)
    position, position_next, hindsight = replay.rows(episodes.positions, place, jnp.stack([t, t + 1, later]))
    s, s_next = replay.observations(episodes.observations, place, jnp.stack([t, t + 1]), history=1)
    (action,) = replay.rows(episodes.actions, place, t[None])
    relabel = jax.random.uniform(key_share, (batch,)) < her_ratio
    goal = jnp.where(relabel[:, None], hindsight, replay.entries(episodes.goal, place))
    near = jnp.linalg.norm(position_next - goal, axis=-1) <= radius
    done = jnp.where(relabel, near, success & (t == length - 1)).astype(jnp.float32)
    return MacroBatch(
        seen=see(s, position, goal),
        action=action,
        seen_next=see(s_next, position_next, goal),
        reward=done,
        done=done,
    )
