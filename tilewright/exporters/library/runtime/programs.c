/* What a state holds before the first run, as far as sizes are read from it; null where a file has it. */
static const void *first_of(size_t number) {
  static const _Alignas(ALIGNMENT) unsigned char zeros[ALIGNMENT];
  if (states[number].initial < 0) return zeros;
#if TW_WEIGHTS_BYTES && !defined(TW_WEIGHTS_BESIDE)
  return TW_WEIGHTS + states[number].initial;
#else
  return NULL;
#endif
}

/* The memory of a model: one block, laid out by the same function that measures it. */

static void *take(unsigned char *base, size_t *at, size_t bytes) {
  void *found = base ? base + *at : NULL;
  *at += aligned(COUNT(bytes));
  return found;
}

static size_t lay_out(model_model *model, unsigned char *base) {
  size_t at = aligned(sizeof *model);
  model->in_data = take(base, &at, sizeof(word) * (INPUTS + STATES));
  model->out_data = take(base, &at, sizeof(word) * (OUTPUTS + STATES));
  model->in_shapes = take(base, &at, sizeof(int64_t) * INPUT_AXES);
  model->planned_shapes = take(base, &at, sizeof(int64_t) * INPUT_AXES);
  model->out_shapes = take(base, &at, sizeof(int64_t) * OUTPUT_AXES);
  model->dims = take(base, &at, sizeof(int64_t) * MOST_DIMS);
  model->frame = take(base, &at, sizeof(int64_t) * MOST_WORDS);
  model->state = take(base, &at, sizeof(void *) * STATES);
  model->state_beside = take(base, &at, sizeof(void *) * STATES);
  model->given = take(base, &at, sizeof(void *) * OUTPUTS);
  for (size_t k = 0; k != STATES; k++) {
    void *memory = take(base, &at, states[k].bytes);
    void *beside = states[k].has_beside ? take(base, &at, states[k].bytes) : NULL;
    if (base) model->state[k] = memory, model->state_beside[k] = beside;
  }
  return at;
}

static void fill_states(model_model *model) {
  for (size_t k = 0; k != STATES; k++) {
    if (states[k].initial < 0)
      memset(model->state[k], 0, states[k].bytes);
    else
      memcpy(model->state[k], model->weights + states[k].initial, states[k].bytes);
  }
  model->states_lost = 0;
}

/* Programs and plans */

static tw_status failed_program(text *error, const failure *failures, int32_t count, int32_t code) {
  if (code == CANCELLED) return failed(error, TW_STOPPED, "the run was cancelled");
  if (code < 1 || code > count) return failed(error, TW_FAILED, "the model failed with an unknown code");
  return failed(error, failures[code - 1].status, failures[code - 1].message);
}

/* Whether the tensors are what the model takes, and their dims one after the other. */
static tw_status check_inputs(const tw_tensor *inputs, size_t count, int need_data, int64_t *flat, text *error) {
  if (count != INPUTS) {
    say(anew(error), "the model takes ");
    say_number(error, INPUTS);
    say(error, " inputs, and ");
    say_number(error, (int64_t)count);
    say(error, " are given");
    return TW_BAD_ARGUMENT;
  }
  if (count && !inputs) return failed(error, TW_BAD_ARGUMENT, "inputs are null");
  for (size_t k = 0; k != INPUTS; k++) {
    const tw_tensor *given = inputs + k;
    const tw_tensor_info *info = input_infos + k;
    size_t bytes;
    if (given->dtype != info->dtype) return wrong_tensor(error, "input", info, "has another dtype");
    if (given->rank != info->rank) return wrong_tensor(error, "input", info, "has another number of axes");
    for (int32_t axis = 0; axis < info->rank; axis++) {
      if (given->shape[axis] < 0 || (info->shape[axis] >= 0 && given->shape[axis] != info->shape[axis])) {
        wrong_tensor(error, "input", info, "has the shape ");
        say_shape(error, given->shape, info->rank);
        say(error, ", and the model takes ");
        say_shape(error, info->shape, info->rank);
        return TW_BAD_INPUT;
      }
      *flat++ = given->shape[axis];
    }
    if (is_complex(info->dtype)) *flat++ = 2;
    if (!tensor_bytes(given->shape, given->rank, given->dtype, &bytes))
      return wrong_tensor(error, "input", info, "is larger than the address space");
    if (!need_data && !given->data) continue;
    if (given->bytes < bytes) return wrong_tensor(error, "input", info, "has less memory than its shape needs");
    if (!given->data && bytes) return wrong_tensor(error, "input", info, "has null data");
    if ((uintptr_t)given->data % element_alignment(info->dtype))
      return wrong_tensor(error, "input", info, "is not aligned to an element");
  }
  return TW_OK;
}

