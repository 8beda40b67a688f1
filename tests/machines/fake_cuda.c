// A driver of a GPU that is not there, for tests: the functions of cuda.h that the package calls. Kernels are native
// code of the same LLVM IR that PTX is made of; each thread of a group is a fiber, which gives way at barriers and at
// instructions of warps, in a random order. Copies beside other work are done at once or when their thread waits for
// them, as chance decides. Streams do nothing before somebody waits for them. What a program does wrong ends the call with 1
// (CUDA_ERROR_INVALID_VALUE), and `fake_fault` says what it was.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { MOST = 4096, STACK = 256 << 10, PAGE = 4096, ARGUMENTS = 64 };
static char fault[512];
static int wrong(const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (!fault[0]) vsnprintf(fault, sizeof fault, format, list);
    va_end(list);
    return 1;
}
const char *fake_fault(void) { return fault; }

// Random numbers (xorshift)
static uint64_t seed = 88172645463325252ull;
void fake_seed(uint64_t n) { seed = n * 2654435761u + 88172645463325252ull; }
static uint64_t drawn(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed;
}

// Threads of a group
typedef struct { void *to; const void *from; uint32_t size; } Piece;
typedef struct {
    uint32_t tid[3], ctaid[3], nctaid[3], *in, *out;
    ucontext_t context;
    int state, meets, copies;
    Piece copy[64];
} Fiber;
enum { READY, WAITS, MEETS, DONE };
enum { WARP = 32 };
static Fiber fibers[1024], *now;
static ucontext_t scheduler;
static char *stacks;
static void (*body)(uint64_t *);
static uint64_t *arguments;
#define REGISTER(name, axis, k) uint32_t fake_##name##_##axis(void) { return now->name[k]; }
REGISTER(tid, x, 0) REGISTER(tid, y, 1) REGISTER(tid, z, 2)
REGISTER(ctaid, x, 0) REGISTER(ctaid, y, 1) REGISTER(ctaid, z, 2)
REGISTER(nctaid, x, 0) REGISTER(nctaid, y, 1) REGISTER(nctaid, z, 2)
void fake_barrier(void) {
    now->state = WAITS;
    swapcontext(&now->context, &scheduler);
}
static void finish(const Piece *p) {
    memset(p->to, 0, 16);
    memcpy(p->to, p->from, p->size);
}
void fake_copy(void *to, const void *from, uint32_t size) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16) wrong("a copy of 16 bytes from %p to %p", from, to);
    Piece piece = {to, from, size};
    if (drawn() % 2 || now->copies == 64) finish(&piece);
    else now->copy[now->copies++] = piece;
}
void fake_copies(void) {
    for (int k = 0; k < now->copies; k++) finish(&now->copy[k]);
    now->copies = 0;
}

