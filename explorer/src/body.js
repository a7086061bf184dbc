// One copy of the body: MuJoCo steps it, the policy moves it. The order of things is that of envs/body.py.

import { compile } from "./program.js";

const EXPLODED = 1e4; // m/s or rad/s, as in envs/body.py

export class Agent {
  /** The programs of a run, shared by all copies. */
  constructor(run, constants) {
    const { observe, sense, act, phi, control } = run.programs;
    this.observe = compile(observe, constants);
    this.sense = sense && compile(sense, constants);
    this.act = compile(act, constants);
    this.phi = phi && compile(phi, constants);
    this.control = control && compile(control, constants);
  }
}

export class Body {
  constructor(mujoco, model, agent, run, starts) {
    Object.assign(this, { mujoco, model, agent, run, starts });
    this.data = new mujoco.MjData(model);
    this.range = Array.from(model.actuator_ctrlrange);
    this.views = {};
    this.steps = 0; // physics steps since the start
    this.failed = false;
  }

  /** MuJoCo's own array; views are made anew after the memory of MuJoCo has grown. */
  view(name) {
    let view = this.views[name];
    if (!view?.length) view = this.views[name] = this.data[name];
    return view;
  }

  start(index, [x, y]) {
    const { qpos, qvel, act, sensors, drawn } = this.starts[index];
    this.mujoco.mj_resetData(this.model, this.data);
    this.view("qpos").set(qpos);
    this.view("qvel").set(qvel);
    if (act.length) this.view("act").set(act);
    for (const points of [this.view("qpos"), (this.drawn = Float64Array.from(drawn))]) {
      if (points.length) {
        points[0] += x;
        points[1] += y;
      }
    }
    this.sensors = Float64Array.from(sensors);
    this.steps = 0;
    this.failed = false;
    this.mujoco.mj_step1(this.model, this.data);
    this.look();
  }

  get seconds() {
    return this.steps * this.run.timestep;
  }

  get position() {
    return Array.from(this.view("qpos").subarray(0, this.run.position_size));
  }

  /** The observation as the agent sees it, and phi of it. */
  look() {
    const data = { sensors: this.sensors, drawn: this.drawn };
    for (const name of ["qpos", "qvel", "act", "xpos", "xmat", "geom_xpos", "geom_xmat", "sensordata"]) {
      data[name] = this.view(name);
    }
    this.observation = Float64Array.from(this.agent.observe(data)[0]);
    this.latent = this.agent.phi ? Array.from(this.agent.phi({ obs: this.observation })[0]) : null;
  }

  /** Sets the controls that the policy chooses for the skill z. */
  choose(z) {
    this.control(this.agent.act({ obs: this.observation, z })[0]);
  }

  control(action) {
    const ctrl = this.view("ctrl");
    for (let i = 0; i < ctrl.length; i++) {
      const [low, high] = [this.range[2 * i], this.range[2 * i + 1]];
      ctrl[i] = low + ((high - low) * (Math.min(Math.max(action[i], -1), 1) + 1)) / 2;
    }
  }

  /** One physics step. The last one of an agent step is followed by a look; returns whether it was. */
  step() {
    if (this.failed) return false;
    this.mujoco.mj_step(this.model, this.data);
    this.steps++;
    if (this.steps % this.run.physics_steps) return false;
    // Positions and velocities of the new state; acceleration sensors stay those of the step.
    this.mujoco.mj_step1(this.model, this.data);
    if (this.agent.sense) this.sensors = Float64Array.from(this.agent.sense({ sensordata: this.view("sensordata") })[0]);
    this.failed = !this.view("qpos").every(Number.isFinite) || !this.view("qvel").every((v) => Math.abs(v) < EXPLODED);
    if (!this.failed) this.look();
    return true;
  }

  /** One agent step with the skill z. */
  advance(z) {
    this.choose(z);
    while (!this.failed && !this.step());
  }
}