/* Of an input that was checked. */
static size_t input_bytes(const tw_tensor *input) {
  size_t bytes;
  tensor_bytes(input->shape, input->rank, input->dtype, &bytes);
  return bytes;
}

/* The first program that was made for these sizes; the general one where there is none. */
static size_t choose(const tw_tensor *inputs) {
  for (size_t k = 1; k < PROGRAMS - HAS_BROADCASTING; k++) {
    int fits = 1;
    for (int32_t n = 0; fits && n < programs[k].fixed_count; n++) {
      const fixed_dim *fixed = programs[k].fixed + n;
      fits = inputs[fixed->input].shape[fixed->axis] == fixed->size;
    }
    if (fits) return k;
  }
  return 0;
}

/* Fill `dims`, `out_shapes`, and sizes of arena and scratch. */
static tw_status plan(const program *of, const int64_t *in_shapes, const word *in_data, int64_t *dims,
                      int64_t *out_shapes, int64_t sizes[2], text *error) {
  if (!of->plan) {
    size_t at = 0;
    for (int32_t k = 0; k < of->dims_count; k++) dims[k] = of->dims[k];
    for (size_t k = 0; k != OUTPUTS; k++) {
      for (int32_t axis = 0; axis < output_infos[k].rank; axis++) out_shapes[at++] = of->output_dims[k][axis];
      if (is_complex(output_infos[k].dtype)) out_shapes[at++] = 2;
    }
    sizes[0] = of->arena, sizes[1] = of->scratch;
  } else {
    int32_t code = of->plan(in_shapes, in_data, dims, out_shapes, sizes);
    if (code) return failed_program(error, of->failures, of->failure_count, code);
  }
  const uint64_t most = PTRDIFF_MAX - ALIGNMENT; /* which sizes below 0 are beyond, and those that are no number */
  if ((uint64_t)sizes[0] > most || (uint64_t)sizes[1] > most)
    return failed(error, TW_NO_MEMORY, "the memory needed is out of range");
  return TW_OK;
}

/* As `plan`, by the program of a number, or the one that broadcasts where it refuses the sizes (and has a plan). */
static tw_status plan_any(size_t *number, const int64_t *in_shapes, const word *in_data, int64_t *dims,
                          int64_t *out_shapes, int64_t sizes[2], text *error) {
  tw_status status = plan(programs + *number, in_shapes, in_data, dims, out_shapes, sizes, error);
  if (HAS_BROADCASTING && status == TW_BAD_INPUT && *number != PROGRAMS - 1 && !programs[PROGRAMS - 1].steps) {
    *number = PROGRAMS - 1;
    status = plan(programs + *number, in_shapes, in_data, dims, out_shapes, sizes, error);
  }
  return status;
}

static tw_status describe_outputs(tw_tensor *outputs, const int64_t *flat, size_t *sizes, text *error) {
  for (size_t k = 0; k != OUTPUTS; k++) {
    const tw_tensor_info *info = output_infos + k;
    outputs[k].dtype = info->dtype;
    outputs[k].rank = info->rank;
    for (int32_t axis = 0; axis < info->rank; axis++) outputs[k].shape[axis] = *flat++;
    if (is_complex(info->dtype)) flat++;
    if (!tensor_bytes(outputs[k].shape, info->rank, info->dtype, sizes + k)) {
      wrong_tensor(error, "output", info, "would have the shape ");
      say_shape(error, outputs[k].shape, info->rank);
      return TW_BAD_INPUT;
    }
  }
  return TW_OK;
}

