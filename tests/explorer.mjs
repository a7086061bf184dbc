// Runs the program of an explorer page without a browser: node explorer.mjs PAGE < commands > answers (JSON).
// The page's own parts are taken out of the file, so that what is tested is what a user opens.

import { readFileSync } from "node:fs";
import vm from "node:vm";
import { gunzipSync } from "node:zlib";

const page = readFileSync(process.argv[2], "utf8");
const part = (id) => page.match(new RegExp(`id="${id}">([^<]*)</script>`))[1];
const bytes = (id) => new Uint8Array(gunzipSync(Buffer.from(part(id), "base64")));

const { WebAssembly, performance, TextDecoder, TextEncoder, setTimeout, clearTimeout, URL, crypto } = globalThis;
const context = vm.createContext({ WebAssembly, performance, TextDecoder, TextEncoder, setTimeout, clearTimeout, URL, crypto, console });
vm.runInContext("globalThis.window = globalThis", context);
vm.runInContext(Buffer.from(bytes("app")).toString(), context);
const { loadMujoco, World } = context.gendaExplorer;
const mujoco = await loadMujoco({ wasmBinary: bytes("wasm"), locateFile: (name) => name });
const world = new World(mujoco, JSON.parse(Buffer.from(bytes("run")).toString()), bytes("arrays"));
const body = world.first;
const list = (array) => Array.from(array);

function state() {
  return {
    ...Object.fromEntries(["qpos", "qvel", "act"].map((name) => [name, list(body.view(name))])),
    observation: list(body.observation),
    sensors: list(body.sensors),
    drawn: list(body.drawn),
    latent: body.latent,
  };
}

const answers = {
  /** The state after each of the actions, open loop, the start first. */
  rollout({ start, actions, offset = [0, 0] }) {
    body.start(start, offset);
    const states = [state()];
    for (const action of actions) {
      body.control(action);
      while (!body.step());
      states.push(state());
    }
    return states;
  },
  act: ({ obs, z }) => obs.map((row, i) => list(world.agent.act({ obs: row, z: z[i] })[0])),
  control: ({ obs, position, goal }) =>
    obs.map((row, i) => list(world.agent.control({ obs: row, position: position[i], goal: goal[i] })[0])),
  /** Positions after each of the agent steps in which the controller chooses the skills. */
  task({ steps, goal }) {
    world.goal = goal;
    world.reset();
    while (world.first.steps < steps * world.run.physics_steps) world.tick(world.run.timestep);
    return world.first.path;
  },
  phi: ({ obs }) => obs.map((row) => list(world.agent.phi({ obs: row })[0])),
  /** Where the episodes of the evaluation end in this page. */
  ends: ({ steps }) =>
    world.episodes.skills.map((z, i) => {
      body.start(i, [0, 0]);
      const first = body.position;
      for (let k = 0; k < steps && !body.failed; k++) body.advance(z);
      return [first, body.position];
    }),
  /** Simulated seconds in a second of processor time, with the policy, after a warm-up. */
  speed({ seconds }) {
    const cpu = () => process.cpuUsage().user / 1e6;
    body.start(0, [0, 0]);
    for (let k = 0; k < 200; k++) body.advance(world.z);
    const [from, started] = [body.seconds, cpu()];
    while (cpu() - started < seconds) body.advance(world.z);
    return (body.seconds - from) / (cpu() - started);
  },
};

const commands = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(commands.map(([name, options]) => answers[name](options))));
