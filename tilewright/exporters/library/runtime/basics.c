/* What every exported model does around its kernels: checks, memory, threads, states. The tables above say what the
   model is. Nothing here depends on the model. C11; with TW_FREESTANDING on nothing but the compiler. */

#if defined(__x86_64__) && defined(TW_CPU_FEATURES)
#include <cpuid.h>
#endif

/* TW_PORTABLE: on nothing but standard C. */
#if defined(TW_FREESTANDING) || defined(TW_PORTABLE)
#define TW_ONE_THREAD
#endif

#define ALIGNMENT 64
#define COUNT(n) ((n) ? (n) : 1)

/* Words of the frame of native steps: see the interface of compiled programs. */
enum { FRAME_POOL, FRAME_THREADS, FRAME_POLL, FRAME_INTERVAL, FRAME_NEXT_POLL, FRAME_LOOP, FRAME_TRIP, FRAME_PART = 9,
       FRAME_CODE = 10, FRAME_STOPS = 11 };
enum { SLOT_DATA, SLOT_BLOCK, SLOT_FREE, SLOT_DIMS };
enum { STEPS_DONE, STEPS_PART_FAILED, STEPS_MISFIT, STEPS_STOPPED, STEPS_NO_MEMORY, STEPS_ROWS_DIFFER,
       STEPS_OUT_OF_RANGE };
#define POLL_NS 10000000
#define CANCELLED (-1) /* what code returns when the word at `stops` has changed */

typedef struct text {
  size_t length;
  char bytes[512];
} text;

struct model_model {
  text error;
  tw_options options;
  const unsigned char *weights;
  void *mapped;
  size_t mapped_bytes;
  void *pool;
  int32_t threads;
  unsigned process; /* of the threads */
  void *own;  /* what the library allocated for the model */
  void *work; /* arena, scratch and outputs: what it allocated, or the rest of the caller's memory */
  size_t work_bytes;
  int is_planned;
  size_t current; /* the program that runs for the last shapes */
  size_t arena, scratch;
  word call[8];
  _Atomic uint32_t stops;
  word *in_data, *out_data;
  int64_t *in_shapes, *out_shapes, *planned_shapes;
  int64_t *dims;
  int64_t *frame;
  size_t frame_program;
  void **state, **state_beside;
  void **given;      /* memory of the model that outputs of the last run got */
  int states_lost;   /* a run failed while it wrote states in place */
#ifndef TW_FREESTANDING
  atomic_uint busy; /* 0, or the process in which a thread is using it */
#endif
};

#ifdef TW_FREESTANDING
static text last_error;
#if HAS_STEPS
static model_model *running;
#endif
#else
static _Thread_local text last_error;
#if HAS_STEPS
static _Thread_local model_model *running;
#endif
#endif

/* Errors */

static void say(text *to, const char *words) {
  while (*words && to->length + 1 < sizeof to->bytes) to->bytes[to->length++] = *words++;
  to->bytes[to->length] = 0;
}

static void say_number(text *to, int64_t number) {
  char digits[24];
  size_t at = sizeof digits;
  uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
  digits[--at] = 0;
  do digits[--at] = (char)('0' + rest % 10);
  while (rest /= 10);
  if (number < 0) digits[--at] = '-';
  say(to, digits + at);
}

static void say_shape(text *to, const int64_t *shape, int32_t rank) {
  say(to, "[");
  for (int32_t k = 0; k < rank; k++) {
    if (k) say(to, ", ");
    say_number(to, shape[k]);
  }
  say(to, "]");
}

static text *anew(text *to) {
  to->length = 0;
  to->bytes[0] = 0;
  return to;
}

static tw_status failed(text *to, tw_status status, const char *words) {
  say(anew(to), words);
  return status;
}

static tw_status wrong_tensor(text *to, const char *kind, const tw_tensor_info *info, const char *words) {
  say(anew(to), kind);
  say(to, " '");
  say(to, info->name);
  say(to, "' ");
  say(to, words);
  return TW_BAD_INPUT;
}

/* Sizes */

static size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static int is_complex(tw_dtype dtype) { return dtype == TW_COMPLEX64 || dtype == TW_COMPLEX128; }

static size_t element_bytes(tw_dtype dtype) {
  switch (dtype) {
    case TW_INT16: case TW_UINT16: case TW_FLOAT16: case TW_BFLOAT16: return 2;
    case TW_INT32: case TW_UINT32: case TW_FLOAT32: return 4;
    case TW_INT64: case TW_UINT64: case TW_FLOAT64: case TW_COMPLEX64: return 8;
    case TW_COMPLEX128: return 16;
    default: return 1;
  }
}

static size_t element_alignment(tw_dtype dtype) {
  return is_complex(dtype) ? element_bytes(dtype) / 2 : element_bytes(dtype);
}

/* The bytes of a tensor; 0 and no answer where they do not fit into the address space. */
static int tensor_bytes(const int64_t *shape, int32_t rank, tw_dtype dtype, size_t *bytes) {
  uint64_t most = PTRDIFF_MAX, product = element_bytes(dtype);
  int is_empty = 0;
  for (int32_t k = 0; k < rank; k++) is_empty |= shape[k] == 0;
  *bytes = 0;
  if (is_empty) return 1;
  for (int32_t k = 0; k < rank; k++) {
    if (shape[k] < 0 || product > most / (uint64_t)shape[k]) return 0;
    product *= (uint64_t)shape[k];
  }
  *bytes = (size_t)product;
  return 1;
}