// What a warp does together: an instruction is done when the last of its threads has come to it
enum { SYNC, LOAD, LOAD_ACROSS, MMA_F16, MMA_BF16, MMA_I8, MMA_TF32 };
void fake_meet(int what, uint32_t *in, uint32_t *out) {
    now->meets = what, now->in = in, now->out = out, now->state = MEETS;
    swapcontext(&now->context, &scheduler);
}
static float of_half(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    float x = e == 31 ? (m ? 0.0f / 0.0f : 1.0f / 0.0f) : e ? (m + 1024) * 0x1p-25f * (float)(1u << e) : m * 0x1p-24f;
    return h >> 15 ? -x : x;
}
static float of_bf16(uint16_t h) {
    uint32_t word = (uint32_t)h << 16;
    float x;
    memcpy(&x, &word, 4);
    return x;
}
// Operands of mma: registers of the left one are rows 0 and 8, then the second half of the depth; of the right one, halves
static void multiply(Fiber *warp, int what) {
    int each = what == MMA_I8 ? 4 : what == MMA_TF32 ? 1 : 2, depth = 8 * each;
    float a[16][16], b[8][16];
    int ia[16][32], ib[8][32];
    for (int lane = 0; lane < WARP; lane++)
        for (int r = 0; r < 6; r++)
            for (int e = 0; e < each; e++) {
                int is_left = r < 4, row = lane / 4 + (is_left ? 8 * (r % 2) : 0);
                int k = each * (lane % 4) + e + depth / 2 * (is_left ? r / 2 : r - 4);
                uint32_t bits = warp[lane].in[r] >> 32 / each * e;
                if (what == MMA_TF32) {
                    if (bits % 8192) wrong("an operand of TF32 with the bits %x", bits);
                    memcpy(is_left ? &a[row][k] : &b[row][k], &bits, 4);
                } else if (what == MMA_I8) *(is_left ? &ia[row][k] : &ib[row][k]) = (int8_t)bits;
                else *(is_left ? &a[row][k] : &b[row][k]) = what == MMA_F16 ? of_half(bits) : of_bf16(bits);
            }
    for (int lane = 0; lane < WARP; lane++)
        for (int r = 0; r < 4; r++) {
            int row = lane / 4 + 8 * (r / 2), column = 2 * (lane % 4) + r % 2;
            uint32_t sum = warp[lane].in[6 + r];
            float x;
            memcpy(&x, &sum, 4);
            for (int k = 0; k < depth; k++)
                if (what == MMA_I8) sum += ia[row][k] * ib[column][k];
                else x += a[row][k] * b[column][k];
            if (what != MMA_I8) memcpy(&sum, &x, 4);
            warp[lane].out[r] = sum;
        }
}
static void load(Fiber *warp, int is_across) {
    for (int lane = 0; lane < WARP; lane++)
        for (int r = 0; r < 4; r++) {
            uint16_t found[2];
            for (int e = 0; e < 2; e++) {
                int row = lane / 4, column = 2 * (lane % 4) + e;
                if (is_across) row = column, column = lane / 4;
                char *line;
                memcpy(&line, warp[8 * r + row].in, sizeof line);
                if ((uintptr_t)line % 16) wrong("a row of a matrix at %p", (void *)line);
                memcpy(&found[e], line + 2 * column, 2);
            }
            memcpy(&warp[lane].out[r], found, 4);
        }
}
static int meet(Fiber *warp, int count) {
    for (int k = 0; k < count; k++)
        if (warp[k].state != MEETS || warp[k].meets != warp[0].meets) return 0;
    int what = warp[0].meets;
    if (what != SYNC && count < WARP) return wrong("a warp of %d threads", count);
    if (what >= MMA_F16) multiply(warp, what);
    else if (what != SYNC) load(warp, what == LOAD_ACROSS);
    for (int k = 0; k < count; k++) warp[k].state = READY;
    return 0;
}

static void enter(void) {
    body(arguments);
    if (now->copies) wrong("a thread ends before copies that it began");
    now->state = DONE;
    swapcontext(&now->context, &scheduler);
}

