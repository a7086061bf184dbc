"""CSF (Zheng et al. 2024): phi from a contrastive loss alone, and critics that predict it: successor features psi.

A critic has one output per skill dimension, and its value is psi . z. There is no multiplier, and entropy enters
through the actor only. `--discrete` makes the skills a list of `--skill_dim` one-hots; where latent steps are compared
with them, with the negatives too, they are centred.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient
from jax.nn import logsumexp

from genda_mjx import encoders
from genda_mjx.agents import representation as rep
from genda_mjx.agents import sac
from genda_mjx.agents.base import Agent, AgentState, Batch, Metrics, Params, Spec, advance, begin, grad, pick, track
from genda_mjx.agents.skills import LIST_LENGTH, SkillSpace
from genda_mjx.config import AgentOptions, Config

NEGATIVES = 256  # prior skills drawn afresh for each gradient step and shared by its batch
# The CSF repository's own schedule, 8 episodes and then 50 updates (Ant): the paper ran DIAYN and CIC with it, and
# CSF with GenDa's.
SCHEDULE = {"num_envs": 8, "utd": 50 / (8 * 200)}
NEGATIVE_WEIGHT = 5.0  # of their log-sum-exp, in all official scripts


@dataclass(frozen=True)
class Options(AgentOptions):
    """Options that only CSF has."""

    discrete: bool = False  # skills are a list of one-hots instead of directions, 16 of them by default

    def defaults(self) -> dict[str, Any]:
        return {"skill_dim": LIST_LENGTH} if self.discrete else {}


def contrastive_loss(step: Array, z: Array, negatives: Array) -> Array:
    """Latent steps [B, d] along their own skill [B, d] and along no other [K, d].

    As in the official code, the positive is not in the sum, and the sum is not divided by K.
    """
    return -(rep.reward(step, z) - NEGATIVE_WEIGHT * logsumexp(step @ negatives.T, axis=-1)).mean()


def values(psi: Array, z: Array) -> Array:
    """[2, B] value of the skill z [B, d] under the successor features [2, B, d] of both critics."""
    return (psi * z).sum(-1)


def successor_target(step: Array, psi_next: Array, z: Array, discount: float) -> Array:
    """[B, d] latent step and discounted psi' of the critic, chosen for each sample, that values its skill less."""
    pessimist = values(psi_next, z).argmin(0)
    chosen = jnp.take_along_axis(psi_next, pessimist[None, :, None], axis=0)[0]
    return stop_gradient(step + discount * chosen)


def successor_loss(psi: Array, target: Array) -> Array:
    """Squared error of psi [2, B, d]: mean over batch and dimensions, sum over the critics."""
    return ((psi - target) ** 2).mean((1, 2)).sum()


def make(config: Config, spec: Spec) -> Agent:
    options: Options = config.agent
    phi = rep.network(config, spec)
    policy = sac.baseline(config, spec, values=config.skill_dim)
    adam = optax.adam(config.learning_rate)
    skills = SkillSpace("list" if options.discrete else "directions", config.skill_dim)

    def init(key: Array) -> AgentState:
        key_phi, key_actor, key_critic = jax.random.split(key, 3)
        params = policy.init(key_actor, key_critic, spec.observation, spec.observation, config.skill_dim)
        params["phi"] = phi.init(key_phi, encoders.blank(spec.observation))
        optimizers = policy.init_optimizers(params) | {"model": adam.init(pick(params, ["phi"]))}
        return begin(params, ["critic"], optimizers)

    def latent_step(params: Params, batch: Batch) -> Array:
        return rep.latent_step(lambda s: phi.apply(params["phi"], s), batch.s, batch.s_next)

    def model_loss(params: Params, batch: Batch, negatives: Array) -> tuple[Array, Metrics]:
        step, target = latent_step(params, batch), skills.target(batch.z_roll)
        loss = contrastive_loss(step, target, negatives)
        return loss, {"phi_loss": loss, "phi_dot": rep.reward(step, target).mean()}

    def critic_step(state: AgentState, batch: Batch, step: Array, key: Array) -> tuple[AgentState, Metrics]:
        """Moves psi towards the latent step and what follows it; the actor of `state` chooses a'."""
        z, along = batch.z_roll, skills.target(batch.z_roll)
        a_next = policy.act(state.params, batch.s_next, z, key)
        psi_next = policy.critics(state.targets["critic"], batch.s_next, z, a_next)
        target = successor_target(step, psi_next, along, config.discount)

        def loss(p: Params) -> tuple[Array, Array]:
            psi = policy.critics(p["critic"], batch.s, z, batch.a)
            return successor_loss(psi, target), psi

        (value, psi), grads = grad(loss, pick(state.params, ["critic"]))
        metrics = {"critic_loss": value, "reward": rep.reward(step, along).mean(), "q": values(psi, along).mean()}
        return policy.advance(state, grads), metrics

    def update(state: AgentState, batch: Batch, key: Array) -> tuple[AgentState, Metrics]:
        """Learns phi, then psi on the steps of the new phi, then the actor through the new psi."""
        key_negatives, key_next, key_actor = jax.random.split(key, 3)
        negatives = skills.target(skills.sample(key_negatives, NEGATIVES))
        (_, metrics), grads = grad(model_loss, pick(state.params, ["phi"]), batch, negatives)
        state = advance(state, "model", adam, grads)
        state, more = critic_step(state, batch, latent_step(state.params, batch), key_next)
        z, critic = batch.z_roll, state.params["critic"]

        def q(a: Array) -> Array:
            return values(policy.critics(critic, batch.s, z, a), skills.target(z))

        state, most = policy.policy_step(state, batch.s, z, q, key_actor)
        return track(state, config.ema_rate), metrics | more | most

    def represent(state: AgentState, obs: Any) -> Array:
        return phi.apply(state.params["phi"], obs)

    return Agent(
        init=init,
        skills=skills,
        act=policy.act_on_state,
        update=update,
        represent=represent,
        shown=("phi_dot", "alpha"),
        scratch_rows=29,
    )
