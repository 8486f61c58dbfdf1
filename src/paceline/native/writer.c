#define _GNU_SOURCE
#include "writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "crc.h"
#include "pause.h"
#include "ring.h"

/* Types of block: records, communicators, counts; as sources/call_logs/nccl_profiler.py has them. */
enum { RECORDS_BLOCK = 16, COMMUNICATORS_BLOCK = 17, COUNTS_BLOCK = 18 };
/* The newest files of a process stay: 16 of 64 MB. */
enum { BATCH = 512, PAUSE_NS = 2000000, FILES_KEPT = 16 };

atomic_int recording;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* all below; never taken by an event */
static struct communicator *communicators;
static uint32_t n_communicators, n_room;
static int n_open, abi, running;
static atomic_int disabled;
static pthread_t thread;
static atomic_int stopping;

/* The writer's own. */
static int file = -1, n_files, n_own, own[FILES_KEPT];
static uint32_t n_named;
static uint64_t size, n_records, largest = 64u << 20;
static int64_t begun_ns;
static char folder[3000], host[65];

static void say(const char *text) {
  int error = errno;
  fprintf(stderr, "paceline: NCCL profiler plugin: %s%s%s; training goes on without it\n", text,
          error ? ": " : "", error ? strerror(error) : "");
}

static int put(const void *data, size_t n) {
  const char *bytes = data;
  while (n) {
    ssize_t done = write(file, bytes, n);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return -1;
    bytes += done, n -= (size_t)done, size += (uint64_t)done;
  }
  return 0;
}

static int put_block(unsigned char type, const void *payload, size_t n) {
  struct {
    char mark[4];
    uint8_t type, zero[3];
    uint32_t length, crc;
  } head = {{'\xb1', 'B', 'L', 'K'}, type, {0}, (uint32_t)n, 0};
  head.crc = crc_more(crc_more(0, &type, 1), payload, n);
  return put(&head, sizeof head) || put(payload, n);
}

static int put_header(void) {
  char text[400];
  const char *rank = getenv("RANK");
  int length = snprintf(text, sizeof text,
                        "{\"what\": \"nccl-profiler\", \"abi\": %d, \"host\": \"%s\", \"pid\": %d, "
                        "\"begun_ns\": %lld, \"file\": %d, \"rank\": %d}",
                        abi, host, (int)getpid(), (long long)begun_ns, n_files,
                        rank && *rank >= '0' && *rank <= '9' ? atoi(rank) : -1);
  struct {
    char magic[8];
    uint16_t version, zero;
    uint32_t length, crc;
  } head = {"", 1, 0, (uint32_t)length, crc_more(0, text, (size_t)length)};
  memcpy(head.magic, "PACELINE", sizeof head.magic);
  return put(&head, 20) || put(text, (size_t)length);
}

static void path_of(char *path, size_t room, int number) {
  snprintf(path, room, "%s/nccl-%s-%d-%05d.nccl", folder, host, (int)getpid(), number);
}

/* A new file; each names all communicators, so that it can be read alone. */
static int open_file(void) {
  char path[3200];
  if (file >= 0) close(file);
  if (n_own >= FILES_KEPT) {
    path_of(path, sizeof path, own[n_own % FILES_KEPT]);
    unlink(path);
  }
  do {
    path_of(path, sizeof path, n_files++);
    file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  } while (file < 0 && errno == EEXIST && n_files < 99999);
  own[n_own++ % FILES_KEPT] = n_files - 1;
  size = 0, n_named = 0;
  return file < 0 ? -1 : put_header();
}

static int put_communicators(void) {
  int failed = 0;
  pthread_mutex_lock(&lock);
  if (n_named < n_communicators) {
    failed = put_block(COMMUNICATORS_BLOCK, communicators + n_named,
                       (n_communicators - n_named) * sizeof *communicators);
    n_named = n_communicators;
  }
  pthread_mutex_unlock(&lock);
  return failed;
}

static int put_counts(void) {
  uint64_t counts[3] = {n_records, ring_dropped(), ring_left_out()};
  return put_block(COUNTS_BLOCK, counts, sizeof counts);
}

