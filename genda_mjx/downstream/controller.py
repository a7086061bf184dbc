"""pi_h(z | s, goal): soft actor-critic whose action is a skill, held for a while by the frozen skill policy.

Two kinds with the same functions: skills that are vectors get a tanh-Gaussian, skills that are a list a categorical.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from genda_mjx import encoders, networks
from genda_mjx.agents import Agent, AgentState, sac
from genda_mjx.agents.base import Metrics, Params, begin, grad, pick, track
from genda_mjx.config import UserError


@dataclasses.dataclass(frozen=True)
class ControllerConfig:
    """The controller and its training: the paper's values where it gives them, else the official code's."""

    macro_steps: int = 20_000  # training budget; an episode counts as horizon / skill_steps, also when it ends early
    skill_steps: int = 25  # K, environment steps that a skill is held
    num_episodes: int = 8  # N, episodes side by side, then gradient steps
    gradient_steps: int = 200  # after each N episodes
    batch_size: int = 256  # B, macro transitions per gradient step
    warmup_episodes: int = 100  # episodes with random skills before learning, rounded up to whole N
    her_ratio: float = 0.8  # share of sampled transitions whose goal becomes a later position of the same episode
    goal: Literal["place", "way"] = "place"  # what it sees of a goal: where it is (code), or the way that is left
    hidden: int = 1024  # width of both hidden layers (code: 512)
    cnn_depth: int = 48  # channels of the first of four convolutions, over skills that see pixels
    contrast: float = 1.0  # of the pictures, as in train.py
    actor_rate: float = 3e-4  # Adam (code: 1e-4)
    critic_rate: float = 3e-4  # Adam
    alpha_rate: float = 1e-3  # Adam, on log alpha
    discount: float = 0.99  # gamma, per macro step
    ema_rate: float = 0.005  # step of the critics' moving average
    initial_alpha: float = 0.01  # temperature at the start; learned
    entropy_share: float = 0.1  # skills in a list only: entropy target as a share of the most there can be
    eval_every: int = 200  # episodes between evaluations, rounded up to whole N
    eval_episodes: int = 48  # deterministic episodes in an evaluation

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


# small: minutes on a CPU; not the paper's numbers, but its gradient steps: with a quarter of them the point never found
# its way through corridors (docs/downstream.md). Its discount: a few skills take the point to its goal, and at 0.99 a
# wasted one costs no more than the critics' error (docs/log/controller-discount.md).
PRESETS: dict[str, ControllerConfig] = {
    "paper": ControllerConfig(),
    "small": ControllerConfig(
        hidden=128, cnn_depth=8, actor_rate=1e-3, critic_rate=1e-3, warmup_episodes=40, discount=0.95
    ),
}


def matching_preset(run: str) -> str:
    """The controller's preset for a run made with --preset `run`."""
    return run if run in PRESETS else "paper"


def validate(config: ControllerConfig) -> None:
    may_be_zero = ("warmup_episodes", "her_ratio", "discount", "entropy_share")
    numbers = [field for field in dataclasses.fields(config) if not isinstance(getattr(config, field.name), str)]
    for field in numbers:
        value = getattr(config, field.name)
        if value < 0 or (value == 0 and field.name not in may_be_zero):
            least = "not be negative" if field.name in may_be_zero else "be greater than 0"
            raise UserError(f"--controller.{field.name} is {value}; it must {least}")
    for name in ("her_ratio", "discount", "ema_rate", "entropy_share"):
        if getattr(config, name) > 1:
            raise UserError(f"--controller.{name} is {getattr(config, name)}; it must lie in [0, 1]")


@flax.struct.dataclass
class MacroBatch:
    """B macro transitions."""

    seen: Any  # (observation, goal [B, g])
    action: Array  # [B, d] in (-1, 1), or [B] index into the list of skills
    seen_next: Any
    reward: Array  # [B] 1 on success
    done: Array  # [B] 1 on success: nothing follows


