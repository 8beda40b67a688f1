/* What the C library gives */

#if defined(TW_PORTABLE) && !defined(TW_FREESTANDING)
static void *block(size_t bytes) { return aligned_alloc(ALIGNMENT, aligned(COUNT(bytes))); }
#elif !defined(TW_FREESTANDING)
static void *block(size_t bytes) {
  void *found;
  return posix_memalign(&found, ALIGNMENT, COUNT(bytes)) ? NULL : found;
}
#endif

#if defined(TW_PORTABLE) && !defined(TW_FREESTANDING)
static void *zeroed(size_t bytes, void **base) {
  *base = bytes > PTRDIFF_MAX - ALIGNMENT ? NULL : block(bytes);
  return *base ? memset(*base, 0, bytes) : NULL;
}
#elif !defined(TW_FREESTANDING)
static void *zeroed(size_t bytes, void **base) {
  *base = bytes > SIZE_MAX - ALIGNMENT ? NULL : calloc(1, bytes + ALIGNMENT);
  return *base ? (void *)(((uintptr_t)*base + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT) : NULL;
}
#endif

#if defined(TW_PORTABLE) && !defined(TW_FREESTANDING)
static unsigned process(void) { return 1; } /* standard C has no forks */
#endif

#ifndef TW_ONE_THREAD
static atomic_uint forks;

static void count_fork(void) { atomic_fetch_add(&forks, 1); }

/* A number that a process and its forked children do not share; never 0. */
static unsigned process(void) { return atomic_load(&forks) + 1; }

static void watch_forks(void) {
  static atomic_flag is_watched = ATOMIC_FLAG_INIT;
  if (!atomic_flag_test_and_set(&is_watched)) pthread_atfork(NULL, NULL, count_fork);
}

static long quota_of(const char *path) {
  char quota[32];
  long period, cpus = 0;
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (fscanf(file, "%31s %ld", quota, &period) == 2 && quota[0] != 'm' && period > 0) {
    cpus = strtol(quota, NULL, 10) / period;
    if (cpus < 1) cpus = 1;
  }
  fclose(file);
  return cpus;
}

/* The least quota of the control groups (version 2) of this process, in CPUs; 0 without one. */
static long quota(void) {
  char line[512], path[600];
  long least = 0;
  FILE *file = fopen("/proc/self/cgroup", "r");
  if (!file) return 0;
  while (fgets(line, sizeof line, file)) {
    if (strncmp(line, "0::", 3)) continue;
    size_t length = strcspn(line + 3, "\n");
    for (;;) {
      while (length && line[3 + length - 1] == '/') length--;
      line[3 + length] = 0;
      snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", line + 3);
      long cpus = quota_of(path);
      if (cpus && (!least || cpus < least)) least = cpus;
      if (!length) break;
      while (length && line[3 + length - 1] != '/') length--;
    }
  }
  fclose(file);
  return least;
}

static int32_t usable_cpus(void) {
  long cpus = 0, most = quota();
#ifdef __linux__
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) cpus = CPU_COUNT(&set);
#endif
  if (cpus < 1) cpus = sysconf(_SC_NPROCESSORS_ONLN);
  if (most && most < cpus) cpus = most;
  return cpus < 1 ? 1 : cpus > 1024 ? 1024 : (int32_t)cpus;
}
#endif

#ifdef __wasm__
/* Products of 128 bits, which compilers take for overflows of those of 64. */
typedef union wide {
  __int128 whole;
  uint64_t half[2]; /* the low one first */
} wide;

__int128 __multi3(__int128 one, __int128 other);
__int128 __multi3(__int128 one, __int128 other) {
  wide a = {.whole = one}, b = {.whole = other}, found;
  uint64_t mask = 0xffffffffu, a0 = a.half[0] & mask, a1 = a.half[0] >> 32, b0 = b.half[0] & mask, b1 = b.half[0] >> 32;
  uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32), other_middle = a0 * b1 + (middle & mask);
  found.half[0] = other_middle << 32 | (low & mask);
  found.half[1] = a1 * b1 + (middle >> 32) + (other_middle >> 32) + a.half[0] * b.half[1] + a.half[1] * b.half[0];
  return found.whole;
}
#endif

#if defined(__wasm__) && HAS_STEPS
/* Memory for values whose sizes nobody knows before: blocks of a few sizes (four between powers of two, each a multiple
   of 64 bytes), which are used again. New ones are taken from the end of the module's memory. */
#define HEAP_HEADER 64
typedef struct block {
  struct block *next;
  size_t list;
} block;
static block *heap_free[8 * 32];
static size_t heap_at, heap_end;

