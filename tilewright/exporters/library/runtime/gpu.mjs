// Running a model on the GPU of a browser (WebGPU), made by tilewright:
//
//   import { load } from "./model.mjs";
//   const model = await load();                     // its weights are in the file beside this one
//   const { y } = await model.run({ x: { data: new Float32Array(128), dims: [2, 64] } });
//
// `model.inputs` and `model.outputs` say names, dtypes and dims (a number, or the text of one that calls decide).
// `model.states` are what it keeps from call to call, on the GPU: `await model.state(name)` reads one,
// `await model.set_state(name, data)` sets it, `await model.reset()` sets all to what they were at first. A call that
// fails leaves them as they were, but for those that kernels write in place: they are lost, until they are set. What
// fails is an Error.

const PROGRAM = {{PROGRAM}};
const WEIGHTS_AT = {{WEIGHTS_AT}};
const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
  uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, float16: Uint16Array, bfloat16: Uint16Array,
  float32: Float32Array, complex64: Float32Array,
};
const ALIGNMENT = 256, TOLD = 1024, MOST_GROUPS = 65535, LARGEST = 2 ** 31 - 1, NO_ERROR = 0xffffffff;
const SAFE_ITERATIONS = 1 << 15, TRIED_ITERATIONS = 1 << 17;
const ARENA = 0, CONSTANTS = 1, INPUTS = 2, OUTPUTS = 3, ERRORS = 4, CALLS = 5, STATES = 5;

const array_of = (dtype) => ARRAYS[dtype] ?? Uint8Array;
const aligned = (bytes) => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;
const places = (sizes) => sizes.reduce((found, size) => [...found, found.at(-1) + aligned(size)], [0]);
const count_of = (dims, dtype) => dims.reduce((n, d) => n * d, dtype.startsWith("complex") ? 2 : 1);

const OPERATIONS = {
  add: (a, b) => a + b, mul: (a, b) => a * b, min: Math.min, max: Math.max,
  floordiv: (a, b) => (b ? Math.floor(a / b) : a), mod: (a, b) => (b ? a - b * Math.floor(a / b) : 0),
  ge0: (a) => Number(a >= 0), eq0: (a) => Number(a === 0),
};

// An expression with these values of the variables.
function value_of(e, dims) {
  if (typeof e === "number") return e;
  const [kind, ...operands] = e;
  if (kind === "dim") return dims[operands[0]];
  if (kind === "select") return value_of(operands[value_of(operands[0], dims) ? 1 : 2], dims);
  return OPERATIONS[kind](...operands.map((o) => value_of(o, dims)));
}

// Bytes of an array, behind each other in memory that is a whole number of words.
function words_of(data) {
  const bytes = new Uint8Array(Math.ceil(data.byteLength / 4) * 4);
  bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  return bytes;
}

