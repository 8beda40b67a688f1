// Running the model of a WebAssembly module, made by tilewright, in browsers and in node:
//
//   import { load } from "./model.mjs";
//   const model = await load();                     // or load(bytes), load(url)
//   const { y } = model.run({ x: { data: new Float32Array(128), dims: [2, 64] } });
//
// `model.inputs` and `model.outputs` say names, dtypes and dims (a number, or the text of one that calls decide).
// Outputs are copies. What fails is an Error with the library's text.

const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
  uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, float16: Uint16Array, bfloat16: Uint16Array,
  float32: Float32Array, float64: Float64Array, complex64: Float32Array, complex128: Float64Array,
};
const DTYPES = [
  "", "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
  "float32", "float64", "complex64", "complex128", "int4", "uint4", "int2", "uint2", "float8_e4m3fn",
  "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
];

const TENSOR = 144, SHAPE_AT = 16, OPTIONS = 32, PAGE = 65536, NO_MEMORY = 4, UNKNOWN_SIZE = 9;

const array_of = (dtype) => ARRAYS[dtype] ?? Uint8Array;
const parts_of = (dtype) => (dtype.startsWith("complex") ? 2 : 1);
const count_of = (dims, dtype) => dims.reduce((n, d) => n * d, parts_of(dtype));
const align = (at) => Math.ceil(at / 64) * 64;

