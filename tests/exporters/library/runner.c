/* Runs an exported model on tensors of a file, and writes its outputs to another: `runner INPUTS OUTPUTS [THREADS]`.
   A file is, for each tensor, dtype, rank and dims as little-endian int64, then the elements. MODEL is the library's
   name; its header is included on the command line. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define F(name) JOIN(MODEL, name)

static int64_t number(FILE *file) {
  unsigned char bytes[8];
  uint64_t found = 0;
  if (fread(bytes, 1, 8, file) != 8) exit(9);
  for (int k = 7; k >= 0; k--) found = found << 8 | bytes[k];
  return (int64_t)found;
}

static void put(int64_t value, FILE *file) {
  for (int k = 0; k < 8; k++) fputc((int)((uint64_t)value >> 8 * k & 255), file);
}

static size_t width(tw_dtype dtype) {
  static const unsigned char widths[] = {0, 1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 4, 8};
  return dtype < (int)sizeof widths ? widths[dtype] : 1;
}

/* Files are little-endian. */
static void swap(void *data, size_t count, size_t bytes) {
  const uint16_t one = 1;
  unsigned char *at = data;
  if (*(const unsigned char *)&one) return;
  for (; count--; at += bytes)
    for (size_t k = 0; k < bytes / 2; k++) {
      unsigned char kept = at[k];
      at[k] = at[bytes - 1 - k];
      at[bytes - 1 - k] = kept;
    }
}

static size_t elements(const tw_tensor *tensor) {
  size_t count = tensor->dtype == TW_COMPLEX64 || tensor->dtype == TW_COMPLEX128 ? 2 : 1;
  for (int k = 0; k < tensor->rank; k++) count *= (size_t)tensor->shape[k];
  return count;
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const tw_model_info *info = F(_info)();
  tw_tensor *inputs = calloc(info->input_count + 1, sizeof *inputs);
  tw_tensor *outputs = calloc(info->output_count + 1, sizeof *outputs);
  F(_model) *model;
  tw_options options = {.size = sizeof options, .threads = argc > 3 ? atoi(argv[3]) : 1};
  FILE *file = fopen(argv[1], "rb");
  for (size_t k = 0; k < info->input_count; k++) {
    inputs[k].dtype = (tw_dtype)number(file);
    inputs[k].rank = (int32_t)number(file);
    for (int axis = 0; axis < inputs[k].rank; axis++) inputs[k].shape[axis] = number(file);
    size_t count = elements(inputs + k), each = width(inputs[k].dtype);
    inputs[k].bytes = count * each;
    inputs[k].data = malloc(inputs[k].bytes + 1);
    if (fread(inputs[k].data, 1, inputs[k].bytes, file) != inputs[k].bytes) return 9;
    swap(inputs[k].data, count, each);
  }
  fclose(file);
  if (F(_create)(&options, &model)) return fprintf(stderr, "%s\n", F(_error)(NULL)), 3;
  if (F(_run)(model, inputs, info->input_count, outputs, info->output_count))
    return fprintf(stderr, "%s\n", F(_error)(model)), 4;
  file = fopen(argv[2], "wb");
  for (size_t k = 0; k < info->output_count; k++) {
    size_t count = elements(outputs + k), each = width(outputs[k].dtype);
    put(outputs[k].dtype, file);
    put(outputs[k].rank, file);
    for (int axis = 0; axis < outputs[k].rank; axis++) put(outputs[k].shape[axis], file);
    swap(outputs[k].data, count, each);
    fwrite(outputs[k].data, each, count, file);
  }
  fclose(file);
  F(_destroy)(model);
  return 0;
}
