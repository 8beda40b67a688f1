/* What the runtime and the model's code take of POSIX, on Windows (8 and later). Names of files are UTF-8. */

#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* For the code as well: its calls of these functions are given to those here. */
int model_os_memalign(void **made, size_t alignment, size_t bytes);
void model_os_free(void *memory);
int model_os_thread(uint64_t *made, void *attributes, void *(*work)(void *), void *of);
int model_os_join(uint64_t thread, void **result);
int model_os_clock(int which, int64_t *time);
int model_os_yield(void);
void model_os_wait(uint32_t *word, uint32_t value);
void model_os_wake(uint32_t *word);

int model_os_memalign(void **made, size_t alignment, size_t bytes) {
  *made = _aligned_malloc(bytes ? bytes : 1, alignment);
  return *made ? 0 : 12;
}

void model_os_free(void *memory) { _aligned_free(memory); }

static void *os_calloc(size_t count, size_t bytes) {
  void *made;
  if (bytes && count > SIZE_MAX / bytes) return NULL;
  if (model_os_memalign(&made, 64, count * bytes)) return NULL;
  return memset(made, 0, count * bytes);
}

/* Functions have one calling convention on 64-bit Windows; the low half of what they give is the exit code. */
int model_os_thread(uint64_t *made, void *attributes, void *(*work)(void *), void *of) {
  (void)attributes;
  *made = (uint64_t)(uintptr_t)CreateThread(NULL, 0, (LPTHREAD_START_ROUTINE)(void (*)(void))work, of, 0, NULL);
  return *made ? 0 : 11;
}

int model_os_join(uint64_t thread, void **result) {
  (void)result;
  WaitForSingleObject((HANDLE)(uintptr_t)thread, INFINITE);
  CloseHandle((HANDLE)(uintptr_t)thread);
  return 0;
}

/* Seconds and nanoseconds of a steady clock. */
int model_os_clock(int which, int64_t *time) {
  LARGE_INTEGER ticks, second;
  (void)which;
  QueryPerformanceCounter(&ticks);
  QueryPerformanceFrequency(&second);
  time[0] = ticks.QuadPart / second.QuadPart;
  time[1] = ticks.QuadPart % second.QuadPart * 1000000000 / second.QuadPart;
  return 0;
}

int model_os_yield(void) { return !SwitchToThread(); }

void model_os_wait(uint32_t *word, uint32_t value) { WaitOnAddress(word, &value, sizeof value, INFINITE); }

void model_os_wake(uint32_t *word) { WakeByAddressSingle(word); }

__attribute__((unused)) static int os_clock(struct timespec *time) {
  int64_t found[2];
  model_os_clock(0, found);
  time->tv_sec = (time_t)found[0];
  time->tv_nsec = (long)found[1];
  return 0;
}

static long os_cpus(void) {
  DWORD_PTR own = 0, all = 0;
  long count = 0;
  if (GetProcessAffinityMask(GetCurrentProcess(), &own, &all))
    for (; own; own &= own - 1) count++;
  return count ? count : (long)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS); /* no mask: several groups */
}

/* Files of weights */

typedef struct os_library {
  const char *dli_fname;
} os_library;

/* The file that a function of this library is in, with / between folders. */
__attribute__((unused)) static int os_library_of(const void *function, os_library *found) {
  static _Thread_local char path[4096];
  static _Thread_local wchar_t wide[4096];
  HMODULE module;
  DWORD flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  if (!GetModuleHandleExW(flags, (LPCWSTR)function, &module)) return 0;
  DWORD length = GetModuleFileNameW(module, wide, 4096);
  if (!length || length >= 4096 || !WideCharToMultiByte(CP_UTF8, 0, wide, -1, path, sizeof path, NULL, NULL)) return 0;
  for (char *at = path; *at; at++)
    if (*at == '\\') *at = '/';
  found->dli_fname = path;
  return 1;
}

typedef struct os_file_status {
  int st_mode;
  int64_t st_size;
} os_file_status;

/* Handles have 32 bits that count, on 64-bit Windows too. */
__attribute__((unused)) static int os_open(const char *path) {
  wchar_t wide[4096];
  if (!MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, 4096)) return -1;
  DWORD shared = FILE_SHARE_READ | FILE_SHARE_DELETE;
  HANDLE file = CreateFileW(wide, GENERIC_READ, shared, NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
  return file == INVALID_HANDLE_VALUE ? -1 : (int)(intptr_t)file;
}

__attribute__((unused)) static int os_file(int file, os_file_status *status) {
  LARGE_INTEGER size;
  HANDLE handle = (HANDLE)(intptr_t)file;
  if (!GetFileSizeEx(handle, &size)) return -1;
  *status = (os_file_status){GetFileType(handle) == FILE_TYPE_DISK, size.QuadPart};
  return 0;
}

__attribute__((unused)) static void *os_map(size_t bytes, int file) {
  HANDLE mapping = CreateFileMappingW((HANDLE)(intptr_t)file, NULL, PAGE_READONLY, 0, 0, NULL);
  void *at = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, bytes) : NULL;
  if (mapping) CloseHandle(mapping); /* the view keeps it */
  return at;
}

#define Dl_info os_library
#define dladdr os_library_of
#define O_RDONLY 0
#define O_CLOEXEC 0
#define open(path, flags) os_open(path)
#define close(file) ((void)CloseHandle((HANDLE)(intptr_t)(file)))
#define stat os_file_status
#define fstat os_file
#define S_ISREG(mode) (mode)
#define MAP_FAILED NULL
#define PROT_READ 0
#define MAP_SHARED 0
#define mmap(at, bytes, rights, kind, file, offset) os_map(bytes, file)
#define munmap(at, bytes) ((void)UnmapViewOfFile(at))

#define posix_memalign model_os_memalign
#define calloc os_calloc
#define free model_os_free
#undef CLOCK_MONOTONIC
#define CLOCK_MONOTONIC 0
#define clock_gettime(which, time) os_clock(time)
#define _SC_NPROCESSORS_ONLN 0
#define sysconf(name) os_cpus()
#define pthread_atfork(before, parent, child) ((void)(child)) /* there are no forks */
