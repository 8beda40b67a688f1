/* The C interface of a compiled model, made by tilewright.

   A model is created once, run any number of times by one thread at a time, and destroyed. Several models of one
   library share its code and weights; each has memory and states of its own, so that each thread may have one.
   Tensors are dense, in row-major order. Elements of 4 bits and less take a byte each. */

#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifndef TW_ABI
#define TW_ABI 1
#ifndef TW_PUBLIC
#define TW_PUBLIC
#endif
#define TW_MOST_AXES 16

typedef enum tw_status {
  TW_OK = 0,
  TW_BAD_ARGUMENT = 1,  /* a null pointer, a wrong count, options of another version */
  TW_BAD_INPUT = 2,     /* a tensor's dtype, rank, shape, size, alignment or value */
  TW_FAILED = 3,        /* the model itself: an index out of range, a division by zero */
  TW_NO_MEMORY = 4,     /* none left, or the caller's memory is too small */
  TW_BAD_WEIGHTS = 5,   /* a file of weights that is missing, cut off, damaged or another model's */
  TW_WRONG_CPU = 6,     /* the CPU lacks instructions that the code has */
  TW_BUSY = 7,          /* the model is running in another thread */
  TW_STOPPED = 8,       /* the function `proceed`, or model_cancel, ended the run */
  TW_UNKNOWN_SIZE = 9   /* sizes that follow from values are known after a run alone */
} tw_status;

typedef enum tw_dtype {
  TW_BOOL = 1, TW_INT8 = 2, TW_UINT8 = 3, TW_INT16 = 4, TW_UINT16 = 5, TW_INT32 = 6, TW_UINT32 = 7, TW_INT64 = 8,
  TW_UINT64 = 9, TW_FLOAT16 = 10, TW_BFLOAT16 = 11, TW_FLOAT32 = 12, TW_FLOAT64 = 13, TW_COMPLEX64 = 14,
  TW_COMPLEX128 = 15, TW_INT4 = 16, TW_UINT4 = 17, TW_INT2 = 18, TW_UINT2 = 19, TW_FLOAT8_E4M3FN = 20,
  TW_FLOAT8_E4M3FNUZ = 21, TW_FLOAT8_E5M2 = 22, TW_FLOAT8_E5M2FNUZ = 23, TW_FLOAT8_E8M0FNU = 24, TW_FLOAT4_E2M1FN = 25
} tw_dtype;

/* What an input, an output or a state is: a dim is -1 where it may have several sizes, and then `dims` says what they
   have in common: the name of a size, or a formula of names. */
typedef struct tw_tensor_info {
  const char *name;
  tw_dtype dtype;
  int32_t rank;
  const int64_t *shape;
  const char *const *dims;
} tw_tensor_info;

/* A tensor of a call. `bytes` are those of the memory at `data`, which is aligned to an element. */
typedef struct tw_tensor {
  void *data;
  size_t bytes;
  tw_dtype dtype;
  int32_t rank;
  int64_t shape[TW_MOST_AXES];
} tw_tensor;

typedef struct tw_model_info {
  uint32_t abi; /* TW_ABI of the library */
  const char *name;
  const char *target; /* the CPU that the code is for */
  const char *producer;
  size_t input_count, output_count, state_count;
  const tw_tensor_info *inputs, *outputs, *states;
  size_t weight_bytes;
} tw_model_info;

/* Bytes that a model takes: `model` of its own (with its states), `arena` for intermediate tensors, and `scratch` for
   each thread; `total` is what `memory` of the options must have for a run with these shapes. */
typedef struct tw_needs {
  size_t model, arena, scratch, outputs, total;
} tw_needs;

typedef struct tw_options {
  size_t size;          /* sizeof(tw_options) */
  int32_t threads;      /* 0: as many as the process may use, and a bound on the model's memory allows */
  int32_t check_weights; /* not 0: compare the sum of a file of weights, which reads all of it */
  const char *weights;  /* the file of weights; null: beside the library, under the name it was exported with */
  void *memory;         /* memory of the caller that all of the model is in; null: the library allocates */
  size_t memory_bytes;
  int (*proceed)(void *user); /* asked now and then by loops of the model (in WebAssembly
                                 never): 0 ends the run; null: never asked */
  void *user;
} tw_options;
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct model_model model_model;

TW_PUBLIC const tw_model_info *model_info(void);

/* The shapes of the outputs (data and bytes of these tensors are left alone) and the memory that a run on inputs of
   these shapes needs with so many threads. Inputs need data only where sizes are read from them; states are taken as
   they are before the first run. With TW_UNKNOWN_SIZE the needs are the model's own alone. */
TW_PUBLIC tw_status model_plan(const tw_tensor *inputs, size_t input_count, tw_tensor *outputs,
                               size_t output_count, int32_t threads, tw_needs *needs);

/* Null options are all zeros: all threads, memory from the C library. */
TW_PUBLIC tw_status model_create(const tw_options *options, model_model **made);

/* Compute. Outputs with null data get memory of the model, which is valid until the next run; dtype, rank, shape and
   (then) bytes are filled in. Other outputs overlap neither inputs nor each other, and no input is an output of the run
   before in memory of the model. When the shapes are those of the run before, nothing is allocated. */
TW_PUBLIC tw_status model_run(model_model *model, const tw_tensor *inputs, size_t input_count, tw_tensor *outputs,
                              size_t output_count);

/* End the run that is in progress, before its next kernel: it gives TW_STOPPED. Any thread may call this, and a handler of
   signals; where no run is in progress it does nothing. */
TW_PUBLIC void model_cancel(model_model *model);

/* The memory in which a state is between two runs; it may be read and written until the next run. */
TW_PUBLIC tw_status model_state(model_model *model, size_t index, tw_tensor *state);

/* Set all states to what they are before the first run. */
TW_PUBLIC tw_status model_reset(model_model *model);

/* What the last call that failed says of it; of model_plan and model_create (null) in this thread. */
TW_PUBLIC const char *model_error(const model_model *model);

/* Null does nothing. Memory of the caller stays the caller's. */
TW_PUBLIC void model_destroy(model_model *model);

#ifdef __cplusplus
}
#endif
#endif
