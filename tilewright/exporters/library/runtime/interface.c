/* The interface */

const tw_model_info *model_info(void) { return &the_info; }

static tw_status unknown_size(text *error) {
  return failed(error, TW_UNKNOWN_SIZE, "sizes follow from values that are computed: they are known after a run");
}

tw_status model_plan(const tw_tensor *inputs, size_t input_count, tw_tensor *outputs, size_t output_count,
                     int32_t threads, tw_needs *needs) {
  text *error = &last_error;
  int64_t in_shapes[COUNT(INPUT_AXES)] = {0}, out_shapes[COUNT(OUTPUT_AXES)], dims[COUNT(MOST_DIMS)], found[2];
  word in_data[COUNT(INPUTS + STATES)] = {{0}};
  size_t sizes[COUNT(OUTPUTS)], number;
  model_model measured;
  if (!needs) return failed(error, TW_BAD_ARGUMENT, "needs is null");
  if (threads < 1 || threads > 1024) return failed(error, TW_BAD_ARGUMENT, "threads are from 1 to 1024");
  tw_status status = check_counts(output_count, outputs, error);
  if (!status) status = check_inputs(inputs, input_count, PLAN_READS_DATA, in_shapes, error);
  if (status) return status;
  *needs = (tw_needs){lay_out(&measured, NULL), 0, 0, 0, 0};
  needs->total = aligned(needs->model) + ALIGNMENT;
  number = choose(inputs);
  if (programs[number].steps) return unknown_size(error);
  for (size_t k = 0; k != INPUTS; k++) in_data[k].at = inputs[k].data;
  for (size_t k = 0; k != STATES; k++) {
    in_data[INPUTS + k].at = (void *)(uintptr_t)first_of(k);
    if (PLAN_READS_DATA && !in_data[INPUTS + k].at)
      return failed(error, TW_UNKNOWN_SIZE, "sizes follow from a state whose first value is in the file of weights");
  }
  status = plan_any(&number, in_shapes, in_data, dims, out_shapes, found, error);
  if (HAS_BROADCASTING && status == TW_BAD_INPUT && programs[PROGRAMS - 1].steps) return unknown_size(error);
  if (!status) status = describe_outputs(outputs, out_shapes, sizes, error);
  if (status) return status;
  needs->arena = (size_t)found[0];
  needs->scratch = (size_t)found[1];
  size_t total = ALIGNMENT;
  int fits = add(&total, needs->model) && add(&total, needs->arena);
  for (int32_t k = 0; fits && k < threads; k++) fits = add(&total, needs->scratch);
  for (size_t k = 0; fits && k != OUTPUTS; k++) {
    fits = add(&needs->outputs, sizes[k]);
  }
  if (!fits || !add(&total, needs->outputs)) return failed(error, TW_NO_MEMORY, "the memory needed is out of range");
  needs->total = total;
  return TW_OK;
}

static tw_status begin(model_model *model, text *error) {
#ifdef TW_CPU_FEATURES
  const char *missing = missing_feature();
  if (missing) {
    say(anew(error), "this CPU lacks ");
    say(error, missing);
    say(error, ", which the code needs: it was made for ");
    say(error, the_info.target);
    return TW_WRONG_CPU;
  }
#endif
  tw_status status = find_weights(model, error);
  if (status) return status;
  model->call[1].at = model->in_data;
  model->call[2].at = model->out_data;
  model->call[3].at = (void *)(uintptr_t)model->weights;
  model->call[6].at = model->dims;
  model->call[7].at = (void *)&model->stops;
  fill_states(model);
#ifndef TW_ONE_THREAD
  watch_forks();
  model->process = process();
  if (model->threads > 1) {
    model->pool = model_tw_pool_create(model->threads, NULL, TW_SPIN_NS);
    if (!model->pool) return failed(error, TW_NO_MEMORY, "no memory for the threads");
  }
#endif
  model->call[0].at = model->pool;
  return TW_OK;
}