static tw_status check_counts(size_t output_count, const tw_tensor *outputs, text *error) {
  if (output_count == OUTPUTS && (outputs || !OUTPUTS)) return TW_OK;
  say(anew(error), "the model has ");
  say_number(error, OUTPUTS);
  say(error, outputs ? " outputs, and another number is given" : " outputs, and null is given");
  return TW_BAD_ARGUMENT;
}

static int add(size_t *sum, size_t more) {
  if (*sum > SIZE_MAX - ALIGNMENT - more) return 0;
  *sum += aligned(more);
  return 1;
}

/* Running programs of kernels */

static tw_status no_memory(text *error, size_t bytes) {
  say(anew(error), "a run with these shapes needs ");
  say_number(error, (int64_t)bytes);
  say(error, " bytes of memory besides the model's own");
  return TW_NO_MEMORY;
}

#if !defined(TW_FREESTANDING) || HAS_STEPS
/* Memory that is freed may be the caller's next. */
static void forget_given(model_model *model) {
  for (size_t k = 0; k != OUTPUTS; k++) model->given[k] = NULL;
}
#endif

/* Make room for arena, scratch and those outputs that the caller has no memory for. */
static tw_status reserve(model_model *model, size_t bytes) {
  if (bytes <= model->work_bytes) return TW_OK;
  if (model->options.memory) return no_memory(&model->error, bytes);
#ifdef TW_FREESTANDING
  return no_memory(&model->error, bytes);
#else
  free(model->work);
  forget_given(model);
  model->work = NULL;
  model->work_bytes = 0;
  model->work = bytes > PTRDIFF_MAX ? NULL : block(bytes);
  if (!model->work) return no_memory(&model->error, bytes);
  model->work_bytes = bytes;
  return TW_OK;
#endif
}

static int same_shapes(const model_model *model) {
  return !INPUT_AXES || !memcmp(model->in_shapes, model->planned_shapes, sizeof(int64_t) * INPUT_AXES);
}

static int overlap(const void *one, size_t bytes, const void *other, size_t more) {
  uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;
  return bytes && more && (a < b ? b - a < bytes : a - b < more);
}

/* Inputs that lie in memory which the run writes: outputs of the run before. */
static tw_status check_apart(model_model *model, const tw_tensor *inputs, const void *memory, size_t bytes) {
  for (size_t k = 0; k != INPUTS; k++)
    if (overlap(inputs[k].data, input_bytes(inputs + k), memory, bytes))
      return wrong_tensor(&model->error, "input", input_infos + k,
                          "lies in memory of the model, which is an output's until this run: copy it");
  return TW_OK;
}

/* Outputs in memory of the caller have room, and overlap neither inputs, each other, nor the model's own memory. */
static tw_status check_outputs(model_model *model, const tw_tensor *inputs, const tw_tensor *outputs,
                               const size_t *sizes) {
  for (size_t k = 0; k != OUTPUTS; k++) {
    const char *words = NULL;
    if (!outputs[k].data) continue;
    if (outputs[k].bytes < sizes[k]) words = "has less memory than its shape needs";
    if ((uintptr_t)outputs[k].data % element_alignment(outputs[k].dtype)) words = "is not aligned to an element";
    if (overlap(outputs[k].data, sizes[k], model->work, model->work_bytes)) words = "lies in memory of the model";
    for (size_t n = 0; !words && n != INPUTS; n++)
      if (overlap(outputs[k].data, sizes[k], inputs[n].data, input_bytes(inputs + n))) words = "overlaps an input";
    for (size_t n = 0; !words && n < k; n++)
      if (overlap(outputs[k].data, sizes[k], outputs[n].data, sizes[n])) words = "overlaps another output";
    if (words) return wrong_tensor(&model->error, "output", output_infos + k, words);
  }
  return TW_OK;
}