/* Empties all rings once; -1 where the disk refuses. What was left out is told before what follows. */
static int drain(void) {
  static struct record batch[BATCH];
  static int was_off;
  int off = atomic_load(&ring_off);
  if (was_off && !off && put_counts()) return -1;
  was_off = off;
  for (int i = 0; i < RINGS; i++) {
    int n;
    while ((n = ring_drain(i, batch, BATCH)) > 0) {
      n_records += (uint64_t)n;
      if (size > largest && (put_counts() || open_file())) return -1;
      if (put_communicators()) return -1;
      if (put_block(RECORDS_BLOCK, batch, (size_t)n * sizeof *batch)) return -1;
      if (n < BATCH) break;
    }
  }
  return 0;
}

static void *write_all(void *unused) {
  struct timespec pause = {0, PAUSE_NS};
  int failed = 0;
  while (!failed && !atomic_load(&stopping)) {
    failed = drain();
    nanosleep(&pause, NULL);
  }
  if (!failed) failed = drain() || put_communicators() || put_counts();
  if (failed) {
    atomic_store(&recording, 0);
    say("cannot write");
  }
  return unused;
}

static void forked(void) {
  atomic_store(&recording, 0);
  disabled = 1;
  pause_forked();
}

static int first_setup(const char *given) {
  struct timespec now;
  const char *megabytes = getenv("PACELINE_NCCL_FILE_MB");
  if (snprintf(folder, sizeof folder, "%s", given) >= (int)sizeof folder) return -1;
  if (gethostname(host, sizeof host - 1)) strcpy(host, "host");
  for (char *c = host; *c; c++)
    if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_", *c)) *c = '_';
  if (megabytes && atoi(megabytes) > 0) largest = (uint64_t)atoi(megabytes) << 20;
  clock_gettime(CLOCK_REALTIME, &now);
  begun_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
  crc_setup();
  ring_setup();
  mkdir(folder, 0777); /* where that fails, opening the file says why */
  return pthread_atfork(NULL, NULL, forked);
}

static int start_writer(void) {
  const char *given = getenv("PACELINE_RECORD");
  sigset_t all, before;
  if (!given || !*given) return -1;
  errno = 0;
  if ((!begun_ns && first_setup(given)) || open_file()) {
    say(given);
    return -1;
  }
  atomic_store(&stopping, 0);
  sigfillset(&all); /* the job's signals are for the job's threads */
  pthread_sigmask(SIG_BLOCK, &all, &before);
  running = !pthread_create(&thread, NULL, write_all, NULL);
  if (running) {
    atomic_store(&recording, 1);
    pause_begin(folder, host, begun_ns);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!running) return -1;
  return 0;
}

static void stop_writer(void) {
  atomic_store(&recording, 0);
  if (!running) return;
  pause_end();
  atomic_store(&stopping, 1);
  pthread_mutex_unlock(&lock); /* the writer's last blocks take it */
  pthread_join(thread, NULL);
  pthread_mutex_lock(&lock);
  running = 0;
  close(file);
  file = -1;
}

static int add(const struct communicator *given) {
  if (n_communicators == n_room) {
    uint32_t room = n_room ? 2 * n_room : 64;
    void *grown = realloc(communicators, room * sizeof *communicators);
    if (!grown) return -1;
    communicators = grown, n_room = room;
  }
  communicators[n_communicators] = *given;
  communicators[n_communicators].number = n_communicators + 1;
  return (int)++n_communicators;
}

/* init and finalize of different communicators come from different threads at once. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

uint32_t writer_open(const struct communicator *given, int version) {
  uint32_t number = 0;
  if (disabled) return 0;
  pthread_mutex_lock(&turn);
  pthread_mutex_lock(&lock);
  if (!running) abi = version;
  if (!running && start_writer()) disabled = 1;
  if (!disabled && atomic_load(&recording)) {
    int added = add(given);
    if (added > 0) number = (uint32_t)added, n_open++;
  }
  pthread_mutex_unlock(&lock);
  pthread_mutex_unlock(&turn);
  return number;
}

void writer_close(void) {
  if (disabled) return;
  pthread_mutex_lock(&turn);
  pthread_mutex_lock(&lock);
  if (n_open > 0 && --n_open == 0) stop_writer();
  pthread_mutex_unlock(&lock);
  pthread_mutex_unlock(&turn);
}

/* A job that ends without destroying its communicators still has its last calls written. */
__attribute__((destructor)) static void at_exit(void) {
  if (disabled || pthread_mutex_trylock(&turn)) return;
  pthread_mutex_lock(&lock);
  stop_writer();
  pthread_mutex_unlock(&lock);
  pthread_mutex_unlock(&turn);
}