static int run_group(int count) {
    if (!stacks) stacks = mmap(0, (size_t)STACK * 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int order[1024], done = 0;
    for (int k = 0; k < count; k++) {
        order[k] = k;
        getcontext(&fibers[k].context);
        fibers[k].context.uc_stack.ss_sp = stacks + (size_t)STACK * k;
        fibers[k].context.uc_stack.ss_size = STACK;
        makecontext(&fibers[k].context, enter, 0);
        fibers[k].state = READY, fibers[k].copies = 0;
    }
    while (done < count) {
        int ran = 0, waits = 0;
        for (int k = count - 1; k > 0; k--) {
            int other = drawn() % (k + 1), kept = order[k];
            order[k] = order[other], order[other] = kept;
        }
        for (int k = 0; k < count; k++) {
            int number = order[k], first = number / WARP * WARP;
            now = &fibers[number];
            if (now->state == READY) {
                ran = 1;
                swapcontext(&scheduler, &now->context);
                done += now->state == DONE;
                if (now->state == MEETS && meet(&fibers[first], count - first < WARP ? count - first : WARP)) return 1;
            }
            waits += now->state == WAITS;
        }
        if (ran) continue;
        if (waits != count) return wrong("some threads end, and others wait at a barrier");
        for (int k = 0; k < count; k++) fibers[k].state = READY;
    }
    return fault[0] != 0;
}

// Handles
typedef struct { int kind; size_t size; char *start; void *library; void *graph; char *text; } Handle;
enum { CONTEXT = 1, MODULE, FUNCTION, STREAM, GRAPH, EXEC, DEVICE_MEMORY, HOST_MEMORY };
static Handle *live[MOST];
static int current, capturing;
static void *add(int kind, size_t size) {
    for (int k = 0; k < MOST; k++)
        if (!live[k]) {
            live[k] = calloc(1, sizeof(Handle));
            live[k]->kind = kind, live[k]->size = size;
            return live[k];
        }
    abort();
}
static Handle *of(void *handle, int kind) {
    for (int k = 0; k < MOST; k++)
        if (live[k] && live[k] == handle && live[k]->kind == kind) return handle;
    wrong("no handle of kind %d", kind);
    return 0;
}
static int removed(void *handle, int kind) {
    for (int k = 0; k < MOST; k++)
        if (live[k] && live[k] == handle && live[k]->kind == kind) {
            free(live[k]);
            live[k] = 0;
            return 0;
        }
    return wrong("handle of kind %d is given back twice", kind);
}
static Handle *memory_at(const void *start, size_t size, int kind) {
    for (int k = 0; k < MOST; k++) {
        Handle *h = live[k];
        if (h && h->kind == kind && (char *)start >= h->start && (char *)start + size <= h->start + h->size) return h;
    }
    wrong("%zu bytes are not within memory of kind %d", size, kind);
    return 0;
}
int fake_live(void) {
    int count = 0;
    for (int k = 0; k < MOST; k++) count += live[k] && live[k]->kind != CONTEXT && live[k]->kind != FUNCTION;
    return count;
}

// Counted calls, and those that are to fail
static struct { char name[64]; int count, fails_at, code; size_t bytes; } counted[64];
static int entry(const char *name) {
    int k = 0;
    while (counted[k].name[0] && strcmp(counted[k].name, name)) k++;
    strcpy(counted[k].name, name);
    return k;
}
int fake_count(const char *name) { return counted[entry(name)].count; }
size_t fake_bytes(const char *name) { return counted[entry(name)].bytes; }
void fake_fail(const char *name, int code) {
    int k = entry(name);
    counted[k].fails_at = counted[k].count + 1, counted[k].code = code;
}
#define CALLED                                                                     \
    {                                                                              \
        int k = entry(__func__);                                                   \
        if (++counted[k].count == counted[k].fails_at) return counted[k].code;     \
    }
#define IN_CONTEXT                                            \
    CALLED if (!current) return wrong("%s: no context", __func__)

// What streams and graphs do
typedef struct { int kind; const char *name; void *to; const void *from; size_t size; Handle *function; unsigned shape[6]; uint64_t words[ARGUMENTS]; } Work;
typedef struct { Work *items; int count; } Queue;
enum { COPY, LAUNCH };
static Queue stream_work, recorded;
static void push(Queue *queue, const Work *work) {
    queue->items = realloc(queue->items, sizeof(Work) * (queue->count + 1));
    queue->items[queue->count++] = *work;
}
static void *libraries[MOST];
static int library_count;
int fake_library(const char *path) {
    if (library_count == MOST) return wrong("too many libraries");
    libraries[library_count] = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!libraries[library_count]) return wrong("%s", dlerror());
    library_count++;
    return 0;
}
static void *symbol(const char *name, const char *suffix) {
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    for (int k = library_count - 1; k >= 0; k--) {
        void *found = dlsym(libraries[k], whole);
        if (found) return found;
    }
    return 0;
}
static int launched(Work *work) {
    const char *name = work->function->text;
    void (*begin)(void) = symbol(name, "_begin");
    body = symbol(name, "_host");
    arguments = work->words;
    unsigned *g = work->shape, *t = work->shape + 3, total = g[0] * g[1] * g[2], threads = t[0] * t[1] * t[2];
    for (unsigned block = 0; block < total; block++) {
        begin();
        for (unsigned k = 0; k < threads; k++) {
            Fiber *f = &fibers[k];
            f->tid[0] = k % t[0], f->tid[1] = k / t[0] % t[1], f->tid[2] = k / t[0] / t[1];
            f->ctaid[0] = block % g[0], f->ctaid[1] = block / g[0] % g[1], f->ctaid[2] = block / g[0] / g[1];
            for (int axis = 0; axis < 3; axis++) f->nctaid[axis] = g[axis];
        }
        if (run_group(threads)) return 1;
    }
    return 0;
}
static int done(Work *work) {
    if (work->kind == LAUNCH) return launched(work);
    memcpy(work->to, work->from, work->size);
    return 0;
}
static int drained(void) {
    int failed = 0;
    for (int k = 0; k < stream_work.count; k++) failed |= done(&stream_work.items[k]);
    stream_work.count = 0;
    return failed;
}
static int enqueue(void *stream, const Work *work) {
    if (!of(stream, STREAM)) return 1;
    if (work->kind == COPY) counted[entry(work->name)].bytes += capturing ? 0 : work->size;
    push(capturing ? &recorded : &stream_work, work);
    return 0;
}

