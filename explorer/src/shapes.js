// The geoms of a model that are worth drawing, with what both renderers need of them.

const KINDS = { 2: "sphere", 3: "capsule", 4: "ellipsoid", 5: "cylinder", 6: "box" };
const COLLIDING = 3; // group of geoms that are made to collide and coloured for debugging; higher ones are never seen
const PLAIN = [0.72, 0.53, 0.35]; // their colour here
const SMALLEST = 1e-4; // m; smaller spheres stand for points that may touch

export function shapes(model, hidden) {
  const [types, sizes, bodies] = [model.geom_type, model.geom_size, model.geom_bodyid];
  const [rgba, materials, mat] = [model.geom_rgba, model.geom_matid, model.mat_rgba];
  const found = [];
  for (let id = 0; id < model.ngeom; id++) {
    const size = Array.from(sizes.slice(3 * id, 3 * id + 3));
    const kind = KINDS[types[id]];
    const group = model.geom_group[id];
    if (!kind || hidden.includes(id) || group > COLLIDING || Math.max(...size) < SMALLEST) continue;
    const color = Array.from(materials[id] >= 0 ? mat.slice(4 * materials[id], 4 * materials[id] + 4) : rgba.slice(4 * id, 4 * id + 4));
    if (color[3] === 0) continue;
    found.push({ id, kind, size, color: group === COLLIDING ? PLAIN : color.slice(0, 3), fixed: bodies[id] === 0 });
  }
  return found;
}

/** [r, g, b] in 0..1 of the colours of the plots: genda_mjx/agents/skills.py. */
export function skillColor(z, kind) {
  if (kind === "list") return hsv(z.indexOf(Math.max(...z)) / z.length, 0.75, 0.85);
  const hue = (Math.atan2(z[1] ?? 0, z[0]) / (2 * Math.PI) + 1) % 1;
  return hsv(hue, 0.8, z.length > 2 ? Math.min(Math.max(0.7 + 0.25 * z[2], 0.3), 1) : 0.85);
}

function hsv(h, s, v) {
  const part = (n) => {
    const k = (n + h * 6) % 6;
    return v - v * s * Math.max(0, Math.min(k, 4 - k, 1));
  };
  return [part(5), part(3), part(1)];
}

export const css = ([r, g, b], alpha = 1) => `rgba(${Math.round(255 * r)},${Math.round(255 * g)},${Math.round(255 * b)},${alpha})`;
export const mix = (a, b, share) => a.map((value, i) => value + share * (b[i] - value));

/** Distance of the lines of the floor: 1, 2 or 5 times a power of ten, several across the picture. */
export function gridStep(distance) {
  const step = distance / 5;
  const power = 10 ** Math.floor(Math.log10(step));
  return power * (step / power >= 5 ? 5 : step / power >= 2 ? 2 : 1);
}
