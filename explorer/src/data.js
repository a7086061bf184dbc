// What the page carries: gzipped parts in base64, a table of arrays among them.

export async function unpack(text) {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Arrays by their rows in the table: {at, size, type}, with type f4 or f2 (half floats). */
export function arrays(table, bytes) {
  const halves = table.some(({ type }) => type === "f2") && Float32Array.from({ length: 65536 }, (_, bits) => fromHalf(bits));
  return table.map(({ at, size, type }) => {
    if (type === "f4") return new Float32Array(bytes.buffer.slice(at, at + 4 * size));
    const [coded, out] = [new Uint16Array(bytes.buffer.slice(at, at + 2 * size)), new Float32Array(size)];
    for (let i = 0; i < size; i++) out[i] = halves[coded[i]];
    return out;
  });
}

function fromHalf(bits) {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 0x1f, bits & 0x3ff];
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
