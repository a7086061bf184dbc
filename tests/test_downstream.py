"""Controller over frozen skills: success, hindsight goals and losses against numpy; a toy task learned end to end."""

import dataclasses

import goal_helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brax.envs.base import State
from goal_helpers import QUICK, ToyTask, perfect_skills, vector
from trainer_helpers import Walk

from envs.tasks import goals
from genda_mjx import replay
from genda_mjx.agents.skills import SkillSpace
from genda_mjx.config import UserError
from genda_mjx.downstream import controller
from genda_mjx.downstream import program as downstream
from genda_mjx.downstream.controller import MacroBatch
from genda_mjx.downstream.program import MacroEpisode

# Distance to the goal after 0..8 env steps; radius 1, two steps a skill, so four skills an episode.
TRACKS = {
    "never": ([5, 5, 5, 5, 5, 5, 5, 5, 5], 4, False),
    "at the start and after the first step, which do not count": ([0, 0, 5, 5, 5, 5, 5, 5, 5], 4, False),
    "after the second step, on the rim": ([0, 0, 1, 5, 5, 5, 5, 5, 5], 1, True),
    "inside the third skill, then leaves": ([5, 5, 5, 5, 5, 0.5, 5, 5, 5], 3, True),
    "at the end of the second skill": ([5, 5, 5, 5, 0.2, 5, 5, 5, 5], 2, True),
    "after the last step": ([5, 5, 5, 5, 5, 5, 5, 5, 0.9], 4, True),
    "twice": ([5, 5, 5, 0.1, 0.3, 5, 0.2, 5, 5], 2, True),
}


class Rails(Walk):
    """Follows a track whatever the action; obs is (track, time, distance)."""

    table = np.array([distances for distances, _, _ in TRACKS.values()], np.float32)

    def at(self, track, time):
        obs = jnp.stack([track, time, jnp.asarray(self.table)[track, time]]).astype(jnp.float32)
        return obs, jnp.stack([10.0 * track + obs[2], 0.0])

    def reset(self, rng):
        track, zero = jax.random.randint(rng, (), 0, len(self.table)), jnp.zeros(())
        obs, position = self.at(track, 0)
        return State(None, obs, zero, zero, {}, {"position": position, "failed": zero > 0, "track": track})

    def step(self, state, action):
        obs, position = self.at(state.info["track"], state.obs[1].astype(int) + 1)
        return state.replace(obs=obs, info={**state.info, "position": position})


class OnRails(ToyTask):
    def reset(self, rng, evaluate=False):
        state = self.env.reset(rng)
        return state, jnp.stack([10.0 * state.info["track"], 0.0])


def full_ring(episodes: MacroEpisode, valid: np.ndarray) -> replay.EpisodeRing:
    one = jax.tree.map(lambda leaf: leaf[0], episodes)
    return jax.jit(lambda: replay.insert(replay.empty(one, len(valid), len(valid)), episodes, jnp.asarray(valid)))()


def sample(ring, key, batch, her_ratio, radius) -> MacroBatch:
    """With observations and goals side by side."""
    draw = jax.jit(downstream.sample_batch, static_argnums=3)
    rows = jax.device_get(draw(ring, replay.places(ring), key, batch, her_ratio, radius))
    return rows.replace(seen=np.concatenate(rows.seen, -1), seen_next=np.concatenate(rows.seen_next, -1))


