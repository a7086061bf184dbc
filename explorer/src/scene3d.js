// Draws bodies with three.js where the browser has a graphics card.

import {
  BoxGeometry, BufferAttribute, BufferGeometry, CapsuleGeometry, Color, CylinderGeometry, DirectionalLight, DoubleSide,
  Fog, HemisphereLight, LineBasicMaterial, LineSegments, Matrix4, Mesh, MeshBasicMaterial, MeshStandardMaterial,
  PCFShadowMap, PerspectiveCamera, PlaneGeometry, RingGeometry, Scene, ShadowMaterial, SphereGeometry, Vector3, WebGLRenderer,
} from "three";
import { gridStep, mix } from "./shapes.js";

const LINES = 22; // of the floor, each way
const SOFTWARE = /swiftshader|llvmpipe|softpipe|software|basic render/i; // a processor that plays graphics card
const TRAIL = 4096; // points of a path at most

export class Scene3D {
  /** Throws where there is no WebGL; without `force` also where it is slow because there is no graphics card. */
  constructor(canvas, shapes, reach, force) {
    const settings = { antialias: true, failIfMajorPerformanceCaveat: !force, preserveDrawingBuffer: false };
    const context = canvas.getContext("webgl2", settings);
    if (!context) throw new Error("no WebGL");
    if (!force && SOFTWARE.test(rendererName(context))) throw new Error("no graphics card");
    Object.assign(this, { canvas, shapes, reach, name: "WebGL", copies: [], walls: null });
    this.renderer = new WebGLRenderer({ canvas, context, antialias: true });
    this.renderer.shadowMap.enabled = true;
    this.renderer.shadowMap.type = PCFShadowMap;
    this.scene = new Scene();
    this.scene.background = new Color(0xeef3f9);
    this.eye = new PerspectiveCamera(45, 1, 0.01, 1000);
    this.eye.up.set(0, 0, 1);
    this.light = new DirectionalLight(0xffffff, 2.2);
    this.light.castShadow = true;
    this.light.shadow.mapSize.set(1024, 1024);
    this.scene.add(new HemisphereLight(0xffffff, 0xb8c4d6, 1.7), this.light, this.light.target);
    this.ground = new Mesh(new PlaneGeometry(1, 1), new ShadowMaterial({ opacity: 0.22 }));
    this.ground.receiveShadow = true;
    this.grid = new LineSegments(gridLines(), new LineBasicMaterial({ color: 0x9fb0c8, transparent: true, opacity: 0.55 }));
    this.grid.frustumCulled = false;
    this.target = new Mesh(new SphereGeometry(1, 24, 16), new MeshStandardMaterial({ color: 0xd84c5a, roughness: 0.5 }));
    this.goal = new Mesh(new RingGeometry(0.9, 1, 48), new MeshStandardMaterial({ color: 0x1f9d58 }));
    this.scene.add(this.ground, this.grid, this.target, this.goal);
    this.target.visible = this.goal.visible = false;
  }

  draw(camera, copies, extras) {
    this.wide = camera.distance;
    while (this.copies.length < copies.length) this.copies.push(this.newCopy());
    this.copies.forEach((mine, i) => {
      mine.line.visible = i < copies.length;
      for (const mesh of mine.meshes) mesh.visible = i < copies.length;
      if (i < copies.length) this.place(mine, copies[i]);
    });
    this.surround(camera, extras);
    this.eye.fov = camera.fieldDegrees;
    this.eye.aspect = camera.width / camera.height;
    this.eye.near = camera.distance / 50;
    this.eye.far = camera.distance * 40;
    this.eye.position.set(...camera.eye);
    this.eye.lookAt(new Vector3(...camera.target));
    this.eye.updateProjectionMatrix();
    const size = [this.canvas.width, this.canvas.height];
    this.renderer.setViewport(0, 0, ...size);
    if (this.size?.join() !== size.join()) {
      this.size = size;
      this.renderer.setSize(...size, false);
    }
    this.renderer.render(this.scene, this.eye);
  }

  newCopy() {
    const meshes = this.shapes.map((shape) => {
      const mesh = new Mesh(geometry(shape), new MeshStandardMaterial({ color: new Color(...shape.color).convertSRGBToLinear(), roughness: 0.55 }));
      mesh.matrixAutoUpdate = false;
      mesh.frustumCulled = false;
      mesh.castShadow = mesh.receiveShadow = true;
      return mesh;
    });
    const ribbon = new BufferGeometry();
    ribbon.setAttribute("position", new BufferAttribute(new Float32Array(6 * TRAIL), 3));
    ribbon.setIndex(Array.from({ length: TRAIL - 1 }, (_, i) => [0, 1, 2, 1, 3, 2].map((k) => 2 * i + k)).flat());
    const line = new Mesh(ribbon, new MeshBasicMaterial({ side: DoubleSide, transparent: true, opacity: 0.8 }));
    line.frustumCulled = false;
    this.scene.add(line, ...meshes);
    return { meshes, line };
  }

