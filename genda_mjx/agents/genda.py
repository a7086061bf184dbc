"""GenDa: relabelled skills, a representation kept uniform, and a policy that sees only what phi does not.

The order of an update is the official code's: (CIB, phi, lambda) from the old parameters, critic, actor and
temperature, moving averages. The gate learns with the first, whose labels it sees; no other step touches it. See
docs/fidelity.md for every choice between the paper and that code.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.lax import stop_gradient

from genda_mjx import devices, encoders, networks
from genda_mjx.agents import cib, relabel, sac
from genda_mjx.agents import representation as rep
from genda_mjx.agents.base import Agent, AgentState, Batch, Metrics, Params, Spec, advance, begin, grad, pick, track
from genda_mjx.agents.skills import SkillSpace
from genda_mjx.config import Config, UserError, check_not_negative, check_positive, check_shares


@dataclass(frozen=True)
class Options(rep.ConstraintOptions):
    """What only GenDa has: relabelling, the uniformity loss and the information bottleneck."""

    beta: float = 1.0  # weight of the uniformity loss, Eq. 6
    no_relabel: bool = False  # ablation: z_roll everywhere and no uniformity loss
    relabel: Literal["mix", "roll", "c", "tau", "random"] = "mix"  # skills that the policy learns from
    mix_ratio: float = 0.5  # share of c-step labels among the mixed ones, the rest are whole-episode labels
    keep_threshold: float = 0.4  # a rollout skill is kept where the gate's probability is below this
    # Beyond the paper: a share, drawn at random, that keeps its rollout skill whatever the gate says.
    keep_floor: float = 0.0
    keep_floor_after: int = 0  # gradient steps after which that floor holds
    # Beyond the paper: a share, drawn at random, that is learnt as if its episode had been turned about the vertical.
    turned_share: float = 0.0
    turned_after: int = 0  # gradient steps after which that share is turned
    gate_learning_rate: float = 1e-2  # Adam, gate classifier
    gate_planes: int = 8  # random hyperplanes that hash a skill
    no_cib: bool = False  # ablation: the actor sees the raw observation
    cib_dim: int = 256  # dimension of the CIB embedding that the actor sees
    kl_weight: float = 0.1  # weight of the KL term against reconstruction

    @property
    def labels_turn(self) -> bool:
        """Whether the policy's labels show where an episode went, and so turn with it."""
        return not self.no_relabel and self.relabel not in ("roll", "random")

    def check(self) -> None:
        super().check()
        check_positive(self, "gate_learning_rate", "gate_planes", "cib_dim")
        check_not_negative(self, "beta", "kl_weight", "keep_floor_after", "turned_after")
        check_shares(self, "mix_ratio", "keep_threshold", "keep_floor", "turned_share")
        if self.turned_share and not self.labels_turn:
            raise UserError("--turned_share: these labels do not turn with an episode; use --relabel mix, c or tau")


def since(state: AgentState, updates: int, share: float) -> Array:
    """A share that is 0 before so many gradient steps."""
    return jnp.where(state.updates < updates, 0.0, share)


MODEL = ("phi", "encoder", "decoder", "log_lambda")  # one Adam: these losses share no parameter and see the old phi