def test_success_by_hand_made_trajectories():
    config = dataclasses.replace(QUICK, skill_steps=2, num_episodes=64)
    task, agent = OnRails(Rails(), horizon=8, radius=1.0), perfect_skills()
    plan = downstream.schedule(config, task.horizon)
    choose = lambda mark, goal, key: jnp.ones((len(goal), 2))
    skill = lambda a: a
    play = lambda key: downstream.play(task, agent, None, skill, choose, key, config, plan, evaluate=False)
    episodes, path, failed = jax.device_get(jax.jit(play)(jax.random.key(0)))
    assert not failed.any()
    tracks = np.asarray(episodes.observations[:, 0, 0]).astype(int)
    assert set(tracks) == set(range(len(TRACKS)))
    for i, track in enumerate(tracks):
        distances, length, success = list(TRACKS.values())[track]
        assert (episodes.length[i], episodes.success[i]) == (length, success), list(TRACKS)[track]
        end = next((t for t in range(2, 9) if distances[t] <= 1), 8)
        times = np.minimum([0, 2, 4, 6, 8], end)  # an ended episode stays where it ended
        np.testing.assert_array_equal(episodes.observations[i, :, 1], times)
        np.testing.assert_allclose(episodes.positions[i, :, 0], 10 * track + np.array(distances)[times], rtol=1e-6)
        expected = 10 * track + np.array(distances)[np.minimum(range(9), end)]
        np.testing.assert_allclose(path[i, :, 0], expected, rtol=1e-6)

    ring = full_ring(episodes, ~failed)
    batch = sample(ring, jax.random.key(1), 4096, 0.0, 1.0)
    for seen, seen_next, reward, done in zip(batch.seen, batch.seen_next, batch.reward, batch.done, strict=True):
        _, length, success = list(TRACKS.values())[int(seen[0])]
        macro = int(seen[1]) // 2
        assert macro < length and seen_next[1] > seen[1]
        assert reward == done == (success and macro == length - 1)


def hand_made_ring(rng: np.random.Generator, episodes: int = 40, macro: int = 6):
    """Random walks of every length; observations name their place and time. The last episode is invalid."""
    length = rng.integers(1, macro + 1, episodes).astype(np.int32)
    names = np.stack(np.meshgrid(np.arange(episodes), np.arange(macro + 1), indexing="ij"), -1).astype(np.float32)
    data = MacroEpisode(
        observations=names,
        positions=rng.normal(0, 1, (episodes, macro + 1, 2)).cumsum(1).astype(np.float32),
        actions=rng.normal(size=(episodes, macro, 2)).astype(np.float32),
        goal=rng.normal(50, 1, (episodes, 2)).astype(np.float32),
        length=length,
        success=rng.random(episodes) < 0.5,
    )
    valid = np.arange(episodes) < episodes - 1
    return data, full_ring(data, valid)


def test_the_way_to_a_goal_is_seen_from_where_the_body_is():
    """--controller.goal way: before and after a macro step the same goal, by hindsight or not, seen from two places."""
    data, ring = hand_made_ring(np.random.default_rng(0))
    draw = jax.jit(downstream.sample_batch, static_argnums=(3, 6))
    arguments = ring, replay.places(ring), jax.random.key(3), 512, 0.8, 1.3
    place = jax.device_get(draw(*arguments))
    way = jax.device_get(draw(*arguments, controller.see_way))
    episode, t = place.seen[0].astype(int).T
    np.testing.assert_array_equal(way.seen[0], place.seen[0])
    np.testing.assert_allclose(way.seen[1], place.seen[1] - data.positions[episode, t], atol=1e-5)
    np.testing.assert_allclose(way.seen_next[1], place.seen[1] - data.positions[episode, t + 1], atol=1e-5)


