"""METRA (Park et al. 2024): GenDa's representation on the skills as they were rolled out, and SAC on the state itself.

`--discrete` makes the skills a list of `--skill_dim` one-hots; phi and the reward then see them centred.
"""

import jax
import jax.numpy as jnp
import optax
from jax import Array

from genda_mjx import networks
from genda_mjx.agents import representation as rep
from genda_mjx.agents import sac, skills
from genda_mjx.agents.base import Agent, AgentState, Batch, Metrics, Params, Sizes, advance, pick, track
from genda_mjx.config import Config

MODEL = ("phi", "log_lambda")


def make(config: Config, sizes: Sizes) -> Agent:
    phi = networks.MLP(config.hidden, config.skill_dim, jnp.bfloat16 if config.bf16 else jnp.float32)
    policy = sac.of(config, sizes.action, target_entropy=-sizes.action / 2, alpha_weight=lambda log_alpha: log_alpha)
    adam = optax.adam(config.learning_rate)
    prior = skills.one_hots if config.discrete else skills.directions
    target_of = skills.centred if config.discrete else lambda z: z  # what a latent step should follow

    def init(key: Array) -> AgentState:
        key_phi, key_actor, key_critic = jax.random.split(key, 3)
        params = policy.init(key_actor, key_critic, sizes.observation, sizes.observation, config.skill_dim)
        params["phi"] = phi.init(key_phi, jnp.zeros((1, sizes.observation)))
        params["log_lambda"] = jnp.log(jnp.float32(config.initial_lambda))
        return AgentState(
            params=params,
            targets={"critic": jax.tree.map(jnp.copy, params["critic"])},
            optimizers=policy.init_optimizers(params) | {"model": adam.init(pick(params, MODEL))},
            buffers={},
            updates=jnp.zeros((), jnp.int32),
        )

    def act(state: AgentState, obs: Array, z: Array, key: Array | None = None) -> Array:
        return policy.act(state.params, obs, z, key)

    def latent_step(params: Params, batch: Batch) -> Array:
        """[B, d] phi(s') - phi(s), in one forward."""
        now, following = jnp.split(phi.apply(params["phi"], jnp.concatenate([batch.s, batch.s_next])), 2)
        return following - now

    def model_loss(params: Params, batch: Batch) -> tuple[Array, Metrics]:
        """phi and lambda; the dual loss is linear in log lambda, as officially."""
        step, z, multiplier = latent_step(params, batch), target_of(batch.z_roll), jnp.exp(params["log_lambda"])
        constraint = rep.step_constraint(step, config.slack)
        metrics = {
            "phi_loss": rep.representation_loss(step, z, constraint, multiplier),
            "lambda_loss": rep.multiplier_loss(params["log_lambda"], constraint),
            "phi_dot": rep.reward(step, z).mean(),
            "constraint": constraint.mean(),
            "lambda": multiplier,
        }
        return metrics["phi_loss"] + metrics["lambda_loss"], metrics

    def update(state: AgentState, batch: Batch, key: Array) -> tuple[AgentState, Metrics]:
        """phi and lambda, then SAC with the reward of the new phi."""
        grads, metrics = jax.grad(model_loss, has_aux=True)(pick(state.params, MODEL), batch)
        state = advance(state, "model", adam, grads)
        reward = rep.reward(latent_step(state.params, batch), target_of(batch.z_roll))
        rows = sac.Rows(batch.s, batch.a, batch.s_next, seen=batch.s, seen_next=batch.s_next)
        state, more = policy.step(state, rows, batch.z_roll, reward, *jax.random.split(key))
        return track(state, config.ema_rate), metrics | more

    return Agent(
        init=init,
        sample_skill=lambda key, n: prior(key, n, config.skill_dim),
        act=act,
        update=update,
        represent=lambda state, obs: phi.apply(state.params["phi"], obs),
        list_skills=(lambda n: skills.each_in_turn(n, config.skill_dim)) if config.discrete else None,
    )
