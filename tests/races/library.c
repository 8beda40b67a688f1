/* Threads create, run, cancel and destroy models of one library, and run one of them together. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "mlp.h"

enum { ROWS = 40, COLUMNS = 64, RUNS = 100, USERS = 3 };
static mlp_model *shared;
static atomic_int wrong, ended;

static void run(mlp_model *model, int may_fail) {
  const tw_model_info *info = mlp_info();
  float *x = calloc(ROWS * COLUMNS, sizeof *x), *y = calloc(ROWS * COLUMNS * 8, sizeof *y);
  tw_tensor input = {x, ROWS * COLUMNS * sizeof *x, TW_FLOAT32, 2, {ROWS, COLUMNS}};
  tw_tensor output = {y, ROWS * COLUMNS * 8 * sizeof *y, TW_FLOAT32, 2, {0}};
  tw_status status = mlp_run(model, &input, 1, &output, info->output_count);
  if (status && !(may_fail && (status == TW_BUSY || status == TW_STOPPED))) wrong = (int)status;
  free(x);
  free(y);
}

static void *user(void *ignored) {
  (void)ignored;
  for (int k = 0; k < RUNS; k++) {
    run(shared, 1);
    if (k % 20) continue;
    mlp_model *own;
    tw_options options = {sizeof options, 2, 0, NULL, NULL, 0, NULL, NULL};
    if (mlp_create(&options, &own)) {
      wrong = -1;
      return NULL;
    }
    run(own, 0);
    mlp_destroy(own);
  }
  return NULL;
}

static void *canceller(void *ignored) {
  (void)ignored;
  while (!ended) mlp_cancel(shared);
  return NULL;
}

int main(void) {
  pthread_t users[USERS], other;
  tw_options options = {sizeof options, 2, 0, NULL, NULL, 0, NULL, NULL};
  if (mlp_create(&options, &shared)) return puts(mlp_error(NULL)), 3;
  pthread_create(&other, NULL, canceller, NULL);
  for (int k = 0; k < USERS; k++) pthread_create(users + k, NULL, user, NULL);
  for (int k = 0; k < USERS; k++) pthread_join(users[k], NULL);
  ended = 1;
  pthread_join(other, NULL);
  mlp_destroy(shared);
  if (wrong) return printf("status %d: %s\n", wrong, mlp_error(NULL)), 2;
  return puts("done"), 0;
}