def test_hindsight_against_numpy():
    data, ring = hand_made_ring(np.random.default_rng(0))
    samples, radius = 40_000, 1.3
    batch = sample(ring, jax.random.key(3), samples, 0.8, radius)
    place, t = batch.seen[:, :2].astype(int).T
    assert place.max() == len(data.goal) - 2  # the invalid episode is never drawn
    assert (t < data.length[place]).all()
    np.testing.assert_array_equal(batch.seen_next[:, 1], t + 1)
    np.testing.assert_array_equal(batch.action, data.actions[place, t])
    goal = batch.seen[:, 2:]
    np.testing.assert_array_equal(goal, batch.seen_next[:, 2:])

    kept = (goal == data.goal[place]).all(-1)
    assert abs(kept.mean() - 0.2) < 4 * np.sqrt(0.2 * 0.8 / samples)
    expected = data.success[place] & (t == data.length[place] - 1)
    np.testing.assert_array_equal(batch.reward[kept], expected[kept])

    same = (data.positions[place] == goal[:, None]).all(-1)  # which row became the goal
    assert (same.sum(1) == ~kept).all()
    later = same.argmax(1)
    moved = ~kept
    assert (later[moved] > t[moved]).all() and (later[moved] <= data.length[place[moved]]).all()
    near = np.linalg.norm(data.positions[place, t + 1] - goal, axis=-1) <= radius
    np.testing.assert_array_equal(batch.reward[moved], near[moved])
    assert 0.05 < near[moved & (later > t + 1)].mean() < 0.95  # both outcomes occur beyond the trivial next row
    np.testing.assert_array_equal(batch.done, batch.reward)

    for length in (1, 4, 6):  # t uniform over the episode, the goal uniform over what follows
        mine = data.length[place] == length
        share = np.bincount(t[mine], minlength=length) / mine.sum()
        np.testing.assert_allclose(share, 1 / length, atol=5 * np.sqrt(0.25 / mine.sum()))
        first = mine & moved & (t == 0)
        ahead = np.bincount(later[first], minlength=length + 1)[1:] / first.sum()
        np.testing.assert_allclose(ahead, 1 / length, atol=5 * np.sqrt(0.25 / first.sum()))


def random_batch(rng: np.random.Generator, action: np.ndarray, size: int = 16) -> MacroBatch:
    reward = (rng.random(size) < 0.5).astype(np.float32)
    seen, seen_next = rng.normal(size=(2, size, 5)).astype(np.float32)
    return MacroBatch(seen=seen, action=action, seen_next=seen_next, reward=reward, done=reward)


def test_categorical_losses_against_numpy():
    rng = np.random.default_rng(1)
    config = dataclasses.replace(QUICK, hidden=8, discount=0.9)
    pi = controller.Categorical(
        actions=8,
        hidden=8,
        actor_rate=1e-3,
        critic_rate=1e-3,
        alpha_rate=1e-3,
        discount=config.discount,
        initial_alpha=0.3,
        target_entropy=1.1,
        alpha_weight=lambda log_alpha: log_alpha,
    )
    state = jax.jit(controller.make(config, perfect_skills(discrete=True), vector(5)).init)(jax.random.key(0))
    state = state.replace(
        params=state.params | {"log_alpha": jnp.log(0.3)},
        targets={"critic": jax.tree.map(lambda x: x + 0.1, state.params["critic"])},
    )
    batch = random_batch(rng, rng.integers(0, 8, 16))
    logits = lambda s: np.asarray(jax.jit(pi._actor.apply)(state.params["actor"], s), np.float64)
    values = lambda critic, s: np.asarray(jax.jit(pi._critic.apply)(critic, s), np.float64)
    softmax = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    p_next, p = softmax(logits(batch.seen_next)), softmax(logits(batch.seen))

    v_next = (p_next * (values(state.targets["critic"], batch.seen_next).min(0) - 0.3 * np.log(p_next))).sum(-1)
    target = batch.reward + 0.9 * (1 - batch.done) * v_next
    np.testing.assert_allclose(jax.jit(pi.target)(state, batch), target, rtol=1e-4, atol=1e-5)
    assert (target[batch.done == 1] == 1).all()  # success ends the episode, nothing follows

    q = values(state.params["critic"], batch.seen)
    taken = q[:, np.arange(16), batch.action]
    loss, _ = jax.jit(pi.critic_loss)(state.params, batch, jnp.asarray(target))
    np.testing.assert_allclose(loss, 0.5 * ((taken - target) ** 2).mean(), rtol=1e-4)

    loss, (actor, log_prob) = jax.jit(pi.policy_loss)(state.params, state.params["critic"], batch)
    np.testing.assert_allclose(actor, (p * (0.3 * np.log(p) - q.min(0))).sum(-1).mean(), rtol=1e-4)
    np.testing.assert_allclose(log_prob, (p * np.log(p)).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(loss - actor, -np.log(0.3) * ((p * np.log(p)).sum(-1).mean() + 1.1), rtol=1e-4)


@pytest.mark.parametrize("discrete", [False, True])
def test_what_follows_a_success_is_not_valued(discrete):
    rng = np.random.default_rng(2)
    pi = controller.make(dataclasses.replace(QUICK, hidden=8), perfect_skills(discrete), vector(5))
    state = jax.jit(pi.init)(jax.random.key(0))
    batch = random_batch(rng, np.asarray(pi.explore(jax.random.key(1), 16)))
    elsewhere = batch.replace(seen_next=batch.seen_next + batch.done[:, None])
    before = batch.replace(seen_next=batch.seen_next + (1 - batch.done[:, None]))
    update = jax.jit(pi.update)
    learned = [update(state, rows, jax.random.key(2))[0].params["critic"] for rows in (batch, elsewhere, before)]
    critics = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(critic)]) for critic in learned]
    np.testing.assert_array_equal(critics[0], critics[1])
    assert not np.array_equal(critics[0], critics[2])


