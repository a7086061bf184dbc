// Runs the programs that genda_mjx/explorer/tracing.py has written: the body's observation, the policy, phi.

const UNARY = {
  tanh: Math.tanh, cos: Math.cos, sin: Math.sin, asinh: Math.asinh, exp: Math.exp, log: Math.log,
  log1p: Math.log1p, sqrt: Math.sqrt, abs: Math.abs, sign: Math.sign,
  rsqrt: (x) => 1 / Math.sqrt(x), neg: (x) => -x, square: (x) => x * x, logistic: (x) => 1 / (1 + Math.exp(-x)),
};
const BINARY = {
  add: (x, y) => x + y, sub: (x, y) => x - y, mul: (x, y) => x * y, div: (x, y) => x / y,
  max: Math.max, min: Math.min, atan2: Math.atan2,
  gt: (x, y) => Number(x > y), lt: (x, y) => Number(x < y), ge: (x, y) => Number(x >= y), le: (x, y) => Number(x <= y),
};

/** Returns run(inputs by name) -> array of outputs. The outputs are overwritten by the next run. */
export function compile(program, constants) {
  const names = Object.keys(program.inputs);
  const registers = program.sizes.map((size) => new Float64Array(size));
  const operand = (index) => (index >= 0 ? registers[index] : constants[program.constants[-index - 1]]);
  const steps = program.instructions.map((instruction, place) =>
    step(instruction, operand, registers[names.length + place]),
  );
  return (inputs) => {
    names.forEach((name, i) => {
      const given = inputs[name];
      const size = Math.min(given.length, registers[i].length);
      for (let k = 0; k < size; k++) registers[i][k] = given[k];
    });
    for (const run of steps) run();
    return program.outputs.map((index) => registers[index]);
  };
}

function step([name, ...args], operand, out) {
  if (name === "gather") return gather(args[0].map(operand), args[1], out);
  if (name === "dot") return dot(operand(args[0]), operand(args[1]), out);
  if (name === "constant") {
    out.set(operand(args[0]));
    return () => {};
  }
  if (name === "sum") {
    const [x, n] = [operand(args[0]), args[1]];
    return () => {
      for (let i = 0; i < out.length; i++) {
        out[i] = 0;
        for (let k = 0; k < n; k++) out[i] += x[i * n + k];
      }
    };
  }
  if (name in UNARY) {
    const [fn, x] = [UNARY[name], operand(args[0])];
    return () => {
      for (let i = 0; i < out.length; i++) out[i] = fn(x[i]);
    };
  }
  if (name === "select_n") return select(...args.map(operand), out);
  const fn = BINARY[name];
  if (!fn) throw new Error(`this page has no instruction ${name}`);
  const [x, y] = args.map(operand);
  const [dx, dy] = [x.length === 1 ? 0 : 1, y.length === 1 ? 0 : 1]; // a single entry serves all
  return () => {
    for (let i = 0; i < out.length; i++) out[i] = fn(x[i * dx], y[i * dy]);
  };
}

function select(which, first, second, out) {
  const [dw, da, db] = [which, first, second].map((x) => (x.length === 1 ? 0 : 1));
  return () => {
    for (let i = 0; i < out.length; i++) out[i] = which[i * dw] ? second[i * db] : first[i * da];
  };
}

function gather(sources, indices, out) {
  const [from, at] = [[], []];
  for (const index of indices) {
    let [source, place] = [0, index];
    while (place >= sources[source].length) place -= sources[source++].length;
    from.push(sources[source]);
    at.push(place);
  }
  return () => {
    for (let i = 0; i < out.length; i++) out[i] = from[i][at[i]];
  };
}

function dot(x, matrix, out) {
  const width = out.length;
  return () => {
    out.fill(0);
    for (let i = 0; i < x.length; i++) {
      const scale = x[i];
      if (scale === 0) continue; // after a ReLU about half of the entries
      for (let j = 0, k = i * width; j < width; j++, k++) out[j] += scale * matrix[k];
    }
  };
}
