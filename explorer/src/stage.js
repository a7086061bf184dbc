// The picture of the bodies: camera, renderer, and what fingers and mouse do on it.

import { Camera } from "./camera.js";
import { Scene2D } from "./scene2d.js";
import { Scene3D } from "./scene3d.js";
import { shapes } from "./shapes.js";

const GRIP = 34; // pixels around the body within which it is taken hold of

export class Stage {
  constructor(box, world, wanted) {
    Object.assign(this, { box, world, held: null, pointers: new Map() });
    this.shapes = shapes(world.model, world.run.hidden);
    this.size = this.bodySize();
    this.camera = new Camera(this.reach());
    this.camera.target = this.centre();
    if (world.task) this.camera.elevation = 0.9;
    this.open(wanted);
    this.listen();
  }

  /** Metres from the middle of the body to its farthest part. */
  bodySize() {
    const [middle, xpos] = [this.centre(), this.world.first.view("geom_xpos")];
    const far = ({ id, size }) => Math.hypot(...middle.map((m, i) => xpos[3 * id + i] - m)) + Math.max(...size);
    return Math.max(...this.shapes.filter((shape) => !shape.fixed).map(far));
  }

  reach() {
    if (this.world.task) return 2.6 * this.world.arena.half;
    const farthest = Math.max(...this.world.episodes.paths.flat().map((p) => Math.hypot(p[0], p[1])));
    return Math.max(3.1 * this.size, 0.12 * farthest);
  }

  /** Opens a renderer: three.js unless there is no WebGL or "2d" is wanted; "3d" also without a graphics card. */
  open(wanted) {
    const fresh = () => {
      const canvas = document.createElement("canvas");
      this.box.replaceChildren(canvas);
      return canvas;
    };
    try {
      if (wanted === "2d") throw new Error("2D is wanted");
      this.scene = new Scene3D(fresh(), this.shapes, this.camera.reach, wanted === "3d");
    } catch {
      this.scene = new Scene2D(fresh(), this.shapes);
    }
  }

  get canvas() {
    return this.scene.canvas;
  }

  /** Where a body is in space: its free joint, or its place in the plane. */
  whereIs(body) {
    const qpos = body.view("qpos");
    return this.world.run.free ? [qpos[0], qpos[1], qpos[2]] : [qpos[0], qpos[1], 0];
  }

  centre() {
    if (this.camera && this.world.task) return [...this.world.arena.middle, 0];
    const all = this.world.bodies.map((body) => this.whereIs(body));
    return [0, 1, 2].map((i) => all.reduce((sum, p) => sum + p[i], 0) / all.length);
  }

  spread(centre) {
    return Math.max(...this.world.bodies.map((body) => Math.hypot(...this.whereIs(body).map((v, i) => v - centre[i]))));
  }

  /** elapsed: seconds since the last picture. */
  draw(extras, elapsed = 0.016) {
    const { camera, world, canvas } = this;
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!width || !height) return;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
    camera.resize(width, height);
    const centre = this.centre();
    if (this.held === null) camera.follow(centre, 1 - Math.exp(-7 * elapsed));
    const wide = world.many ? 2.3 * this.spread(centre) + camera.reach : 0;
    if (wide > camera.distance) camera.distance += 0.1 * (wide - camera.distance);
    const [tints, floorHeight] = [world.tints, 0.004 * camera.reach];
    const copies = world.bodies.map((body, i) => ({
      geoms: { xpos: body.view("geom_xpos"), xmat: body.view("geom_xmat") },
      tint: tints[i],
      tinted: world.many,
      trail: body.path.map(([x, y, z]) => [x, y, z ?? floorHeight]),
    }));
    this.scene.draw(camera, copies, { ...extras, shadows: world.run.floor, ...this.marks() });
  }

  /** What the reset has drawn for the episode: the fish's target. */
  marks() {
    const { drawn } = this.world.first;
    return drawn.length === 3 ? { target: Array.from(drawn), targetSize: 0.12 * this.size } : {};
  }

  listen() {
    const { box, pointers, camera } = this;
    box.addEventListener("pointerdown", (event) => {
      box.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, this.spot(event));
      this.pressed = this.spot(event);
      if (pointers.size === 1 && this.onBody(this.spot(event))) {
        this.held = camera.target[2];
        box.classList.add("holding");
      }
    });
    box.addEventListener("pointermove", (event) => {
      const spot = this.spot(event);
      const last = pointers.get(event.pointerId);
      if (!last) {
        box.classList.toggle("over", this.onBody(spot));
        return;
      }
      pointers.set(event.pointerId, spot);
      if (this.held !== null) this.move(spot);
      else if (pointers.size === 1) camera.turn(spot[0] - last[0], spot[1] - last[1]);
      else this.pinch(event.pointerId, last, spot);
    });
    const release = (event) => {
      pointers.delete(event.pointerId);
      const spot = this.spot(event);
      const tapped = this.held === null && Math.hypot(spot[0] - this.pressed[0], spot[1] - this.pressed[1]) < 4;
      const floor = tapped && camera.onPlane(...spot, 0);
      if (floor) this.onTap?.(floor);
      if (this.held !== null && pointers.size === 0) {
        this.held = null;
        box.classList.remove("holding");
        this.onDrop?.();
      }
    };
    box.addEventListener("pointerup", release);
    box.addEventListener("pointercancel", release);
    box.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        camera.zoom(Math.exp(0.0012 * event.deltaY));
      },
      { passive: false },
    );
  }

  spot(event) {
    const area = this.box.getBoundingClientRect();
    return [event.clientX - area.left, event.clientY - area.top];
  }

  onBody([x, y]) {
    if (this.world.many || !this.camera.width) return false;
    const p = this.camera.projector().project(this.whereIs(this.world.first));
    return Boolean(p) && Math.hypot(p[0] - x, p[1] - y) < Math.max(GRIP, 0.5 * this.size * p[3]);
  }

  /** The held body goes back to its start pose, under the finger. */
  move([x, y]) {
    const at = this.camera.onPlane(x, y, this.held);
    if (!at) return;
    const { qpos } = this.world.starts[this.world.start];
    this.onMove?.([at[0] - qpos[0], at[1] - qpos[1]]);
  }

  pinch(id, last, spot) {
    const other = [...this.pointers].find(([key]) => key !== id)?.[1];
    if (!other) return;
    const gap = (p) => Math.max(Math.hypot(p[0] - other[0], p[1] - other[1]), 1);
    this.camera.zoom(gap(last) / gap(spot));
  }
}