async function bytes_of(source) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return source;
  const url = source instanceof URL ? source : new URL(source, import.meta.url);
  if (url.protocol === "file:") return (await import("node:fs/promises")).readFile(url);
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`cannot load ${url}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

export async function load(source = new URL("./model.wasm", import.meta.url)) {
  const { instance } = await WebAssembly.instantiate(await bytes_of(source), {});
  return new Model(instance.exports);
}

export class Model {
  constructor(code) {
    this.code = code;
    this.end = align(code.__heap_base.value);
    this.limit = code.memory.buffer.byteLength;
    const info = code.model_info(), words = (k) => this.view().getUint32(info + 4 * k, true);
    this.name = this.text(words(1));
    this.target = this.text(words(2));
    this.inputs = this.infos(words(4), words(7));
    this.outputs = this.infos(words(5), words(8));
    this.states = this.infos(words(6), words(9));
    this.input_tensors = this.take(TENSOR * Math.max(1, this.inputs.length));
    this.output_tensors = this.take(TENSOR * Math.max(1, this.outputs.length));
    this.needs = this.take(64);
    this.options = this.take(OPTIONS);
    this.made = this.take(64);
    this.state_tensor = this.take(TENSOR);
    this.model = 0;
    this.memory = { at: 0, bytes: 0, end: 0 };
    this.room = { at: 0, bytes: 0 };
  }

  // Memory

  view() {
    return new DataView(this.code.memory.buffer);
  }

  text(at) {
    const bytes = new Uint8Array(this.code.memory.buffer, at);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }

  take(bytes, at = this.end) {
    const memory = this.code.memory, size = memory.buffer.byteLength;
    if (align(at + bytes) > this.limit) {
      if (size > this.limit) at = size; // the code has memory of its own there
      const missing = align(at + bytes) - size;
      if (missing > 0) memory.grow(Math.ceil(missing / PAGE));
      this.limit = memory.buffer.byteLength;
    }
    this.end = align(at + bytes);
    return at;
  }

  infos(count, at) {
    const view = this.view(), found = [];
    for (let k = 0; k < count; k++, at += 20) {
      const rank = view.getInt32(at + 8, true), shape = view.getUint32(at + 12, true), texts = view.getUint32(at + 16, true);
      const dims = Array.from({ length: rank }, (_, axis) => {
        const size = Number(view.getBigInt64(shape + 8 * axis, true));
        return size >= 0 ? size : this.text(view.getUint32(texts + 4 * axis, true));
      });
      found.push({ name: this.text(view.getUint32(at, true)), dtype: DTYPES[view.getInt32(at + 4, true)], dims });
    }
    return found;
  }

  put_tensor(at, data, bytes, dtype, dims) {
    const view = this.view();
    view.setUint32(at, data, true);
    view.setUint32(at + 4, bytes, true);
    view.setInt32(at + 8, DTYPES.indexOf(dtype), true);
    view.setInt32(at + 12, dims.length, true);
    dims.forEach((d, axis) => axis < 16 && view.setBigInt64(at + SHAPE_AT + 8 * axis, BigInt(d), true));
  }

  tensor(at, info) {
    const view = this.view(), rank = view.getInt32(at + 12, true);
    const dims = Array.from({ length: rank }, (_, axis) => Number(view.getBigInt64(at + SHAPE_AT + 8 * axis, true)));
    const Kind = array_of(info.dtype), count = count_of(dims, info.dtype);
    const data = count ? new Kind(this.code.memory.buffer, view.getUint32(at, true), count).slice() : new Kind(0);
    return { data, dims, dtype: info.dtype };
  }

  fail(status, model) {
    throw Object.assign(new Error(this.text(this.code.model_error(model))), { status });
  }

  // Runs

  run(values = {}) {
    const unknown = Object.keys(values).filter((name) => !this.inputs.some((info) => info.name === name));
    if (unknown.length) throw new Error(`the model has no input '${unknown[0]}'`);
    const given = this.inputs.map((info) => this.checked(info, values[info.name]));
    const bytes = given.reduce((sum, value) => sum + align(value.data.byteLength), 0);
    if (bytes > this.room.bytes) this.room = { at: this.take(2 * bytes), bytes: 2 * bytes };
    let at = this.room.at;
    given.forEach(({ data, dims, dtype }, k) => {
      new Uint8Array(this.code.memory.buffer).set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
      this.put_tensor(this.input_tensors + TENSOR * k, at, data.byteLength, dtype, dims);
      at += align(data.byteLength);
    });
    this.prepare(given);
    let status = this.call_run();
    if (status === NO_MEMORY) { // where sizes follow from values, these shapes need more now
      this.prepare(given, true);
      status = this.call_run();
    }
    if (status) this.fail(status, this.model);
    return Object.fromEntries(
      this.outputs.map((info, k) => [info.name, this.tensor(this.output_tensors + TENSOR * k, info)]),
    );
  }

  checked(info, value) {
    if (!value) throw new Error(`input '${info.name}' is missing`);
    const plain = ArrayBuffer.isView(value), Kind = array_of(info.dtype);
    const fixed = info.dims.every((d) => typeof d === "number");
    const data = plain ? value : value.data, said = (plain ? undefined : value.dims) ?? (fixed ? info.dims : undefined);
    if (!(data instanceof Kind)) throw new Error(`input '${info.name}' is ${info.dtype}: its data are a ${Kind.name}`);
    if (!said) throw new Error(`input '${info.name}' has dims that calls decide: give {data, dims}`);
    const dims = Array.from(said, Number);
    if (!dims.every((d) => Number.isSafeInteger(d) && d >= 0))
      throw new Error(`input '${info.name}' has dims [${dims}], which are no sizes`);
    if (count_of(dims, info.dtype) !== data.length)
      throw new Error(`input '${info.name}' has ${data.length} elements, and dims [${dims}]`);
    return { data, dims, dtype: info.dtype };
  }

  call_run() {
    for (let k = 0; k < this.outputs.length; k++) this.put_tensor(this.output_tensors + TENSOR * k, 0, 0, "", []);
    const { inputs, outputs, code } = this;
    return code.model_run(this.model, this.input_tensors, inputs.length, this.output_tensors, outputs.length);
  }

  // A model whose memory is enough for the shapes of the inputs.
  prepare(given, is_anew = false) {
    const shapes = JSON.stringify(given.map((value) => value.dims));
    if (this.model && shapes === this.shapes && !is_anew) return;
    const { code, inputs, outputs } = this;
    const status = code.model_plan(
      this.input_tensors, inputs.length, this.output_tensors, outputs.length, 1, this.needs,
    );
    if (status && status !== UNKNOWN_SIZE) this.fail(status, 0);
    const total = this.view().getUint32(this.needs + 16, true);
    if (!this.model || total > this.memory.bytes) this.create(total);
    this.shapes = shapes;
  }

  // A larger model takes the place of the one before, where nothing lies behind that.
  create(bytes) {
    const kept = this.model ? this.states.map((info, k) => this.state(k).slice()) : [];
    const at = this.take(bytes, this.end === this.memory.end ? this.memory.at : this.end);
    const view = this.view();
    [OPTIONS, 1, 0, 0, at, bytes, 0, 0].forEach((word, k) => view.setUint32(this.options + 4 * k, word, true));
    this.memory = { at, bytes, end: this.end };
    this.model = 0;
    const status = this.code.model_create(this.options, this.made);
    if (status) this.fail(status, 0);
    this.model = this.view().getUint32(this.made, true);
    kept.forEach((bytes, k) => this.state(k).set(bytes));
  }

  // The bytes of a state, in place, until the next run.
  state(index) {
    if (!this.model) throw new Error("states are there after the first run");
    const tensor = this.state_tensor;
    const status = this.code.model_state(this.model, index, tensor);
    if (status) this.fail(status, this.model);
    const view = this.view();
    return new Uint8Array(this.code.memory.buffer, view.getUint32(tensor, true), view.getUint32(tensor + 4, true));
  }

  reset() {
    if (this.model) this.code.model_reset(this.model);
  }
}
