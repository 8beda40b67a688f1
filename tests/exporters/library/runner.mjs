// As runner.c, for a module of WebAssembly: `node runner.mjs MODULE.mjs INPUTS OUTPUTS`.

import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const DTYPES = [
  "", "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
  "float32", "float64", "complex64", "complex128", "int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float8_e4m3fnuz",
  "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
];
const KINDS = {
  int8: Int8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array,
  int64: BigInt64Array, uint64: BigUint64Array, float16: Uint16Array, bfloat16: Uint16Array, float32: Float32Array,
  float64: Float64Array, complex64: Float32Array, complex128: Float64Array,
};

const [, , module, inputs, outputs] = process.argv;
const { load } = await import(pathToFileURL(module));
const model = await load();
const file = readFileSync(inputs), values = {};
let at = 0;
const number = () => Number(file.readBigInt64LE((at += 8) - 8));
for (const info of model.inputs) {
  const Kind = KINDS[DTYPES[number()]] ?? Uint8Array, rank = number();
  const dims = Array.from({ length: rank }, number), parts = info.dtype.startsWith("complex") ? 2 : 1;
  const bytes = dims.reduce((n, d) => n * d, parts) * Kind.BYTES_PER_ELEMENT;
  values[info.name] = { data: new Kind(Uint8Array.from(file.subarray(at, at + bytes)).buffer), dims };
  at += bytes;
}
const found = model.run(values);
const chunks = model.outputs.flatMap(({ name }) => {
  const { data, dims, dtype } = found[name];
  const head = BigInt64Array.from([DTYPES.indexOf(dtype), dims.length, ...dims].map(BigInt));
  return [head, data].map((array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength));
});
writeFileSync(outputs, Buffer.concat(chunks));
