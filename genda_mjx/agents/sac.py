"""Soft actor-critic over skills, the half that every agent shares: the losses, then the two steps made of them.

Losses take network outputs; [2, B] is the twin critic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient

from genda_mjx import encoders, networks
from genda_mjx.agents.base import AgentState, Batch, Metrics, Params, Spec, advance, grad, pick
from genda_mjx.config import Config


def critic_target(reward: Array, q_next: Array, log_prob_next: Array, alpha: Array, discount: float) -> Array:
    """Soft Bellman target [B] from q_next [2, B]. Episodes are cut, never ended, so it always bootstraps."""
    return stop_gradient(reward + discount * (q_next.min(0) - alpha * log_prob_next))


def critic_loss(q: Array, target: Array) -> Array:
    """Half the squared Bellman error of q [2, B], mean over both critics and the batch."""
    return 0.5 * ((q - target) ** 2).mean()


def actor_loss(q: Array, log_prob: Array, alpha: Array) -> Array:
    """Prefer actions that the pessimistic critic of q [2, B] values, and keep entropy."""
    return (stop_gradient(alpha) * log_prob - q.min(0)).mean()


def temperature_loss(weight: Array, log_prob: Array, target_entropy: float) -> Array:
    """alpha rises while entropy is below the target. weight: alpha itself (GenDa) or its logarithm (the baselines)."""
    return -weight * (stop_gradient(log_prob).mean() + target_entropy)


class Rows(NamedTuple):
    """A batch as the actor-critic sees it: the critic the state, the actor what the agent shows it."""

    s: Any  # observations
    a: Array  # [B, A]
    s_next: Any
    seen: Any  # what the actor sees of s: l [B, l], or the observation itself
    seen_next: Any  # and of s_next

    @staticmethod
    def of(batch: Batch) -> "Rows":
        """The rows for an actor that sees the state itself."""
        return Rows(batch.s, batch.a, batch.s_next, seen=batch.s, seen_next=batch.s_next)


@dataclass(frozen=True)
class ActorCritic:
    """Actor, twin critic and temperature as functions of parameters "actor", "critic", "log_alpha"; holds none."""

    actions: int
    hidden: int
    actor_rate: float  # learning rates of Adam
    critic_rate: float
    alpha_rate: float  # 0 keeps alpha as it is
    discount: float
    initial_alpha: float
    target_entropy: float
    alpha_weight: Callable[[Array], Array] = jnp.exp  # of log alpha, in its loss
    values: int = 1  # outputs of a critic; CSF has one per skill dimension
    bf16: bool = False
    eye: encoders.Eye = encoders.PAPER  # where a picture is seen

    def init(self, key_actor: Array, key_critic: Array, seen: Any, observation: Any, skill: int) -> Params:
        """Parameters for an actor that sees the tree `seen` and a critic that sees `observation`, both of shapes."""
        z, a = jnp.zeros((1, skill)), jnp.zeros((1, self.actions))
        return {
            "actor": self._actor.init(key_actor, encoders.blank(seen), z),
            "critic": self._critic.init(key_critic, encoders.blank(observation), z, a),
            "log_alpha": jnp.log(jnp.float32(self.initial_alpha)),
        }

    @property
    def _optimizers(self) -> dict[str, optax.GradientTransformation]:
        rates = {"actor": self.actor_rate, "critic": self.critic_rate, "log_alpha": self.alpha_rate}
        return {name: optax.adam(rate) for name, rate in rates.items()}

    def init_optimizers(self, params: Params) -> dict[str, optax.OptState]:
        return {name: adam.init({name: params[name]}) for name, adam in self._optimizers.items()}

    def advance(self, state: AgentState, grads: Params) -> AgentState:
        """Takes one optimiser step of each network that `grads` names."""
        for name in grads:
            state = advance(state, name, self._optimizers[name], pick(grads, [name]))
        return state

    @property
    def _actor(self) -> networks.Gaussian:
        return networks.Gaussian(self.hidden, self.actions, dtype=networks.precision(self.bf16), eye=self.eye)

    @property
    def _critic(self) -> networks.nn.Module:
        return networks.twin_critic(self.hidden, self.values, networks.precision(self.bf16), self.eye)

    def policy(self, params: Params, seen: Any, z: Array) -> tuple[Array, Array]:
        """Mean and log std [B, A] before tanh."""
        return self._actor.apply(params["actor"], seen, z)

    def act(self, params: Params, seen: Any, z: Array, key: Array | None) -> Array:
        """Actions [B, A]; without a key the deterministic ones."""
        mean, log_std = self.policy(params, seen, z)
        return jnp.tanh(mean) if key is None else networks.sample_tanh_gaussian(mean, log_std, key)[0]

    def act_on_state(self, state: AgentState, obs: Any, z: Array, key: Array | None = None) -> Array:
        """`Agent.act` of an agent whose actor sees the state itself."""
        return self.act(state.params, obs, z, key)

    def critics(self, critic: Params, s: Any, z: Array, a: Array) -> Array:
        """Outputs [2, B, values] of both critics."""
        return self._critic.apply(critic, s, z, a)

    def q(self, critic: Params, s: Any, z: Array, a: Array) -> Array:
        """Values [2, B] of critics that have one output."""
        return self.critics(critic, s, z, a)[..., 0]

    def critic_step(
        self, state: AgentState, rows: Rows, z: Array, reward: Array, discount: Array | float, key: Array
    ) -> tuple[AgentState, Metrics]:
        """Moves the critic towards the soft Bellman target; the actor and temperature of `state` choose a'."""
        a_next, log_prob_next = networks.sample_tanh_gaussian(*self.policy(state.params, rows.seen_next, z), key)
        q_next = self.q(state.targets["critic"], rows.s_next, z, a_next)
        target = critic_target(reward, q_next, log_prob_next, jnp.exp(state.params["log_alpha"]), discount)

        def loss(p: Params) -> tuple[Array, Array]:
            q = self.q(p["critic"], rows.s, z, rows.a)
            return critic_loss(q, target), q

        (value, q), grads = grad(loss, pick(state.params, ["critic"]))
        return self.advance(state, grads), {"critic_loss": value, "reward": reward.mean(), "q": q.mean()}

    def policy_step(
        self, state: AgentState, seen: Any, z: Array, q: Callable[[Array], Array], key: Array
    ) -> tuple[AgentState, Metrics]:
        """Learns actor and temperature through q(a [B, A]) -> [2, B]."""

        def loss(p: Params) -> tuple[Array, tuple[Array, Array]]:
            a, log_prob = networks.sample_tanh_gaussian(*self.policy(p, seen, z), key)
            actor = actor_loss(q(a), log_prob, jnp.exp(p["log_alpha"]))
            temperature = temperature_loss(self.alpha_weight(p["log_alpha"]), log_prob, self.target_entropy)
            return actor + temperature, (actor, log_prob)

        (_, (actor, log_prob)), grads = grad(loss, pick(state.params, ["actor", "log_alpha"]))
        metrics = {"actor_loss": actor, "log_prob": log_prob.mean(), "alpha": jnp.exp(state.params["log_alpha"])}
        return self.advance(state, grads), metrics

    def step(
        self, state: AgentState, rows: Rows, z: Array, reward: Array, key_critic: Array, key_actor: Array
    ) -> tuple[AgentState, Metrics]:
        """Learns the critic, then actor and temperature through the new critic."""
        state, metrics = self.critic_step(state, rows, z, reward, self.discount, key_critic)

        def q(a: Array) -> Array:
            return self.q(state.params["critic"], rows.s, z, a)

        state, more = self.policy_step(state, rows.seen, z, q, key_actor)
        return state, metrics | more


def log_alpha_itself(log_alpha: Array) -> Array:
    """The baselines' weight in the temperature loss."""
    return log_alpha


def baseline(config: Config, spec: Spec, **settings) -> ActorCritic:
    """The actor-critic of METRA and other baselines: half GenDa's entropy target, a temperature loss in log alpha."""
    return of(config, spec.action, entropy=-0.5, alpha_weight=log_alpha_itself, **settings)


def of(config: Config, actions: int, entropy: float, **settings) -> ActorCritic:
    """The actor-critic of a run: sizes and rates are the same for all agents, `settings` are an agent's own.

    entropy: that an agent keeps its actions at, nats per motor, unless the run asks for another.
    """
    entropy = entropy if config.entropy_target is None else config.entropy_target
    shared = {
        "hidden": config.hidden,
        "actor_rate": config.learning_rate,
        "critic_rate": config.learning_rate,
        "alpha_rate": config.learning_rate,
        "discount": config.discount,
        "initial_alpha": config.initial_alpha,
        "target_entropy": entropy * actions,
        "bf16": config.bf16,
        "eye": encoders.Eye.of(config),
    }
    return ActorCritic(actions=actions, **(shared | settings))