def make(config: Config, spec: Spec) -> Agent:
    options: Options = config.agent
    net = Networks(config, spec)
    skills = SkillSpace("directions", config.skill_dim)
    policy = sac.of(config, spec.action, entropy=-1.0)
    learns_gate = not options.no_relabel and options.relabel == "mix"
    model_adam, gate_adam = optax.adam(config.learning_rate), optax.adam(options.gate_learning_rate)

    def init(key: Array) -> AgentState:
        key_phi, key_actor, key_critic, *keys = jax.random.split(key, 6)
        params = net.init(key_phi, *keys)
        params |= policy.init(key_actor, key_critic, net.seen_spec, spec.observation, config.skill_dim)
        optimizers = {"model": model_adam.init(pick(params, MODEL)), "gate": gate_adam.init(pick(params, ["gate"]))}
        planes = relabel.draw_planes(jax.random.fold_in(key, 1), options.gate_planes, config.skill_dim)
        return begin(params, ["phi", "critic"], optimizers | policy.init_optimizers(params), {"planes": planes})

    def act(state: AgentState, obs: Any, z: Array, key: Array | None = None) -> Array:
        return policy.act(state.params, net.seen(state.params, obs), z, key)

    def turn(state: AgentState, batch: Batch, key: Array) -> tuple[Batch, Array]:
        """A share of the batch with its episodes turned about the vertical, and which rows stay as they were [B]."""
        size = len(batch.a)
        if not options.turned_share:
            return batch, jnp.ones(size, bool)
        if spec.turned is None:  # only learning needs it: skills are frozen in a maze, which cannot be turned
            raise UserError(
                "--turned_share needs a body that turns freely and observes how it lies: fish, quadruped, humanoid or "
                "dog with --observation oriented"
            )
        chance, turns = devices.own_rows(lambda rows: jax.random.uniform(key, (rows, 2)), size).T
        as_rolled = chance >= since(state, options.turned_after, options.turned_share)
        angles = jnp.where(as_rolled, 0.0, 2 * jnp.pi * turns)
        s, s_next, s_c, s_0, s_T = (
            spec.turned(seen, angles) for seen in (batch.s, batch.s_next, batch.s_c, batch.s_0, batch.s_T)
        )
        return batch.replace(s=s, s_next=s_next, s_c=s_c, s_0=s_0, s_T=s_T), as_rolled

    def labels(state: AgentState, batch: Batch, as_rolled: Array, key: Array) -> tuple[Array, Array, Array]:
        """z-step, Eq. 4 and 8: labels for phi and for the policy [B, d], and the share of rollout skills kept.

        as_rolled [B]: the transition is as it was when z_roll was rolled out, not turned.
        """
        if options.no_relabel:
            return batch.z_roll, batch.z_roll, jnp.ones(())
        size = len(batch.a)
        n_c = {"mix": round(size * options.mix_ratio), "c": size}.get(options.relabel, 0)
        pairs = encoders.first(n_c, batch.s), encoders.first(n_c, batch.s_c)
        start, end, now, later = net.phi(state.targets["phi"], batch.s_0, batch.s_T, *pairs)
        z_tau = rep.unit(end - start)
        if options.relabel == "roll":
            return z_tau, batch.z_roll, jnp.ones(())
        if options.relabel == "random":
            return z_tau, devices.own_rows(lambda rows: skills.sample(key, rows), size), jnp.zeros(())
        z_mix = relabel.mix(rep.unit(later - now), z_tau)
        if options.relabel != "mix":
            return z_tau, z_mix, jnp.zeros(())
        logit = net.gate(state.params["gate"])[relabel.skill_code(batch.z_roll, state.buffers["planes"])]
        keep = relabel.keep_rollout(logit, options.keep_threshold)
        if options.keep_floor > 0:
            chance = devices.own_rows(lambda rows: jax.random.uniform(key, (rows,)), size)
            keep = keep | (chance < since(state, options.keep_floor_after, options.keep_floor))
        keep = keep & as_rolled
        return z_tau, jnp.where(keep[:, None], batch.z_roll, z_mix), keep.mean()

    def model_loss(
        params: Params, planes: Array, batch: Batch, z: Array, as_rolled: Array, key_cib: Array, key_prior: Array
    ) -> tuple[Array, Metrics]:
        """phi-step (Eq. 6), lambda, CIB (Eq. 9) and gate in one gradient; one forward of phi for the four states."""
        now, following, start, end = net.phi(params["phi"], batch.s, batch.s_next, batch.s_0, batch.s_T)
        step = following - now
        constraint = rep.step_constraint(step, options.slack)
        multiplier = jnp.exp(params["log_lambda"])
        metrics = {
            "phi_loss": rep.representation_loss(step, z, constraint, multiplier),
            "lambda_loss": rep.multiplier_loss(multiplier, constraint),
        }
        loss = metrics["phi_loss"] + metrics["lambda_loss"]
        if not options.no_relabel:
            metrics["uniformity"] = rep.uniformity_loss(rep.unit(end - start))
            loss += options.beta * metrics["uniformity"]
        if not options.no_cib:
            mean, log_std = net.encoder(params["encoder"], batch.s)
            noise = devices.own_rows(lambda rows: jax.random.normal(key_cib, (rows, options.cib_dim)), len(mean))
            local = mean + jnp.exp(log_std) * noise
            decoded = net.decoder(params["decoder"], stop_gradient(now), local)
            metrics["reconstruction"] = cib.reconstruction_loss(decoded, encoders.values(batch.s))
            metrics["kl"] = cib.kl_loss(mean, log_std)
            loss += metrics["reconstruction"] + options.kl_weight * metrics["kl"]
        if learns_gate:
            prior = devices.own_rows(lambda rows: skills.sample(key_prior, rows), len(z))
            codes = relabel.skill_code(jnp.concatenate([z, prior]), planes)
            logits = jnp.split(net.gate(params["gate"])[codes], 2)
            metrics["gate_loss"] = relabel.gate_loss(*logits, as_rolled if options.turned_share else None)
            loss += metrics["gate_loss"]
        metrics |= {"phi_dot": rep.reward(step, z).mean(), "constraint": constraint.mean(), "lambda": multiplier}
        return loss, metrics

    def update(state: AgentState, batch: Batch, key: Array) -> tuple[AgentState, Metrics]:
        """One gradient step of everything on one batch."""
        key_label, key_cib, key_next, key_actor, key_prior = jax.random.split(key, 5)
        batch, as_rolled = turn(state, batch, jax.random.fold_in(key_label, 1))
        z_tau, z, kept = labels(state, batch, as_rolled, key_label)

        # phi, lambda, CIB and gate: all from the old parameters.
        parts = pick(state.params, [*MODEL, "gate"])
        (_, metrics), grads = grad(
            model_loss, parts, state.buffers["planes"], batch, z_tau, as_rolled, key_cib, key_prior
        )
        state = advance(state, "model", model_adam, pick(grads, MODEL))
        if learns_gate:
            state = advance(state, "gate", gate_adam, pick(grads, ["gate"]))

        # SAC: the new phi pays the reward, the new encoder shows the states.
        now, following = net.phi(state.params["phi"], batch.s, batch.s_next)
        rows = sac.Rows(batch.s, batch.a, batch.s_next, *net.seen_each(state.params, batch.s, batch.s_next))
        state, more = policy.step(state, rows, z, rep.reward(following - now, z), key_next, key_actor)
        return track(state, config.ema_rate), metrics | more | {"kept": kept}

    def represent(state: AgentState, obs: Any) -> Array:
        return net.phi(state.params["phi"], obs)[0]

    return Agent(
        init=init,
        skills=skills,
        act=act,
        update=update,
        represent=represent,
        shown=("phi_dot", "lambda", "alpha"),
        scratch_rows=36,
        scratch_pairs=2.7,
    )