class Controller(NamedTuple):
    """Pure functions, like an agent's."""

    init: Callable[[Array], AgentState]  # key -> state
    see: Callable[[Any, Array, Array], Any]  # observation, position and goal [B, g] (m, world) -> seen
    act: Callable[[AgentState, Any, Array | None], Array]  # state, seen, key (None: deterministic) -> action
    explore: Callable[[Array, int], Array]  # key, n -> n uniform actions
    skill: Callable[[Array], Array]  # action -> z [B, d]
    update: Callable[[AgentState, MacroBatch, Array], tuple[AgentState, Metrics]]


def make(config: ControllerConfig, agent: Agent, seen: Any) -> Controller:
    """The controller for an agent's skills; seen: shapes of (observation, goal)."""
    skills, dim = agent.skills, agent.skills.dim
    rates = {name: getattr(config, name) for name in ("actor_rate", "critic_rate", "alpha_rate", "initial_alpha")}
    rates |= {
        "discount": config.discount,
        "hidden": config.hidden,
        "eye": encoders.Eye.of(config),
        "alpha_weight": sac.log_alpha_itself,
    }
    if skills.is_list:
        actor_critic = Categorical(actions=dim, target_entropy=config.entropy_share * jnp.log(dim).item(), **rates)
    else:
        actor_critic = Continuous(actions=dim, target_entropy=-dim, **rates)

    def init(key: Array) -> AgentState:
        params = actor_critic.init(*jax.random.split(key), seen, seen, 0)
        return begin(params, ["critic"], actor_critic.init_optimizers(params))

    def update(state: AgentState, batch: MacroBatch, key: Array) -> tuple[AgentState, Metrics]:
        state, metrics = actor_critic.learn(state, batch, key)
        return track(state, config.ema_rate), metrics

    def act(state: AgentState, seen: Any, key: Array | None) -> Array:
        return actor_critic.choose(state.params, seen, key)

    see = {"place": see_place, "way": see_way}[config.goal]
    return Controller(init, see, act, actor_critic.explore, skills.from_action, update)


def see_place(observation: Any, position: Array, goal: Array) -> tuple[Any, Array]:
    """The observation and where the goal is."""
    return observation, goal


def see_way(observation: Any, position: Array, goal: Array) -> tuple[Any, Array]:
    """The observation and the way that is left. Observed places are in units of a random policy's way (0.3 m for the
    quadruped), goals in metres; here networks need not find out."""
    return observation, goal - position


class Continuous(sac.ActorCritic):
    """The agents' own SAC; the goal is part of the state, so the place of a skill in its inputs stays empty."""

    def explore(self, key: Array, n: int) -> Array:
        return jax.random.uniform(key, (n, self.actions), minval=-1.0, maxval=1.0)

    def choose(self, params: Params, seen: Any, key: Array | None) -> Array:
        return self.act(params, seen, no_skill(seen), key)

    def learn(self, state: AgentState, batch: MacroBatch, key: Array) -> tuple[AgentState, Metrics]:
        key_critic, key_actor = jax.random.split(key)
        nothing = no_skill(batch.seen)
        rows = sac.Rows(batch.seen, batch.action, batch.seen_next, batch.seen, batch.seen_next)
        discount = self.discount * (1 - batch.done)
        state, metrics = self.critic_step(state, rows, nothing, batch.reward, discount, key_critic)

        def q(a: Array) -> Array:
            return self.q(state.params["critic"], batch.seen, nothing, a)

        state, more = self.policy_step(state, batch.seen, nothing, q, key_actor)
        return state, metrics | more


def no_skill(seen: Any) -> Array:
    """An empty skill [B, 0]."""
    return jnp.zeros((len(jax.tree.leaves(seen)[0]), 0))