static tw_status give_outputs(model_model *model, tw_tensor *outputs, const size_t *sizes) {
  size_t bytes = 0;
  text *error = &model->error;
  if (!add(&bytes, model->arena)) return no_memory(error, SIZE_MAX / 2);
  for (int32_t k = 0; k < model->threads; k++)
    if (!add(&bytes, model->scratch)) return no_memory(error, SIZE_MAX / 2);
  size_t first = bytes;
  for (size_t k = 0; k != OUTPUTS; k++)
    if (!outputs[k].data && !add(&bytes, sizes[k])) return no_memory(error, SIZE_MAX / 2);
  tw_status status = reserve(model, bytes);
  if (status) return status;
  unsigned char *work = model->work;
  model->call[4].at = work;
  model->call[5].at = work + aligned(model->arena);
  for (size_t k = 0; k != OUTPUTS; k++) {
    if (!outputs[k].data) {
      model->given[k] = outputs[k].data = work + first;
      outputs[k].bytes = sizes[k];
      first += aligned(sizes[k]);
    }
    model->out_data[k].at = outputs[k].data;
  }
  return TW_OK;
}

/* Those that a run writes in place, to the memory beside them or back. */
static void copy_counters(model_model *model, const program *of, int keep) {
  for (size_t k = 0; k != STATES; k++) {
    if (!states[k].is_counter || of->swaps[k]) continue;
    void *from = keep ? model->state[k] : model->state_beside[k];
    memcpy(keep ? model->state_beside[k] : model->state[k], from, states[k].bytes);
  }
}

static tw_status run_kernels(model_model *model, const tw_tensor *inputs, tw_tensor *outputs, size_t number) {
  size_t sizes[COUNT(OUTPUTS)];
  tw_status status = check_apart(model, inputs, model->work, model->work_bytes);
  if (status) return status;
  for (size_t k = 0; k != INPUTS; k++) model->in_data[k].at = inputs[k].data;
  for (size_t k = 0; k != STATES; k++) {
    model->in_data[INPUTS + k].at = model->state[k];
    model->out_data[OUTPUTS + k].at = model->state_beside[k];
  }
  if (!model->is_planned || programs[model->current].reads_data || !same_shapes(model)) {
    int64_t needs[2];
    model->is_planned = 0;
    model->current = number;
    status = plan_any(&model->current, model->in_shapes, model->in_data, model->dims, model->out_shapes, needs,
                      &model->error);
    if (status) return status;
    model->arena = (size_t)needs[0];
    model->scratch = (size_t)needs[1];
    memcpy(model->planned_shapes, model->in_shapes, sizeof(int64_t) * INPUT_AXES);
    model->is_planned = 1;
  }
  status = describe_outputs(outputs, model->out_shapes, sizes, &model->error);
  if (!status) status = check_outputs(model, inputs, outputs, sizes);
  if (!status) status = give_outputs(model, outputs, sizes);
  if (status) return status;
  const program *of = programs + model->current;
  model->states_lost = of->loses_states;
  copy_counters(model, of, 1);
  int32_t code = of->run(model->call);
  if (code) copy_counters(model, of, 0);
  if (code) return failed_program(&model->error, of->failures, of->failure_count, code);
  for (size_t k = 0; k != STATES; k++)
    if (of->swaps[k]) {
      void *before = model->state[k];
      model->state[k] = model->state_beside[k];
      model->state_beside[k] = before;
    }
  model->states_lost = 0;
  return TW_OK;
}

/* Running programs of steps: loops, branches, sizes that follow from values */

#if HAS_STEPS
/* A loop goes on where LOOP is -1 afterwards. */
static int32_t proceed(int64_t ignored) {
  int goes_on = !running->options.proceed || running->options.proceed(running->options.user);
  (void)ignored;
  if (goes_on) running->frame[FRAME_LOOP] = -1;
  return goes_on;
}