class Networks:
    """The networks as functions of (parameters, inputs)."""

    def __init__(self, config: Config, spec: Spec):
        dtype, eye = networks.precision(config.bf16), encoders.Eye.of(config)
        options: Options = config.agent
        self.config, self.options, self.observation = config, options, spec.observation
        self._phi = rep.network(config, spec)
        self._encoder = networks.Gaussian(config.hidden, options.cib_dim, networks.LECUN, dtype, eye)
        leaves = tuple(jax.tree.leaves(spec.observation))
        self._decoder = networks.Decoder(config.hidden, leaves, dtype, eye)
        self._gate = networks.Gate(2**options.gate_planes)

    def init(self, key_phi: Array, key_gate: Array, key_encoder: Array, key_decoder: Array) -> Params:
        s = encoders.blank(self.observation)
        z, local = jnp.zeros((1, self.config.skill_dim)), jnp.zeros((1, self.options.cib_dim))
        params = {
            "phi": self._phi.init(key_phi, s),
            "gate": self._gate.init(key_gate),
            "log_lambda": jnp.log(jnp.float32(self.options.initial_lambda)),
        }
        if not self.options.no_cib:
            params["encoder"] = self._encoder.init(key_encoder, s)
            params["decoder"] = self._decoder.init(key_decoder, z, local)
        return params

    def phi(self, params: Params, *states: Any) -> list[Array]:
        """phi [n, d] of each batch of n states, in one forward."""
        ends = np.cumsum([len(jax.tree.leaves(batch)[0]) for batch in states])
        return jnp.split(self._phi.apply(params, encoders.concatenate(*states)), ends[:-1])

    def encoder(self, params: Params, s: Any) -> tuple[Array, Array]:
        return self._encoder.apply(params, s)

    def decoder(self, params: Params, phi: Array, local: Array) -> Any:
        """The observation, rebuilt."""
        return jax.tree.structure(self.observation).unflatten(self._decoder.apply(params, phi, local))

    @property
    def seen_spec(self) -> Any:
        """Shapes of what the actor sees."""
        return self.observation if self.options.no_cib else jax.ShapeDtypeStruct((self.options.cib_dim,), jnp.float32)

    def seen(self, params: Params, s: Any) -> Any:
        """Eq. 10, what the actor sees: the mean of the CIB embedding, or the state itself without CIB."""
        return s if self.options.no_cib else self.encoder(params["encoder"], s)[0]

    def seen_each(self, params: Params, *states: Any) -> tuple:
        """What the actor sees of several batches of one size, in one forward."""
        if self.options.no_cib:
            return states
        return tuple(jnp.split(self.seen(params, encoders.concatenate(*states)), len(states)))

    def gate(self, params: Params) -> Array:
        """[codes] logits, one for every skill code."""
        return self._gate.apply(params)
