/* Three threads run jobs on one pool, with pauses in which its workers fall asleep. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void *tw_pool_create(int32_t threads, const int32_t *cpus, int64_t spin_ns);
void tw_pool_destroy(void *pool);
void tw_parallel_ordered(void *pool, void (*fn)(void *, int64_t, int64_t, int64_t), void *args, int64_t n, _Bool backwards);

/* Clang has it, and GCC's library not. */
void *__tsan_memset(void *to, int value, size_t count) { return memset(to, value, count); }

enum { ELEMENTS = 257, JOBS = 300, CALLERS = 3 };
static void *pool;

static void count(void *args, int64_t begin, int64_t end, int64_t worker) {
  (void)worker;
  for (int64_t k = begin; k < end; k++) ((int64_t *)args)[k]++;
}

static void *caller(void *ignored) {
  int64_t table[ELEMENTS] = {0};
  (void)ignored;
  for (int n = 0; n < JOBS; n++) {
    tw_parallel_ordered(pool, count, table, ELEMENTS, n & 1);
    if (n % 100 == 0) nanosleep(&(struct timespec){0, 3000000}, NULL);
  }
  for (int k = 0; k < ELEMENTS; k++)
    if (table[k] != JOBS) return &pool;
  return NULL;
}

int main(void) {
  for (int threads = 2; threads < 5; threads++) {
    pthread_t callers[CALLERS];
    void *wrong, *any = NULL;
    pool = tw_pool_create(threads, NULL, 100000);
    for (int k = 0; k < CALLERS; k++) pthread_create(callers + k, NULL, caller, NULL);
    for (int k = 0; k < CALLERS; k++) {
      pthread_join(callers[k], &wrong);
      if (wrong) any = wrong;
    }
    tw_pool_destroy(pool);
    if (any) return puts("an element was counted wrong"), 2;
  }
  return puts("done"), 0;
}
