"""DIAYN (Eysenbach et al. 2019): a list of skills that a classifier can tell apart by the states they lead to.

As the CSF repository runs it: 50 skills, the classifier sees s' alone, and the temperature stays at 0.1 (both numbers
are presets of --algo diayn).
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from genda_mjx import encoders
from genda_mjx.agents import csf, sac
from genda_mjx.agents import representation as rep
from genda_mjx.agents.base import Agent, AgentState, Batch, Metrics, Params, Spec, advance, begin, grad, pick, track
from genda_mjx.agents.skills import SkillSpace
from genda_mjx.config import AgentOptions, Config


def skill_reward(logits: Array, z: Array) -> Array:
    """[B] log q(z | s') - log p(z): how much s' tells of its skill; logits [B, d], one-hots z [B, d], uniform p."""
    return (jax.nn.log_softmax(logits) * z).sum(-1) + jnp.log(z.shape[-1])


def discriminator_loss(logits: Array, z: Array) -> Array:
    """Cross-entropy, less the constant log d of the reward."""
    return -skill_reward(logits, z).mean()


@dataclass(frozen=True)
class Options(AgentOptions):
    """Other defaults, as in the CSF repository's scripts."""

    learns_temperature = False

    def defaults(self) -> dict[str, Any]:
        return {"skill_dim": 50, "initial_alpha": 0.1} | csf.SCHEDULE


def make(config: Config, spec: Spec) -> Agent:
    discriminator = rep.network(config, spec)
    policy = sac.baseline(config, spec, alpha_rate=0.0)
    adam = optax.adam(config.learning_rate)

    def init(key: Array) -> AgentState:
        key_discriminator, key_actor, key_critic = jax.random.split(key, 3)
        params = policy.init(key_actor, key_critic, spec.observation, spec.observation, config.skill_dim)
        params["discriminator"] = discriminator.init(key_discriminator, encoders.blank(spec.observation))
        optimizers = policy.init_optimizers(params) | {"model": adam.init(pick(params, ["discriminator"]))}
        return begin(params, ["critic"], optimizers)

    def model_loss(params: Params, batch: Batch) -> tuple[Array, Metrics]:
        logits = discriminator.apply(params["discriminator"], batch.s_next)
        loss = discriminator_loss(logits, batch.z_roll)
        right = logits.argmax(-1) == batch.z_roll.argmax(-1)
        return loss, {"discriminator_loss": loss, "accuracy": right.mean()}

    def update(state: AgentState, batch: Batch, key: Array) -> tuple[AgentState, Metrics]:
        """Learns the classifier, then SAC with the reward of the new one."""
        (_, metrics), grads = grad(model_loss, pick(state.params, ["discriminator"]), batch)
        state = advance(state, "model", adam, grads)
        reward = skill_reward(discriminator.apply(state.params["discriminator"], batch.s_next), batch.z_roll)
        state, more = policy.step(state, sac.Rows.of(batch), batch.z_roll, reward, *jax.random.split(key))
        return track(state, config.ema_rate), metrics | more

    return Agent(
        init=init,
        skills=SkillSpace("list", config.skill_dim),
        act=policy.act_on_state,
        update=update,
        shown=("accuracy", "alpha"),
        scratch_rows=21,
    )