static tw_status failed_steps(model_model *model, const program *of, int32_t code) {
  const int64_t *frame = model->frame;
  text *error = &model->error;
  switch (code) {
    case STEPS_PART_FAILED: {
      const part *failing = of->steps->parts + frame[FRAME_PART];
      return failed_program(error, failing->failures, failing->failure_count, (int32_t)frame[FRAME_CODE]);
    }
    case CANCELLED: return failed(error, TW_STOPPED, "the run was cancelled");
    case STEPS_MISFIT: return failed(error, TW_BAD_INPUT, "values within the model have shapes that do not fit");
    case STEPS_STOPPED: return failed(error, TW_STOPPED, "the run was ended by the function proceed");
    case STEPS_ROWS_DIFFER:
      return failed(error, TW_FAILED, "the rows that a loop collects have different shapes");
    case STEPS_OUT_OF_RANGE: return failed(error, TW_FAILED, "a size is below zero");
    default: return failed(error, TW_NO_MEMORY, "no memory for a value");
  }
}

static void leave_frame(model_model *model) {
  if (model->frame_program == PROGRAMS) return;
  programs[model->frame_program].steps->clear(model->frame);
  programs[model->frame_program].steps->free(model->frame);
  model->frame_program = PROGRAMS;
}

static void enter_frame(model_model *model, size_t number) {
  const steps *of = programs[number].steps;
  leave_frame(model);
  memset(model->frame, 0, sizeof(int64_t) * MOST_WORDS);
  for (int32_t k = 0; k < of->part_count; k++) {
    int64_t *words = model->frame + of->parts_at + 3 * k;
    words[0] = (int64_t)(intptr_t)of->parts[k].plan;
    words[1] = (int64_t)(intptr_t)of->parts[k].run;
    words[2] = (int64_t)(intptr_t)model->weights;
  }
  model->frame[FRAME_POLL] = (int64_t)(intptr_t)proceed;
  model->frame[FRAME_INTERVAL] = POLL_NS;
  model->frame_program = number;
}

static int is_input(size_t number) { return INPUTS && number <= COUNT(INPUTS) - 1; }

/* The memory of what the steps give: a slot, or (below 0) an input or a state as it came. */
static const void *result_of(const model_model *model, const tw_tensor *inputs, int32_t place, const int64_t **shape) {
  if (place >= 0) {
    *shape = model->frame + place + SLOT_DIMS;
    return (const void *)(intptr_t)model->frame[place + SLOT_DATA];
  }
  size_t number = (size_t)(-1 - place);
  *shape = is_input(number) ? inputs[number].shape : state_infos[number - INPUTS].shape;
  return is_input(number) ? inputs[number].data : model->state[number - INPUTS];
}

static tw_status steps_outputs(model_model *model, const steps *of, const tw_tensor *inputs, tw_tensor *outputs) {
  const void *found[COUNT(OUTPUTS)];
  size_t sizes[COUNT(OUTPUTS)];
  for (size_t k = 0; k != OUTPUTS; k++) {
    const tw_tensor_info *info = output_infos + k;
    const int64_t *shape;
    found[k] = result_of(model, inputs, of->outputs[k], &shape);
    outputs[k].dtype = info->dtype;
    outputs[k].rank = info->rank;
    for (int32_t axis = 0; axis < info->rank; axis++) outputs[k].shape[axis] = shape[axis];
    if (!tensor_bytes(outputs[k].shape, info->rank, info->dtype, sizes + k))
      return wrong_tensor(&model->error, "output", info, "is larger than the address space");
  }
  tw_status status = check_outputs(model, inputs, outputs, sizes);
  if (status) return status;
  for (size_t k = 0; k != OUTPUTS; k++) {
    if (!outputs[k].data) {
      model->given[k] = outputs[k].data = (void *)(uintptr_t)found[k];
      outputs[k].bytes = sizes[k];
    } else if (sizes[k]) {
      memmove(outputs[k].data, found[k], sizes[k]);
    }
  }
  return TW_OK;
}