def test_skills_of_a_controller():
    unit = controller.make(QUICK, perfect_skills(), vector(5))
    np.testing.assert_allclose(unit.skill(jnp.array([[0.3, 0.4], [-0.9, 0.0]])), [[0.6, 0.8], [-1, 0]], atol=1e-6)
    listed = controller.make(QUICK, perfect_skills(discrete=True), vector(5))
    np.testing.assert_array_equal(listed.skill(jnp.array([3, 0])), np.eye(8)[[3, 0]])
    gaussian = perfect_skills()._replace(skills=SkillSpace("normals", 4))
    free = controller.make(QUICK, gaussian, vector(5))  # CIC's prior has no unit length
    np.testing.assert_allclose(free.skill(jnp.full((1, 4), -0.5)), np.full((1, 4), -0.75))
    explored = np.asarray(free.explore(jax.random.key(0), 1000))
    assert explored.min() < -0.95 and explored.max() > 0.95 and abs(explored.mean()) < 0.05


def test_skill_steps_must_divide_the_horizon():
    with pytest.raises(UserError, match=r"skill_steps 7 does not divide the task's 40 steps; try 8"):
        downstream.schedule(dataclasses.replace(QUICK, skill_steps=7), 40)
    plan = downstream.schedule(dataclasses.replace(QUICK, macro_steps=20_000, skill_steps=25), 200)
    assert plan.macro_length == 8 and plan.iterations == 313 and plan.capacity == 313 * 8


def test_categorical_controller_learns():
    plan, agent, _, program = goal_helpers.build(dataclasses.replace(QUICK, macro_steps=3_840), discrete=True)
    skills, state = agent.init(None), program.init(jax.random.key(0))
    judge = lambda state: program.evaluate(state.agent, skills, jax.random.key(5)).success.mean()
    before = judge(state)
    for _ in range(plan.iterations):
        state, metrics = program.iterate(state, skills)
    assert before < 0.5 and judge(state) >= 0.9
    assert metrics["updates"] == 25 * (plan.iterations - plan.warmup_iterations)


def test_goal_tasks_can_be_moved():
    near, far = (goals.make("point", "rs_rg", center=center) for center in (None, (50.0, -20.0)))
    keys = jax.random.split(jax.random.key(0), 64)
    (start, goal), (start_far, goal_far) = (jax.jit(jax.vmap(task.reset))(keys) for task in (near, far))
    np.testing.assert_allclose(goal_far - goal, [[50, -20]] * 64, atol=1e-4)
    np.testing.assert_allclose(start_far.info["position"] - start.info["position"], [[50, -20]] * 64, atol=1e-4)
