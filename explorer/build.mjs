// Builds what a page carries: the bundled program, MuJoCo without its debug names, the frame with its style, licences.
// `make explorer-assets` runs this; the results are committed, so that users need no node.

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = (name) => new URL(name, import.meta.url);
const out = new URL("../genda_mjx/explorer/assets/", import.meta.url);
const versionOf = (name) => JSON.parse(readFileSync(here(`node_modules/${name}/package.json`))).version;

async function bundle() {
  const { outputFiles } = await build({
    entryPoints: [here("src/app.js").pathname],
    bundle: true,
    minify: true,
    write: false,
    format: "iife",
    target: ["chrome109", "firefox115", "safari16.4"],
    define: { "import.meta.url": '""' }, // the page has no address of its own: everything is inside
    external: ["module", "worker_threads", "node:*"],
    legalComments: "none",
    logLevel: "error",
  });
  return Buffer.from(outputFiles[0].contents);
}

/** A WebAssembly module without its custom sections: names and debug information. */
function stripped(wasm) {
  const kept = [wasm.subarray(0, 8)];
  for (let at = 8; at < wasm.length; ) {
    let [size, shift, next] = [0, 0, at + 1];
    for (let byte = 128; byte & 128; shift += 7) {
      byte = wasm[next++];
      size |= (byte & 127) << shift;
    }
    if (wasm[at] !== 0) kept.push(wasm.subarray(at, next + size));
    at = next + size;
  }
  return Buffer.concat(kept);
}

function frame() {
  const style = readFileSync(here("src/style.css"), "utf8");
  return Buffer.from(readFileSync(here("src/page.html"), "utf8").replace("@STYLE@", () => style));
}

const packages = { "@mujoco/mujoco": versionOf("@mujoco/mujoco"), three: versionOf("three") };
const files = {
  "app.js.gz": gzipSync(await bundle(), { level: 9 }),
  "mujoco.wasm.gz": gzipSync(stripped(readFileSync(here("node_modules/@mujoco/mujoco/mujoco.wasm"))), { level: 9 }),
  "page.html": frame(),
  "LICENCES.txt": readFileSync(here("LICENCES.txt")),
};
mkdirSync(out, { recursive: true });
const manifest = { packages, files: {} };
for (const [name, content] of Object.entries(files)) {
  writeFileSync(new URL(name, out), content);
  manifest.files[name] = { bytes: content.length, sha256: createHash("sha256").update(content).digest("hex") };
}
writeFileSync(new URL("manifest.json", out), JSON.stringify(manifest, null, 2) + "\n");
console.log(manifest);
