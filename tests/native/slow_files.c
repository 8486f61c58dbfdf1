/* LD_PRELOAD: a slow file system for the files of a pause. SLOW_MS: the longest delay; one call in
 * thirty takes five times that. HANG_AFTER: writes to files of a process
 * that end; those behind them hang. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void delay(void) {
  static _Thread_local unsigned seed;
  const char *most = getenv("SLOW_MS");
  if (!seed) seed = (unsigned)(size_t)&seed ^ (unsigned)getpid();
  unsigned us = most ? (unsigned)rand_r(&seed) % (1000u * (unsigned)atoi(most) + 1) : 0;
  usleep(rand_r(&seed) % 30 ? us : 5 * us);
}

static int open_any(const char *real_name, const char *path, int flags, int mode) {
  int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, real_name);
  if (strstr(path, "/pause/")) delay();
  return real(path, flags, mode);
}

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list more; \
    va_start(more, flags); \
    int mode = flags & O_CREAT ? va_arg(more, int) : 0; \
    va_end(more); \
    return open_any(#name, path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

ssize_t write(int file, const void *data, size_t n) {
  static atomic_int n_writes;
  ssize_t (*real)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
  const char *most = getenv("HANG_AFTER");
  if (most && file > 2 && n_writes++ >= atoi(most))
    for (;;) pause();
  return real(file, data, n);
}