int32_t model_tw_memalign(void **at, int64_t alignment, int64_t bytes) TW_SYMBOL("tw_memalign");
int32_t model_tw_memalign(void **at, int64_t alignment, int64_t bytes) {
  size_t step = ALIGNMENT, list = 0, size;
  (void)alignment; /* that of all */
  if (bytes > INT32_MAX - 65536) return 1;
  for (; step * 8 <= (size_t)bytes; step *= 2) list += 8;
  size = COUNT(((size_t)bytes + step - 1) / step) * step;
  list += size / step - 1;
  block *found = heap_free[list];
  if (found) {
    heap_free[list] = found->next;
  } else {
    if (heap_end - heap_at < HEAP_HEADER + size) {
      size_t pages = (HEAP_HEADER + size + 65535) / 65536, first = __builtin_wasm_memory_grow(0, pages);
      if (first == SIZE_MAX) return 1;
      if (first * 65536 != heap_end) heap_at = first * 65536;
      heap_end = (first + pages) * 65536;
    }
    found = (block *)heap_at;
    heap_at += HEAP_HEADER + size;
    found->list = list;
  }
  *at = (unsigned char *)found + HEAP_HEADER;
  return 0;
}

void model_tw_free(void *memory) TW_SYMBOL("free");
void model_tw_free(void *memory) {
  if (!memory) return;
  block *given = (block *)((unsigned char *)memory - HEAP_HEADER);
  given->next = heap_free[given->list];
  heap_free[given->list] = given;
}
#endif

/* The CPU */

#ifdef TW_CPU_FEATURES
#if defined(__s390x__) && defined(__linux__)
/* The bits from the highest on. */
typedef struct facilities {
  uint64_t words[4];
} facilities;

static facilities facilities_of(void) {
  facilities found = {{0}};
  register unsigned long last __asm__("0") = 3;
  __asm__ volatile(".insn s,0xb2b00000,%0" : "=Q"(found), "+d"(last) : : "cc", "memory"); /* stfle */
  return found;
}
#endif

#if defined(__riscv) && defined(__linux__)
/* Extensions of more than a letter, of which systems before Linux 6.4 tell nothing: then they are taken to be there. */
static uint64_t riscv_extensions(void) {
  struct { int64_t key; uint64_t value; } asked = {4, 0}; /* RISCV_HWPROBE_KEY_IMA_EXT_0 */
  return syscall(258, &asked, 1, 0, NULL, 0) || asked.key != 4 ? ~(uint64_t)0 : asked.value;
}

static unsigned long riscv_vector_bytes(void) {
  unsigned long bytes;
  __asm__ volatile("csrr %0, 0xc22" : "=r"(bytes)); /* vlenb */
  return bytes;
}
#endif

/* What is missing of the features that the code needs, or null. */
static const char *missing_feature(void) {
#if defined(__x86_64__)
  unsigned regs[3][4] = {{0}};
  static const unsigned leaves[3][2] = {{1, 0}, {7, 0}, {7, 1}};
  for (int k = 0; k < 3; k++)
    if (!__get_cpuid_count(leaves[k][0], leaves[k][1], &regs[k][0], &regs[k][1], &regs[k][2], &regs[k][3])) break;
  unsigned extended[4] = {0};
  __get_cpuid(0x80000001u, &extended[0], &extended[1], &extended[2], &extended[3]);
  uint64_t states = 0;
  if (regs[0][2] >> 27 & 1) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    states = low | (uint64_t)high << 32;
#ifdef __APPLE__
    if ((states & 6) == 6) states |= 0xe0; /* registers of 512 bits are kept from their first use on */
#endif
  }
  for (size_t k = 0; k < sizeof cpu_features / sizeof *cpu_features; k++) {
    const cpu_feature *f = cpu_features + k;
    unsigned bits = f->leaf == 3 ? extended[f->reg] : regs[f->leaf][f->reg];
    if (!(bits >> f->bit & 1) || (states & f->states) != f->states) return f->name;
  }
#elif defined(__aarch64__) && defined(__linux__)
  for (size_t k = 0; k < sizeof cpu_features / sizeof *cpu_features; k++) {
    const cpu_feature *f = cpu_features + k;
    int has = f->leaf == 2 ? (prctl(PR_SVE_GET_VL) & 0xffff) == f->bit
                           : getauxval(f->leaf ? AT_HWCAP2 : AT_HWCAP) >> f->bit & 1;
    if (!has) return f->name;
  }
#elif defined(__s390x__) && defined(__linux__)
  const facilities list = facilities_of();
  for (size_t k = 0; k < sizeof cpu_features / sizeof *cpu_features; k++) {
    const cpu_feature *f = cpu_features + k;
    uint64_t bits = f->leaf ? list.words[f->bit / 64] << f->bit % 64 : (uint64_t)getauxval(AT_HWCAP) << (63 - f->bit);
    if (!(bits >> 63)) return f->name;
  }
#elif defined(__riscv) && defined(__linux__)
  const uint64_t known[2] = {getauxval(AT_HWCAP), riscv_extensions()};
  for (size_t k = 0; k < sizeof cpu_features / sizeof *cpu_features; k++) {
    const cpu_feature *f = cpu_features + k;
    int has = f->leaf == 2 ? riscv_vector_bytes() >= (unsigned long)f->bit : known[f->leaf] >> f->bit & 1;
    if (!has) return f->name;
  }
#endif
  return NULL;
}
#endif

/* Weights */