int cuInit(unsigned flags) { CALLED return flags; }
int cuDriverGetVersion(int *version) { CALLED *version = 13000; return 0; }
static int devices = 1, capability = 90;
void fake_devices(int count, int sm) { devices = count, capability = sm; }
int cuDeviceGetCount(int *count) { CALLED *count = devices; return 0; }
int cuDeviceGet(int *device, int number) { CALLED *device = 7; return number >= devices; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    CALLED *value = attribute == 75 ? capability / 10 : capability % 10;
    return device == 7 && (attribute == 75 || attribute == 76) ? 0 : wrong("attribute %d", attribute);
}
int cuDevicePrimaryCtxRetain(void **context, int device) { CALLED *context = add(CONTEXT, 0); return device != 7; }
int cuCtxPushCurrent_v2(void *context) { CALLED current++; return !of(context, CONTEXT); }
int cuCtxPopCurrent_v2(void **context) { CALLED *context = 0; return current-- > 0 ? 0 : wrong("no context to pop"); }
void fake_reset(void) {
    memset(counted, 0, sizeof counted);
    fault[0] = 0, current = capturing = stream_work.count = 0, devices = 1, capability = 90;
}
int cuMemAlloc_v2(uint64_t *address, size_t size) {
    IN_CONTEXT;
    Handle *h = add(DEVICE_MEMORY, size);
    size_t pages = (size + PAGE - 1) / PAGE * PAGE;
    char *start = mmap(0, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(start + PAGE, pages, PROT_READ | PROT_WRITE);
    memset(start + PAGE, 0xff, pages);
    h->start = start + PAGE;
    *address = (uint64_t)(uintptr_t)h->start;
    return 0;
}
int cuMemFree_v2(uint64_t address) {
    IN_CONTEXT;
    Handle *h = memory_at((void *)(uintptr_t)address, 0, DEVICE_MEMORY);
    if (!h || h->start != (char *)(uintptr_t)address) return wrong("freed memory is not allocated");
    munmap(h->start - PAGE, (h->size + PAGE - 1) / PAGE * PAGE + 2 * PAGE);
    return removed(h, DEVICE_MEMORY);
}
int cuMemGetInfo_v2(size_t *unused, size_t *total) { IN_CONTEXT; *unused = 100, *total = 1000; return 0; }
int cuMemHostAlloc(void **start, size_t size, unsigned flags) {
    IN_CONTEXT;
    Handle *h = add(HOST_MEMORY, size);
    *start = h->start = malloc(size);
    return flags;
}
int cuMemFreeHost(void *start) {
    IN_CONTEXT;
    Handle *h = memory_at(start, 0, HOST_MEMORY);
    if (!h) return 1;
    free(h->start);
    return removed(h, HOST_MEMORY);
}
#define COPIED counted[entry(__func__)].bytes += size
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    IN_CONTEXT;
    COPIED;
    if (stream_work.count) return wrong("memory is read before the work that writes it");
    if (!memory_at((void *)(uintptr_t)from, size, DEVICE_MEMORY)) return 1;
    memcpy(to, (void *)(uintptr_t)from, size);
    return 0;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
    IN_CONTEXT;
    COPIED;
    if (drained()) return 1; // what is in other streams comes first
    if (!memory_at((void *)(uintptr_t)to, size, DEVICE_MEMORY)) return 1;
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
    IN_CONTEXT;
    if (!memory_at((void *)(uintptr_t)to, size, DEVICE_MEMORY) || !memory_at(from, size, HOST_MEMORY)) return 1;
    return enqueue(stream, &(Work){COPY, __func__, (void *)(uintptr_t)to, from, size});
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    IN_CONTEXT;
    if (!memory_at((void *)(uintptr_t)from, size, DEVICE_MEMORY) || !memory_at(to, size, HOST_MEMORY)) return 1;
    return enqueue(stream, &(Work){COPY, __func__, to, (void *)(uintptr_t)from, size});
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream) {
    IN_CONTEXT;
    void *target = (void *)(uintptr_t)to, *source = (void *)(uintptr_t)from;
    if (!memory_at(target, size, DEVICE_MEMORY) || !memory_at(source, size, DEVICE_MEMORY)) return 1;
    return enqueue(stream, &(Work){COPY, __func__, target, source, size});
}
int cuModuleLoadDataEx(void **module, const char *text, unsigned count, int *options, void **values) {
    IN_CONTEXT;
    if (count != 2 || options[0] != 5 || options[1] != 6) return wrong("options of a module");
    if (!strstr(text, ".version") || !strstr(text, ".target sm_")) {
        snprintf(values[0], (size_t)values[1], "line 1: it is no PTX");
        return 218;
    }
    Handle *h = add(MODULE, 0);
    h->text = strdup(text);
    *module = h;
    return 0;
}
int cuModuleUnload(void *module) { IN_CONTEXT; return removed(module, MODULE); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    IN_CONTEXT;
    char declared[512];
    snprintf(declared, sizeof declared, ".entry %s(", name);
    Handle *m = of(module, MODULE);
    if (!m) return 1;
    if (!strstr(m->text, declared) || !symbol(name, "_host")) return 500;
    Handle *h = add(FUNCTION, 0);
    h->text = strdup(name);
    *function = h;
    return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { IN_CONTEXT; return !of(function, FUNCTION) || attribute != 8 || value < 0; }
int cuStreamCreate(void **stream, unsigned flags) { IN_CONTEXT; *stream = add(STREAM, 0); return flags; }
int cuStreamDestroy_v2(void *stream) { IN_CONTEXT; return removed(stream, STREAM); }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    IN_CONTEXT;
    Handle *f = of(function, FUNCTION);
    if (!f || extra) return 1;
    const uint32_t *shape = symbol(f->text, "_shape");
    if (shape[1] != tx || shape[2] != ty || tz != 1) return wrong("%s: %u x %u threads", f->text, tx, ty);
    if (!gx || !gy || !gz || gy > 65535 || gz > 65535) return wrong("%s: %u x %u x %u groups", f->text, gx, gy, gz);
    if (shared != shape[3]) return wrong("%s: %u bytes of shared memory", f->text, shared);
    Work work = {LAUNCH, .function = f, .shape = {gx, gy, gz, tx, ty, tz}};
    for (uint32_t k = 0; k < shape[0]; k++) work.words[k] = *(uint64_t *)parameters[k];
    return enqueue(stream, &work);
}
int cuStreamSynchronize(void *stream) {
    IN_CONTEXT;
    if (!of(stream, STREAM) || capturing) return wrong("it waits while it records");
    return drained();
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    IN_CONTEXT;
    if (!of(stream, STREAM) || mode || capturing) return wrong("begin of a record");
    capturing = 1, recorded.count = 0;
    return 0;
}
int cuStreamEndCapture(void *stream, void **graph) {
    IN_CONTEXT;
    if (!of(stream, STREAM) || !capturing) return wrong("end of a record");
    capturing = 0;
    Handle *h = add(GRAPH, 0);
    Queue *own = h->graph = calloc(1, sizeof(Queue));
    for (int k = 0; k < recorded.count; k++) push(own, &recorded.items[k]);
    *graph = h;
    return 0;
}
int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) {
    IN_CONTEXT;
    Handle *g = of(graph, GRAPH), *h = add(EXEC, 0);
    if (!g || flags) return 1;
    h->graph = g->graph;
    *made = h;
    return 0;
}
int cuGraphLaunch(void *made, void *stream) {
    IN_CONTEXT;
    Handle *h = of(made, EXEC);
    if (!h) return 1;
    Queue *own = h->graph;
    for (int k = 0; k < own->count; k++)
        if (enqueue(stream, &own->items[k])) return 1;
    return 0;
}
int cuGraphDestroy(void *graph) { IN_CONTEXT; return removed(graph, GRAPH); }
int cuGraphExecDestroy(void *made) { IN_CONTEXT; return removed(made, EXEC); }
int cuGetErrorName(int code, const char **name) {
    *name = code == 1 ? "CUDA_ERROR_INVALID_VALUE" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 218 ? "CUDA_ERROR_INVALID_PTX" : "CUDA_ERROR_OTHER";
    return 0;
}