tw_status model_create(const tw_options *given, model_model **made) {
  text *error = &last_error;
  tw_options options = {sizeof options, 0, 0, NULL, NULL, 0, NULL, NULL};
  model_model measured, *model;
  void *own = NULL;
  if (!made) return failed(error, TW_BAD_ARGUMENT, "there is no place for the model: the second argument is null");
  *made = NULL;
  if (given) {
    if (given->size != sizeof options)
      return failed(error, TW_BAD_ARGUMENT, "the options are of another version: set size to sizeof(tw_options)");
    options = *given;
  }
  if (options.threads < 0 || options.threads > 1024)
    return failed(error, TW_BAD_ARGUMENT, "threads are from 1 to 1024, or 0 for all");
  size_t bytes = lay_out(&measured, NULL);
  unsigned char *base, *end = NULL;
#ifdef TW_ONE_THREAD
  if (options.threads > 1) return failed(error, TW_BAD_ARGUMENT, "this library has one thread");
  options.threads = 1;
#else
  if (!options.threads) options.threads = usable_cpus() < MOST_THREADS ? usable_cpus() : MOST_THREADS;
#endif
#ifdef TW_FREESTANDING
  if (!options.memory) return failed(error, TW_BAD_ARGUMENT, "this library needs memory of the caller");
#endif
  if (options.memory) {
    base = (unsigned char *)(((uintptr_t)options.memory + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    end = (unsigned char *)options.memory + options.memory_bytes;
    if (base > end || (size_t)(end - base) < bytes) {
      say(anew(error), "the memory is too small: the model alone needs ");
      say_number(error, (int64_t)bytes + ALIGNMENT);
      say(error, " bytes");
      return TW_NO_MEMORY;
    }
    memset(base, 0, aligned(sizeof *model));
  } else {
#ifdef TW_FREESTANDING
    return failed(error, TW_BAD_ARGUMENT, "this library needs memory of the caller");
#else
    base = zeroed(bytes, &own);
    if (!base) return failed(error, TW_NO_MEMORY, "no memory for the model");
#endif
  }
  model = (model_model *)base;
  lay_out(model, base);
  model->own = own;
  model->options = options;
  model->threads = options.threads;
  model->frame_program = PROGRAMS;
  if (end) {
    model->work = base + bytes;
    model->work_bytes = (size_t)(end - base) - bytes;
  }
#ifndef TW_FREESTANDING
  atomic_init(&model->busy, 0);
#endif
  tw_status status = begin(model, error);
  if (status) {
    model_destroy(model);
    return status;
  }
  *made = model;
  return TW_OK;
}

static tw_status run(model_model *model, const tw_tensor *inputs, size_t input_count, tw_tensor *outputs,
                     size_t output_count) {
  tw_status status = check_counts(output_count, outputs, &model->error);
  if (!status) status = check_inputs(inputs, input_count, 1, model->in_shapes, &model->error);
  if (status) return status;
#ifndef TW_ONE_THREAD
  if (model->process != process()) { /* the threads of the pool stayed with the parent */
    model->process = process();
    if (model->pool) model->pool = model_tw_pool_create(model->threads, NULL, TW_SPIN_NS);
    model->call[0].at = model->pool;
  }
#endif
  if (model->states_lost)
    return failed(&model->error, TW_FAILED, "the states are lost, as a run failed while it wrote them: reset the model");
  for (size_t k = 0; k != OUTPUTS; k++)
    if (outputs[k].data == model->given[k]) outputs[k].data = NULL;
  size_t number = choose(inputs);
  status = run_program(model, inputs, outputs, number);
  if (HAS_BROADCASTING && status == TW_BAD_INPUT && (programs[number].steps || programs[PROGRAMS - 1].steps))
    status = run_program(model, inputs, outputs, PROGRAMS - 1);
  return status;
}

#ifndef TW_FREESTANDING
/* In a forked child: a thread of the parent was using the model, and left it half way. What it had is not freed, as
   nobody knows what of it is whole. */
static void abandon(model_model *model) {
  lay_out(model, (unsigned char *)model);
  model->is_planned = 0;
  model->frame_program = PROGRAMS;
  model->states_lost = STATES > 0;
  if (model->options.memory) return;
  forget_given(model);
  model->work = NULL;
  model->work_bytes = 0;
}
#endif

/* What is busy says so by the status alone: its text would be written beside the other thread's. */
static int enter(model_model *model) {
#ifdef TW_FREESTANDING
  (void)model;
  return 1;
#else
  unsigned own = process(), found = 0;
  while (!atomic_compare_exchange_weak_explicit(&model->busy, &found, own, memory_order_acquire, memory_order_relaxed))
    if (found == own) return 0;
  if (found) abandon(model);
  return 1;
#endif
}

static tw_status leave(model_model *model, tw_status status) {
#ifdef TW_FREESTANDING
  (void)model;
#else
  atomic_store_explicit(&model->busy, 0, memory_order_release);
#endif
  return status;
}

tw_status model_run(model_model *model, const tw_tensor *inputs, size_t input_count, tw_tensor *outputs,
                    size_t output_count) {
  if (!model) return failed(&last_error, TW_BAD_ARGUMENT, "the model is null");
  if (!enter(model)) return TW_BUSY;
  return leave(model, run(model, inputs, input_count, outputs, output_count));
}

void model_cancel(model_model *model) {
  if (model) model->stops++;
}

static tw_status describe_state(model_model *model, size_t index, tw_tensor *state) {
  if (!STATES || index > COUNT(STATES) - 1 || !state) return failed(&model->error, TW_BAD_ARGUMENT, "there is no such state");
  const tw_tensor_info *info = state_infos + index;
  *state = (tw_tensor){model->state[index], states[index].bytes, info->dtype, info->rank, {0}};
  for (int32_t axis = 0; axis < info->rank; axis++) state->shape[axis] = info->shape[axis];
  return TW_OK;
}

tw_status model_state(model_model *model, size_t index, tw_tensor *state) {
  if (!model) return failed(&last_error, TW_BAD_ARGUMENT, "the model is null");
  if (!enter(model)) return TW_BUSY;
  return leave(model, describe_state(model, index, state));
}

tw_status model_reset(model_model *model) {
  if (!model) return failed(&last_error, TW_BAD_ARGUMENT, "the model is null");
  if (!enter(model)) return TW_BUSY;
  fill_states(model);
  return leave(model, TW_OK);
}

const char *model_error(const model_model *model) { return model ? model->error.bytes : last_error.bytes; }

void model_destroy(model_model *model) {
  if (!model) return;
#ifndef TW_FREESTANDING
  unsigned user = atomic_load(&model->busy);
  if (user && user != process()) abandon(model);
#endif
#if HAS_STEPS
  leave_frame(model);
#endif
#ifndef TW_ONE_THREAD
  if (model->pool && model->process == process()) model_tw_pool_destroy(model->pool);
#endif
#if defined(TW_PORTABLE) && !defined(TW_FREESTANDING)
  free(model->mapped);
#elif !defined(TW_FREESTANDING)
  if (model->mapped) munmap(model->mapped, model->mapped_bytes);
#endif
#ifndef TW_FREESTANDING
  if (!model->options.memory) free(model->work);
  free(model->own);
#endif
}

#if defined(TW_FREESTANDING) && !defined(TW_PORTABLE)
/* One thread runs all of a parallel loop. */
void model_tw_parallel(void *pool, void (*fn)(void *, int64_t, int64_t, int64_t), void *args, int64_t n) {
  (void)pool;
  if (n > 0) fn(args, 0, n, 0);
}

void model_tw_parallel_ordered(void *pool, void (*fn)(void *, int64_t, int64_t, int64_t), void *args, int64_t n,
                               _Bool backwards) {
  (void)pool, (void)backwards;
  if (n > 0) fn(args, 0, n, 0);
}
#endif