#ifndef TW_WEIGHTS
extern const unsigned char model_weights[];
#define TW_WEIGHTS model_weights
#endif

#if TW_WEIGHTS_BYTES == 0
static tw_status find_weights(model_model *model, text *error) {
  static const _Alignas(ALIGNMENT) unsigned char none[ALIGNMENT];
  (void)error;
  model->weights = none;
  return TW_OK;
}
#elif !defined(TW_WEIGHTS_BESIDE)
static tw_status find_weights(model_model *model, text *error) {
  (void)error;
  model->weights = TW_WEIGHTS;
  return TW_OK;
}
#else
#define WEIGHTS_AT 4096

static uint32_t crc32_of(const unsigned char *bytes, size_t count) {
  uint32_t table[8][256], sum = 0xffffffffu;
  for (uint32_t n = 0; n < 256; n++) {
    uint32_t c = n;
    for (int k = 0; k < 8; k++) c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
    table[0][n] = c;
  }
  for (uint32_t n = 0; n < 256; n++)
    for (int k = 1; k < 8; k++) table[k][n] = table[0][table[k - 1][n] & 255] ^ table[k - 1][n] >> 8;
  for (; count >= 8; count -= 8, bytes += 8) {
    sum ^= bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    sum = table[7][sum & 255] ^ table[6][sum >> 8 & 255] ^ table[5][sum >> 16 & 255] ^ table[4][sum >> 24] ^
          table[3][bytes[4]] ^ table[2][bytes[5]] ^ table[1][bytes[6]] ^ table[0][bytes[7]];
  }
  while (count--) sum = table[0][(sum ^ *bytes++) & 255] ^ sum >> 8;
  return ~sum;
}

static tw_status bad_weights(text *error, const char *path, const char *words) {
  say(anew(error), "the file of weights ");
  say(error, path);
  say(error, words);
  return TW_BAD_WEIGHTS;
}

static tw_status check_weights(model_model *model, const void *header, const char *path, text *error) {
  if (memcmp(header, weights_header, sizeof weights_header)) return bad_weights(error, path, " is that of another model");
  if (model->options.check_weights && crc32_of(model->weights, TW_WEIGHTS_BYTES) != TW_WEIGHTS_SUM)
    return bad_weights(error, path, " is damaged");
  return TW_OK;
}

#ifdef TW_PORTABLE
/* The file is read. Its name is relative to the folder that the program runs in, and its numbers are little-endian. */
static tw_status find_weights(model_model *model, text *error) {
  static const uint16_t one = 1;
  const char *path = model->options.weights ? model->options.weights : TW_WEIGHTS_BESIDE;
  unsigned char header[WEIGHTS_AT];
  if (!*(const unsigned char *)&one) return bad_weights(error, path, " is for little-endian machines");
  FILE *file = fopen(path, "rb");
  if (!file) return bad_weights(error, path, " cannot be opened");
  unsigned char *at = model->mapped = block(TW_WEIGHTS_BYTES);
  if (!at) {
    fclose(file);
    return failed(error, TW_NO_MEMORY, "no memory for the weights");
  }
  const int is_whole = fread(header, 1, WEIGHTS_AT, file) == WEIGHTS_AT &&
                       fread(at, 1, TW_WEIGHTS_BYTES, file) == TW_WEIGHTS_BYTES && fgetc(file) == EOF;
  fclose(file);
  if (!is_whole) return bad_weights(error, path, " is cut off, or of another model");
  model->weights = at;
  return check_weights(model, header, path, error);
}
#else
/* The file that was exported with the library, in the same folder. */
static const char *path_beside(char *path, size_t most) {
  Dl_info found;
  size_t folder = 0;
  if (!dladdr((void *)(uintptr_t)model_info, &found) || !found.dli_fname) return TW_WEIGHTS_BESIDE;
  for (size_t k = 0; found.dli_fname[k]; k++)
    if (found.dli_fname[k] == '/') folder = k + 1;
  if (folder + sizeof TW_WEIGHTS_BESIDE > most) return TW_WEIGHTS_BESIDE;
  memcpy(path, found.dli_fname, folder);
  memcpy(path + folder, TW_WEIGHTS_BESIDE, sizeof TW_WEIGHTS_BESIDE);
  return path;
}

static tw_status find_weights(model_model *model, text *error) {
  char beside[4096];
  const char *path = model->options.weights ? model->options.weights : path_beside(beside, sizeof beside);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return bad_weights(error, path, " cannot be opened");
  struct stat status;
  size_t bytes = WEIGHTS_AT + TW_WEIGHTS_BYTES;
  void *at = MAP_FAILED;
  if (!fstat(file, &status) && S_ISREG(status.st_mode) && (uint64_t)status.st_size == bytes)
    at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) return bad_weights(error, path, " is cut off, or of another model, or cannot be mapped");
  model->mapped = at;
  model->mapped_bytes = bytes;
  model->weights = (const unsigned char *)at + WEIGHTS_AT;
  return check_weights(model, at, path, error);
}
#endif
#endif
