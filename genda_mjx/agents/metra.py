"""METRA (Park et al. 2024): GenDa's representation on the skills as they were rolled out, and SAC on the state itself.

`--discrete` makes the skills a list of `--skill_dim` one-hots; phi and the reward then see them centred.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from genda_mjx import encoders
from genda_mjx.agents import representation as rep
from genda_mjx.agents import sac
from genda_mjx.agents.base import Agent, AgentState, Batch, Metrics, Params, Spec, advance, begin, grad, pick, track
from genda_mjx.agents.skills import LIST_LENGTH, SkillSpace
from genda_mjx.config import Config

MODEL = ("phi", "log_lambda")


@dataclass(frozen=True)
class Options(rep.ConstraintOptions):
    """Options that only METRA has."""

    discrete: bool = False  # skills are a list of one-hots instead of directions, 16 of them by default

    def defaults(self) -> dict[str, Any]:
        return {"skill_dim": LIST_LENGTH} if self.discrete else {}


def make(config: Config, spec: Spec) -> Agent:
    options: Options = config.agent
    phi = rep.network(config, spec)
    policy = sac.baseline(config, spec)
    adam = optax.adam(config.learning_rate)
    skills = SkillSpace("list" if options.discrete else "directions", config.skill_dim)

    def init(key: Array) -> AgentState:
        key_phi, key_actor, key_critic = jax.random.split(key, 3)
        params = policy.init(key_actor, key_critic, spec.observation, spec.observation, config.skill_dim)
        params["phi"] = phi.init(key_phi, encoders.blank(spec.observation))
        params["log_lambda"] = jnp.log(jnp.float32(options.initial_lambda))
        optimizers = policy.init_optimizers(params) | {"model": adam.init(pick(params, MODEL))}
        return begin(params, ["critic"], optimizers)

    def latent_step(params: Params, batch: Batch) -> Array:
        return rep.latent_step(lambda s: phi.apply(params["phi"], s), batch.s, batch.s_next)

    def model_loss(params: Params, batch: Batch) -> tuple[Array, Metrics]:
        """The losses of phi and lambda; the dual loss is linear in log lambda, as in the official code."""
        step, z, multiplier = latent_step(params, batch), skills.target(batch.z_roll), jnp.exp(params["log_lambda"])
        constraint = rep.step_constraint(step, options.slack)
        metrics = {
            "phi_loss": rep.representation_loss(step, z, constraint, multiplier),
            "lambda_loss": rep.multiplier_loss(params["log_lambda"], constraint),
            "phi_dot": rep.reward(step, z).mean(),
            "constraint": constraint.mean(),
            "lambda": multiplier,
        }
        return metrics["phi_loss"] + metrics["lambda_loss"], metrics

    def update(state: AgentState, batch: Batch, key: Array) -> tuple[AgentState, Metrics]:
        """Learns phi and lambda, then SAC with the reward of the new phi."""
        (_, metrics), grads = grad(model_loss, pick(state.params, MODEL), batch)
        state = advance(state, "model", adam, grads)
        reward = rep.reward(latent_step(state.params, batch), skills.target(batch.z_roll))
        state, more = policy.step(state, sac.Rows.of(batch), batch.z_roll, reward, *jax.random.split(key))
        return track(state, config.ema_rate), metrics | more

    def represent(state: AgentState, obs: Any) -> Array:
        return phi.apply(state.params["phi"], obs)

    return Agent(
        init=init,
        skills=skills,
        act=policy.act_on_state,
        update=update,
        represent=represent,
        shown=("phi_dot", "lambda", "alpha"),
        scratch_rows=24,
    )