/* Inputs that lie in memory which the last run gave to its outputs, and this one frees. */
static tw_status check_frame(model_model *model, const tw_tensor *inputs) {
  if (model->frame_program == PROGRAMS) return TW_OK;
  const steps *of = programs[model->frame_program].steps;
  for (size_t k = 0; k != OUTPUTS; k++) {
    size_t bytes;
    if (of->outputs[k] < 0) continue;
    const int64_t *slot = model->frame + of->outputs[k];
    if (!slot[SLOT_BLOCK]) continue; /* memory of an input */
    if (!tensor_bytes(slot + SLOT_DIMS, output_infos[k].rank, output_infos[k].dtype, &bytes)) continue;
    tw_status status = check_apart(model, inputs, (const void *)(intptr_t)slot[SLOT_DATA], bytes);
    if (status) return status;
  }
  return TW_OK;
}

/* What the states hold next, before any of them changes: one may become what another was. */
static void keep_states(model_model *model, const steps *of, const tw_tensor *inputs) {
  const int64_t *ignored;
  for (size_t k = 0; k != STATES; k++)
    memcpy(model->state_beside[k], result_of(model, inputs, of->outputs[OUTPUTS + k], &ignored), states[k].bytes);
  for (size_t k = 0; k != STATES; k++) {
    void *before = model->state[k];
    model->state[k] = model->state_beside[k];
    model->state_beside[k] = before;
  }
}

static int64_t now(void) {
#ifdef TW_FREESTANDING
  return 0;
#else
  struct timespec time;
#ifdef TW_PORTABLE
  timespec_get(&time, TIME_UTC);
#else
  clock_gettime(CLOCK_MONOTONIC, &time);
#endif
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
#endif
}

static void fill_slots(model_model *model, const steps *of, const tw_tensor *inputs) {
  for (size_t k = 0; k != INPUTS + STATES; k++) {
    if (of->inputs[k] < 0) continue;
    const tw_tensor_info *info = is_input(k) ? input_infos + k : state_infos + (k - INPUTS);
    const int64_t *shape = is_input(k) ? inputs[k].shape : info->shape;
    int64_t *slot = model->frame + of->inputs[k];
    slot[SLOT_DATA] = (int64_t)(intptr_t)(is_input(k) ? inputs[k].data : model->state[k - INPUTS]);
    for (int32_t axis = 0; axis < info->rank; axis++) slot[SLOT_DIMS + axis] = shape[axis];
    if (is_complex(info->dtype)) slot[SLOT_DIMS + info->rank] = 2;
  }
}

static tw_status run_steps(model_model *model, const tw_tensor *inputs, tw_tensor *outputs, size_t number) {
  const steps *of = programs[number].steps;
  int64_t *frame = model->frame;
  tw_status status = check_frame(model, inputs);
  if (status) return status;
  forget_given(model);
  if (model->frame_program != number)
    enter_frame(model, number);
  else
    of->clear(frame);
  fill_slots(model, of, inputs);
  frame[FRAME_STOPS] = (int64_t)(intptr_t)&model->stops;
  frame[FRAME_POOL] = (int64_t)(intptr_t)model->pool;
  frame[FRAME_THREADS] = model->threads;
  frame[FRAME_NEXT_POLL] = now() + POLL_NS;
  model_model *before = running;
  running = model;
  int32_t code = of->run(frame);
  running = before;
  status = code ? failed_steps(model, programs + number, code) : steps_outputs(model, of, inputs, outputs);
  if (code) of->clear(frame);
  if (!status) keep_states(model, of, inputs);
  return status;
}
#endif

static tw_status run_program(model_model *model, const tw_tensor *inputs, tw_tensor *outputs, size_t number) {
#if HAS_STEPS
  if (programs[number].steps) return run_steps(model, inputs, outputs, number);
#endif
  return run_kernels(model, inputs, outputs, number);
}