def soft_value(logits: Array, q: Array, alpha: Array) -> Array:
    """[B] E_pi[min q - alpha log pi] for logits [B, D] and q [2, B, D], summed exactly over the D skills."""
    log_pi = jax.nn.log_softmax(logits)
    return (jnp.exp(log_pi) * (q.min(0) - alpha * log_pi)).sum(-1)


def entropy(logits: Array) -> Array:
    """Entropy [B] of categoricals with logits [B, D]."""
    log_pi = jax.nn.log_softmax(logits)
    return -(jnp.exp(log_pi) * log_pi).sum(-1)


class Categorical(sac.ActorCritic):
    """Discrete SAC (Christodoulou 2019): the critics value all D skills at once, expectations are sums."""

    def init(self, key_actor: Array, key_critic: Array, seen: Any, observation: Any, skill: int) -> Params:
        row = encoders.blank(seen)
        return {
            "actor": self._actor.init(key_actor, row),
            "critic": self._critic.init(key_critic, row),
            "log_alpha": jnp.log(jnp.float32(self.initial_alpha)),
        }

    @property
    def _actor(self) -> networks.MLP:
        return networks.MLP(self.hidden, self.actions, eye=self.eye)

    @property
    def _critic(self) -> networks.nn.Module:
        return networks.twin_critic(self.hidden, self.actions, eye=self.eye)

    def explore(self, key: Array, n: int) -> Array:
        return jax.random.randint(key, (n,), 0, self.actions)

    def choose(self, params: Params, seen: Any, key: Array | None) -> Array:
        """[B] indices; without a key the most probable skill."""
        logits = self._actor.apply(params["actor"], seen)
        return logits.argmax(-1) if key is None else jax.random.categorical(key, logits)

    def target(self, state: AgentState, batch: MacroBatch) -> Array:
        """[B] soft Bellman target."""
        logits = self._actor.apply(state.params["actor"], batch.seen_next)
        q_next = self._critic.apply(state.targets["critic"], batch.seen_next)
        value = soft_value(logits, q_next, jnp.exp(state.params["log_alpha"]))
        return stop_gradient(batch.reward + self.discount * (1 - batch.done) * value)

    def critic_loss(self, params: Params, batch: MacroBatch, target: Array) -> tuple[Array, Array]:
        """SAC's loss, on the values of the skills that were taken."""
        q = self._critic.apply(params["critic"], batch.seen)
        taken = jnp.take_along_axis(q, batch.action[None, :, None], axis=-1)[..., 0]
        return sac.critic_loss(taken, target), taken

    def policy_loss(self, params: Params, critic: Params, batch: MacroBatch) -> tuple[Array, tuple[Array, Array]]:
        """Actor: the soft value itself, negative. Temperature: as SAC's, with the exact entropy."""
        logits, alpha = self._actor.apply(params["actor"], batch.seen), jnp.exp(params["log_alpha"])
        actor = -soft_value(logits, self._critic.apply(critic, batch.seen), stop_gradient(alpha)).mean()
        log_prob = -entropy(logits)
        temperature = sac.temperature_loss(self.alpha_weight(params["log_alpha"]), log_prob, self.target_entropy)
        return actor + temperature, (actor, log_prob)

    def learn(self, state: AgentState, batch: MacroBatch, key: Array) -> tuple[AgentState, Metrics]:
        """Learns the critic, then actor and temperature through the new critic; nothing is sampled."""
        target = self.target(state, batch)
        (critic_loss, q), grads = grad(self.critic_loss, pick(state.params, ["critic"]), batch, target)
        metrics = {"critic_loss": critic_loss, "reward": batch.reward.mean(), "q": q.mean()}
        metrics["alpha"] = jnp.exp(state.params["log_alpha"])
        state = self.advance(state, grads)
        policy = pick(state.params, ["actor", "log_alpha"])
        (_, (actor_loss, log_prob)), grads = grad(self.policy_loss, policy, state.params["critic"], batch)
        metrics |= {"actor_loss": actor_loss, "log_prob": log_prob.mean()}
        return self.advance(state, grads), metrics