async function bytes_of(source) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return source;
  const answer = await fetch(source).catch((error) => {
    throw new Error(`cannot load ${source}: ${error.message}`);
  });
  if (!answer.ok) throw new Error(`cannot load ${source}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

export async function load(weights = new URL({{WEIGHTS}}, import.meta.url)) {
  const adapter = await globalThis.navigator?.gpu?.requestAdapter();
  if (!adapter) {
    const open = globalThis.isSecureContext === false;
    const why = open ? "pages have it over HTTPS, and from localhost" : "WebGPU is off, or there is no driver";
    throw new Error(`this browser offers no GPU (${why})`);
  }
  const { maxStorageBufferBindingSize, maxBufferSize } = adapter.limits;
  const requiredLimits = { maxStorageBufferBindingSize, maxBufferSize };
  const device = await adapter.requestDevice({ requiredLimits }).catch((error) => {
    throw new Error(`the GPU of this browser cannot be used: ${error.message}`);
  });
  const bytes = await bytes_of(weights), found = bytes.byteLength - WEIGHTS_AT;
  if (found !== PROGRAM.constants)
    throw new Error(`the weights have ${found} bytes, and the model ${PROGRAM.constants}: export it again`);
  const model = new Model(device, ArrayBuffer.isView(bytes) ? bytes.slice() : new Uint8Array(bytes));
  await model.prepare_pipelines().catch((error) => {
    throw new Error(`the GPU of this browser cannot run the kernels of the model: ${error.message}`);
  });
  const is_safe = (call) => call.launches.every(([, , n]) => typeof n === "number" && n <= SAFE_ITERATIONS);
  model.most_iterations = PROGRAM.calls.every(is_safe) ? Infinity : await most_iterations(device);
  return model;
}

// The iterations of loops that a thread goes through at most: drivers that run shaders on CPUs may end it, without an
// error. Each iteration makes the next number of a sequence in which none comes twice.
async function most_iterations(device) {
  const code = `@group(0) @binding(0) var<storage, read_write> x: array<u32>;
    @compute @workgroup_size(1)
    fn main() { for (var k = 0u; k < ${TRIED_ITERATIONS}u; k++) { x[0] = x[0] * 1664525u + 1013904223u; } }`;
  const { STORAGE, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
  const buffer = device.createBuffer({ size: 4, usage: STORAGE | COPY_SRC });
  const back = device.createBuffer({ size: 4, usage: COPY_DST | MAP_READ });
  const compute = { module: device.createShaderModule({ code }), entryPoint: "main" };
  const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute });
  const encoder = device.createCommandEncoder(), work = encoder.beginComputePass();
  const entries = [{ binding: 0, resource: { buffer } }];
  work.setPipeline(pipeline);
  work.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
  work.dispatchWorkgroups(1);
  work.end();
  encoder.copyBufferToBuffer(buffer, 0, back, 0, 4);
  device.queue.submit([encoder.finish()]);
  await back.mapAsync(GPUMapMode.READ);
  const [made] = new Uint32Array(back.getMappedRange().slice(0));
  for (let k = 1, x = 0; k <= TRIED_ITERATIONS; k++) {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    if (x === made) return k === TRIED_ITERATIONS ? Infinity : k;
  }
  return 0;
}

export class Model {
  constructor(device, weights) {
    this.device = device;
    this.weights = weights;
    this.inputs = PROGRAM.inputs;
    this.outputs = PROGRAM.outputs;
    this.states = PROGRAM.states;
    this.buffers = [];
    this.shapes = "";
    this.running = Promise.resolve();
    device.lost.then((info) => (this.lost = `the GPU was lost: ${info.message || info.reason}; load the model again`));
    this.keep_states();
  }

  // Memory of the GPU for what states hold. Those that are `known` lie on the host, too, and behind the outputs.
  keep_states() {
    const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
    this.state_places = places(this.states.map((state) => (state.known ? 0 : state.bytes)));
    const size = Math.max(4, this.state_places.at(-1));
    this.check_sizes([size], ["states"]);
    this.kept = this.device.createBuffer({ size, usage: STORAGE | COPY_SRC | COPY_DST });
    this.known_states = [];
    this.lost_states = new Set();
    this.states.forEach((state, k) => this.hold(k, this.first_of(state)));
  }

  first_of(state) {
    const Kind = array_of(state.dtype), at = WEIGHTS_AT + state.initial;
    return state.initial < 0 ? new Kind(state.bytes / Kind.BYTES_PER_ELEMENT)
      : new Kind(this.weights.slice(at, at + state.bytes).buffer);
  }

  hold(k, data) {
    if (this.states[k].known) this.known_states[k] = data.slice();
    else if (data.byteLength) this.device.queue.writeBuffer(this.kept, this.state_places[k], words_of(data));
    this.lost_states.delete(k);
  }

  number_of(name) {
    const k = this.states.findIndex((state) => state.name === name);
    if (k < 0) throw new Error(`the model has no state '${name}'`);
    return k;
  }

  // What a state holds, as {data, dims, dtype}, after the calls that have begun.
  state(name) {
    return this.after_calls(async () => {
      const k = this.number_of(name), { bytes, dims, dtype, known } = this.states[k], { device } = this;
      this.check_states([k]);
      if (known) return { data: this.known_states[k].slice(), dims, dtype };
      const { COPY_DST, MAP_READ } = GPUBufferUsage, size = Math.max(4, Math.ceil(bytes / 4) * 4);
      const back = device.createBuffer({ size, usage: COPY_DST | MAP_READ }), encoder = device.createCommandEncoder();
      if (bytes) encoder.copyBufferToBuffer(this.kept, this.state_places[k], back, 0, size);
      device.queue.submit([encoder.finish()]);
      await back.mapAsync(GPUMapMode.READ);
      const Kind = array_of(dtype), data = new Kind(back.getMappedRange().slice(0, bytes));
      back.destroy();
      return { data, dims, dtype };
    });
  }

  set_state(name, value) {
    return this.after_calls(() => {
      const k = this.number_of(name);
      this.hold(k, this.checked(this.states[k], value, "state").data);
    });
  }

  reset() {
    return this.after_calls(() => this.states.forEach((state, k) => this.hold(k, this.first_of(state))));
  }

  check_states(numbers) {
    const k = numbers.find((k) => this.lost_states.has(k));
    if (k !== undefined)
      throw new Error(`a call has failed that writes state '${this.states[k].name}' in place: set it, or reset the model`);
  }

  // What a call writes in place is not what it was where it fails; of what grows the rows before are.
  lose_states() {
    this.states.forEach(({ known, swapped, grows }, k) => known || swapped || grows || this.lost_states.add(k));
  }

  async prepare_pipelines() {
    const { device } = this;
    const types = ["storage", "read-only-storage", "read-only-storage", "storage", "storage", "uniform", "storage"];
    this.layout = device.createBindGroupLayout({
      entries: types.map((type, binding) => ({
        binding, visibility: GPUShaderStage.COMPUTE, buffer: { type, hasDynamicOffset: type === "uniform" },
      })),
    });
    const layout = device.createPipelineLayout({ bindGroupLayouts: [this.layout] });
    const modules = Object.fromEntries(
      Object.entries(PROGRAM.modules).map(([name, code]) => [name, device.createShaderModule({ code })]),
    );
    const made = new Map();
    for (const call of PROGRAM.calls)
      for (const [entryPoint] of call.launches) {
        const key = `${call.module}/${entryPoint}`, module = modules[call.module];
        if (!made.has(key)) made.set(key, device.createComputePipelineAsync({ layout, compute: { module, entryPoint } }));
      }
    const found = await Promise.all(made.values());
    this.pipelines = new Map([...made.keys()].map((key, k) => [key, found[k]]));
  }

  // The outputs by name, each {data, dims, dtype}. Calls that begin meanwhile wait.
  run(values = {}) {
    return this.after_calls(() => this.run_one(values));
  }

  after_calls(work) {
    const result = this.running.then(() => {
      if (this.lost) throw new Error(this.lost);
      return work();
    });
    this.running = result.catch(() => {});
    return result;
  }

  // What `work` promises that submits a call, with errors of the GPU as those of the call: after one of them the next
  // call begins anew.
  async watched(work) {
    const { device } = this, kinds = ["internal", "validation", "out-of-memory"], failed = [];
    kinds.forEach((kind) => device.pushErrorScope(kind));
    const begun = new Promise((settle) => settle(work()));
    begun.catch(() => {}); // is looked at below
    for (const scope of kinds.map(() => device.popErrorScope())) {
      const error = await scope.catch(() => null);
      if (error) failed.push(error instanceof GPUOutOfMemoryError ? "it has no memory left" : error.message);
    }
    if (!failed.length) return begun;
    this.buffers.forEach((buffer) => buffer.destroy());
    this.buffers = [];
    this.shapes = "";
    this.lose_states();
    throw new Error(`the GPU failed: ${failed[0]}; use smaller inputs, or close other pages`);
  }

  // The bytes that a call gives back.
  async taken() {
    const size = ALIGNMENT + this.sizes.back;
    await this.back.mapAsync(GPUMapMode.READ, 0, size).catch(async (error) => {
      await Promise.race([this.device.lost, new Promise((wake) => setTimeout(wake, 100))]);
      throw new Error(this.lost ?? `the GPU failed: ${error.message}`);
    });
    const found = this.back.getMappedRange(0, size).slice(0);
    this.back.unmap();
    return found;
  }

  async run_one(values) {
    const unknown = Object.keys(values).filter((name) => !this.inputs.some((info) => info.name === name));
    if (unknown.length) throw new Error(`the model has no input '${unknown[0]}'`);
    const given = this.inputs.map((info) => this.checked(info, values[info.name]));
    this.check_states([...this.states.keys()]);
    const taken = await this.watched(() => {
      this.submit(given);
      return this.taken();
    });
    const { sizes } = this;
    const error = new Uint32Array(taken, 0, 1)[0];
    if (error !== NO_ERROR) {
      this.lose_states();
      throw new Error(PROGRAM.errors[error - 1] ?? `the model failed with the code ${error}`);
    }
    this.keep(taken);
    let axis = 0;
    return Object.fromEntries(
      this.outputs.map((info, k) => {
        const Kind = array_of(info.dtype), whole = this.out_shapes.slice(axis, (axis += this.ranks[k]));
        const at = ALIGNMENT + sizes.outputs[k], dims = info.dtype.startsWith("complex") ? whole.slice(0, -1) : whole;
        return [info.name, { data: new Kind(taken, at, count_of(dims, info.dtype)), dims, dtype: info.dtype }];
      }),
    );
  }

  // Where among the outputs a state is that a call has made.
  made_at(k) {
    const { known, swapped } = this.states[k], count = this.states.length;
    return this.sizes.outputs[this.outputs.length + k + (swapped ? (known ? 1 : 2) * count : 0)];
  }

  // A call has not failed: its states are those of the next one.
  keep(taken) {
    const encoder = this.device.createCommandEncoder();
    this.states.forEach(({ bytes, dtype, known, swapped }, k) => {
      const at = this.made_at(k), size = Math.ceil(bytes / 4) * 4;
      if (known) this.known_states[k] = new (array_of(dtype))(taken.slice(ALIGNMENT + at, ALIGNMENT + at + bytes));
      else if (swapped && size) encoder.copyBufferToBuffer(this.buffers[OUTPUTS], at, this.kept, this.state_places[k], size);
    });
    if (this.states.length) this.device.queue.submit([encoder.finish()]);
  }

  submit(given) {
    this.prepare(given);
    const { device, sizes } = this, { queue } = device;
    given.forEach(({ data }, k) => {
      const bytes = words_of(data);
      if (bytes.length) queue.writeBuffer(this.buffers[INPUTS], sizes.inputs[k], bytes);
    });
    this.states.forEach(({ known, bytes }, k) => {
      const at = sizes.outputs[this.outputs.length + k];
      if (known && bytes) queue.writeBuffer(this.buffers[OUTPUTS], at, words_of(this.known_states[k]));
    });
    queue.writeBuffer(this.buffers[ERRORS], 0, new Uint32Array([NO_ERROR]));
    const encoder = device.createCommandEncoder(), work = encoder.beginComputePass();
    for (const [pipeline, groups, told] of this.dispatches) {
      work.setPipeline(pipeline);
      work.setBindGroup(0, this.group, [told]);
      work.dispatchWorkgroups(...groups);
    }
    work.end();
    if (sizes.back) encoder.copyBufferToBuffer(this.buffers[OUTPUTS], 0, this.back, ALIGNMENT, sizes.back);
    encoder.copyBufferToBuffer(this.buffers[ERRORS], 0, this.back, 0, 4);
    queue.submit([encoder.finish()]);
  }

  checked(info, value, what = "input") {
    if (!value) throw new Error(`${what} '${info.name}' is missing`);
    const plain = ArrayBuffer.isView(value), Kind = array_of(info.dtype);
    const fixed = info.dims.every((d) => typeof d === "number");
    const data = plain ? value : value.data, said = (plain ? undefined : value.dims) ?? (fixed ? info.dims : undefined);
    if (!(data instanceof Kind)) throw new Error(`${what} '${info.name}' is ${info.dtype}: its data are a ${Kind.name}`);
    if (!said) throw new Error(`${what} '${info.name}' has dims that calls decide: give {data, dims}`);
    const dims = Array.from(said, Number);
    const fits = dims.length === info.dims.length && info.dims.every((d, k) => typeof d !== "number" || d === dims[k]);
    if (!fits || !dims.every((d) => Number.isSafeInteger(d) && d >= 0))
      throw new Error(`${what} '${info.name}' has dims [${dims}], and the model wants [${info.dims}]`);
    if (count_of(dims, info.dtype) !== data.length)
      throw new Error(`${what} '${info.name}' has ${data.length} elements, and dims [${dims}]`);
    return { data, dims: info.dtype.startsWith("complex") ? [...dims, 2] : dims };
  }

  // Sizes, buffers and what dispatches are told, for the shapes and data of a call.
  prepare(given) {
    const { dims, out_shapes } = this.planned(given), key = JSON.stringify([dims, out_shapes]);
    if (this.buffers.length && key === this.shapes) return;
    this.shapes = "";
    const sized = (of) => this.states.map((state) => (of(state) ? state.bytes : 0));
    const inputs = places(PROGRAM.input_bytes.map((e) => value_of(e, dims)));
    const outputs = places([
      ...PROGRAM.output_bytes.map((e) => value_of(e, dims)), ...sized((state) => state.known),
      ...sized((state) => state.known && state.swapped), ...sized((state) => !state.known && state.swapped),
    ]);
    const back = outputs[this.outputs.length + 2 * this.states.length];
    const arena = aligned(value_of(PROGRAM.arena, dims));
    const room = Math.max(0, ...PROGRAM.calls.map((call) => value_of(call.room, dims)));
    const bytes = [arena + room, PROGRAM.constants, inputs.at(-1), outputs.at(-1), 4];
    this.sizes = { inputs, outputs, arena, back };
    if (!this.buffers.length || bytes.some((n, k) => n > this.buffers[k].size)) this.allocate(bytes);
    this.tell(dims);
    this.out_shapes = out_shapes;
    this.ranks = this.outputs.map((info) => info.dims.length + (info.dtype.startsWith("complex") ? 1 : 0));
    this.shapes = key;
  }

  planned(given) {
    const { plan } = PROGRAM, dims = [];
    if (!plan) return { dims, out_shapes: PROGRAM.out_shapes };
    const lengths = given.flatMap((value) => value.dims);
    for (const [kind, ...source] of plan.dims) {
      if (kind === "axis") dims.push(lengths[source[0]]);
      else if (kind === "element") dims.push(Number(this.data_of(given, source[0])[source[1]]));
      else dims.push(value_of(source[0], dims));
    }
    for (const [holds, error] of plan.conditions) if (!value_of(holds, dims)) throw new Error(PROGRAM.errors[error - 1]);
    return { dims, out_shapes: plan.outputs.map((e) => value_of(e, dims)) };
  }

  data_of(given, k) {
    return k < given.length ? given[k].data : this.known_states[k - given.length];
  }

  check_sizes(bytes, names) {
    const { limits } = this.device, most = Math.min(limits.maxStorageBufferBindingSize, limits.maxBufferSize);
    bytes.forEach((n, k) => {
      if (n > most) throw new Error(`the model needs ${n} bytes for ${names[k]}, and a buffer of this GPU has ${most}`);
    });
  }

  allocate(bytes) {
    const { device } = this;
    this.check_sizes(bytes, ["the arena", "weights", "inputs", "outputs", "errors"]);
    this.buffers.forEach((buffer) => buffer.destroy());
    this.back?.destroy();
    this.buffers = []; // where one of them fails, none is used
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    this.buffers = bytes.map((n) => device.createBuffer({ size: aligned(Math.max(n, 1)), usage }));
    const size = TOLD * Math.max(1, PROGRAM.calls.length);
    this.buffers.push(device.createBuffer({ size, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST }));
    this.back = device.createBuffer({
      size: aligned(bytes[OUTPUTS]) + ALIGNMENT, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    });
    if (PROGRAM.constants) device.queue.writeBuffer(this.buffers[CONSTANTS], 0, this.weights, WEIGHTS_AT);
    this.group = device.createBindGroup({
      layout: this.layout,
      entries: [...this.buffers, this.kept].map((buffer, binding) => ({
        binding, resource: binding === CALLS ? { buffer, size: TOLD } : { buffer },
      })),
    });
  }

  tell(dims) {
    const { calls } = PROGRAM, { inputs, outputs, arena } = this.sizes;
    const told = new Uint32Array((TOLD / 4) * Math.max(1, calls.length)), starts = {
      [INPUTS]: inputs, [OUTPUTS]: outputs, [STATES]: this.state_places,
    };
    this.dispatches = [];
    calls.forEach((call, k) => {
      let at = (TOLD / 4) * k;
      for (const [base, index, offset] of call.places) told[at++] = (starts[base]?.[index] ?? 0) + value_of(offset, dims);
      told[at++] = arena;
      for (const e of call.dims) {
        const size = value_of(e, dims);
        if (Math.abs(size) > LARGEST)
          throw new Error(`a size or index of the call is ${size}, and kernels on a GPU have those of 32 bits`);
        told[at++] = size;
      }
      told[(TOLD / 4) * (k + 1) - 1] = call.errors;
      for (const [entry, counts, iterations] of call.launches) {
        const needed = iterations === null ? Infinity : value_of(iterations, dims);
        if (needed > SAFE_ITERATIONS && this.most_iterations < Infinity && needed > this.most_iterations)
          throw new Error(`a thread of kernel '${call.kernel}' goes through up to ${needed} iterations of loops, and ` +
            `the driver of this GPU ends threads after ${this.most_iterations}`);
        const groups = counts.map((n) => Math.min(value_of(n, dims), MOST_GROUPS));
        this.dispatches.push([this.pipelines.get(`${call.module}/${entry}`), groups, TOLD * k]);
      }
    });
    this.device.queue.writeBuffer(this.buffers[CALLS], 0, told);
  }
}