  place({ meshes, line }, { geoms, tint, tinted, trail }) {
    const pose = new Matrix4();
    this.shapes.forEach(({ id, color }, i) => {
      const [p, m] = [geoms.xpos.subarray(3 * id, 3 * id + 3), geoms.xmat.subarray(9 * id, 9 * id + 9)];
      pose.set(m[0], m[1], m[2], p[0], m[3], m[4], m[5], p[1], m[6], m[7], m[8], p[2], 0, 0, 0, 1);
      meshes[i].matrix.copy(pose);
      meshes[i].matrixWorldNeedsUpdate = true;
      meshes[i].material.color.setRGB(...(tinted ? mix(color, tint, 0.75) : color)).convertSRGBToLinear();
    });
    this.unroll(line.geometry, trail.slice(-TRAIL), 0.004 * this.wide);
    line.material.color.setRGB(...tint).convertSRGBToLinear();
  }

  /** Lays a ribbon of this half width along the points. */
  unroll(ribbon, points, half) {
    const flat = ribbon.attributes.position;
    let [nx, ny] = [0, 0];
    points.forEach(([x, y, z], i) => {
      const [before, after] = [points[Math.max(i - 1, 0)], points[Math.min(i + 1, points.length - 1)]];
      const [dx, dy] = [after[0] - before[0], after[1] - before[1]];
      const length = Math.hypot(dx, dy);
      if (length > 1e-9) [nx, ny] = [(-half * dy) / length, (half * dx) / length];
      flat.setXYZ(2 * i, x - nx, y - ny, z);
      flat.setXYZ(2 * i + 1, x + nx, y + ny, z);
    });
    flat.needsUpdate = true;
    ribbon.setDrawRange(0, 6 * Math.max(points.length - 1, 0));
  }

  surround(camera, { shadows, target, targetSize, goal, walls }) {
    const step = gridStep(camera.distance);
    const [x, y] = [0, 1].map((i) => Math.round(camera.target[i] / step) * step);
    this.grid.position.set(x, y, 0);
    this.grid.scale.set(step, step, 1);
    this.ground.visible = Boolean(shadows);
    this.ground.position.set(camera.target[0], camera.target[1], -0.001 * this.reach);
    this.ground.scale.set(40 * camera.distance, 40 * camera.distance, 1);
    this.scene.fog = new Fog(0xeef3f9, 1.6 * camera.distance, 4.5 * camera.distance);
    const [lx, ly, lz] = camera.target;
    const far = 2 * this.reach;
    this.light.position.set(lx - 0.5 * far, ly - 0.7 * far, lz + 1.6 * far);
    this.light.target.position.set(lx, ly, lz);
    const box = this.light.shadow.camera;
    const half = 1.5 * camera.distance;
    Object.assign(box, { left: -half, right: half, top: half, bottom: -half, near: 0.01 * far, far: 6 * far });
    box.updateProjectionMatrix();
    this.target.visible = Boolean(target);
    if (target) {
      this.target.position.set(...target);
      this.target.scale.setScalar(targetSize);
    }
    this.goal.visible = Boolean(goal);
    if (goal) {
      this.goal.position.set(goal.at[0], goal.at[1], 0.01);
      this.goal.scale.setScalar(goal.radius);
    }
    if (walls && !this.walls) this.build(walls);
  }

  build(walls) {
    const paint = new MeshStandardMaterial({ color: 0xb9c4d6 });
    this.walls = walls.map(({ x, y, width, height, tall }) => {
      const mesh = new Mesh(new BoxGeometry(width, height, tall), paint);
      mesh.position.set(x + width / 2, y + height / 2, tall / 2);
      mesh.castShadow = mesh.receiveShadow = true;
      this.scene.add(mesh);
      return mesh;
    });
  }
}

function geometry({ kind, size }) {
  if (kind === "box") return new BoxGeometry(2 * size[0], 2 * size[1], 2 * size[2]);
  if (kind === "capsule") return new CapsuleGeometry(size[0], 2 * size[1], 8, 20).rotateX(Math.PI / 2);
  if (kind === "cylinder") return new CylinderGeometry(size[0], size[0], 2 * size[1], 24).rotateX(Math.PI / 2);
  const radii = kind === "sphere" ? [size[0], size[0], size[0]] : size;
  return new SphereGeometry(1, 28, 20).scale(...radii);
}

/** Firefox tells the renderer's name at once, Chromium through an extension. */
function rendererName(context) {
  const name = String(context.getParameter(context.RENDERER));
  const extension = name === "WebKit WebGL" && context.getExtension("WEBGL_debug_renderer_info");
  return extension ? String(context.getParameter(extension.UNMASKED_RENDERER_WEBGL)) : name;
}

/** Short pieces, as long lines that pass the eye are lost by some drivers. */
function gridLines() {
  const points = [];
  for (let i = -LINES; i <= LINES; i++) {
    for (let k = -LINES; k < LINES; k++) points.push(i, k, 0, i, k + 1, 0, k, i, 0, k + 1, i, 0);
  }
  return new BufferGeometry().setAttribute("position", new BufferAttribute(new Float32Array(points), 3));
}
