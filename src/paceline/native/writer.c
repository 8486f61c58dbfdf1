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

/* Block types communicators, counts, records, as in sources/call_logs/nccl_profiler.py. */
enum { COMMUNICATORS_BLOCK = 17, COUNTS_BLOCK = 18, RECORDS_BLOCK = 19 };
/* The newest 16 files of 64 MB are kept per process. NCCL's threads never wake the writer. Between
 * its wake-ups the pool takes 13 million records a second, more than the writer can write. */
enum { BATCH = 2048, PAUSE_NS = 10000000, FILES_KEPT = 16 };
/* Longest wait for the last blocks at a job's end: the folder's file system may hang. */
enum { END_MOST_MS = 10000 };

atomic_int recording;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all below; events never take it */
static struct communicator *communicators;
static uint32_t n_communicators, n_room;
static int n_open, abi, running;
static atomic_int disabled;
static pthread_t thread;
static atomic_int stopping, ended;

/* Only the writer thread uses these. */
static int file = -1, n_files, n_own, own[FILES_KEPT];
static uint32_t n_named;
static uint64_t size, n_records, told_dropped, largest = 64u << 20;
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

struct part {
  const void *data;
  size_t n;
};

static int put_parts(unsigned char type, const struct part *parts, int n) {
  struct {
    char mark[4];
    uint8_t type, zero[3];
    uint32_t length, crc;
  } head = {{'\xb1', 'B', 'L', 'K'}, type, {0}, 0, crc_more(0, &type, 1)};
  for (int i = 0; i < n; i++) {
    head.length += (uint32_t)parts[i].n;
    head.crc = crc_more(head.crc, parts[i].data, parts[i].n);
  }
  int failed = put(&head, sizeof head);
  for (int i = 0; i < n && !failed; i++) failed = put(parts[i].data, parts[i].n);
  return failed;
}

static int put_block(unsigned char type, const void *payload, size_t n) {
  return put_parts(type, &(struct part){payload, n}, 1);
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

/* Opens a new file. Each file lists all communicators, so that it can be read alone. */
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

/* Writes without the lock: init must not wait for a disk that hangs. */
static int put_communicators(void) {
  struct communicator *fresh = NULL;
  pthread_mutex_lock(&lock);
  uint32_t n = n_communicators - n_named;
  if (n && (fresh = malloc(n * sizeof *fresh)))
    memcpy(fresh, communicators + n_named, n * sizeof *fresh);
  pthread_mutex_unlock(&lock);
  if (!n) return 0;
  int failed = !fresh || put_block(COMMUNICATORS_BLOCK, fresh, n * sizeof *fresh);
  n_named += n;
  free(fresh);
  return failed;
}

static int put_counts(void) {
  uint64_t counts[] = {n_records, told_dropped = ring_dropped(), ring_left_out(), ring_skipped()};
  return put_block(COUNTS_BLOCK, counts, sizeof counts);
}

/* Writes up to a batch of a ring's records; returns their number, -1 on a write error. */
static int put_records(int ring) {
  static struct record records[BATCH];
  static struct texts texts[BATCH];
  int n_texts, n = ring_drain(ring, records, texts, &n_texts, BATCH);
  if (!n) return 0;
  uint64_t count = (uint64_t)n;
  struct part parts[] = {{&count, sizeof count},
                         {records, (size_t)n * sizeof *records},
                         {texts, (size_t)n_texts * sizeof *texts}};
  n_records += count;
  if (size > largest && (put_counts() || open_file())) return -1;
  return put_communicators() || put_parts(RECORDS_BLOCK, parts, 3) ? -1 : n;
}

/* Writes losses at once, so that they are known if the process is killed. Counts of records left
 * out precede the records that follow. */
static int put_news(void) {
  static int was_off;
  int off = atomic_load(&ring_off), news = was_off && !off;
  was_off = off;
  return (news || ring_dropped() != told_dropped) && put_counts() ? -1 : 0;
}

/* Writes a batch of each ring; returns 1 if more may follow, -1 on a write error. */
static int drain(void) {
  int more = 0;
  if (put_news()) return -1;
  for (int i = 0; i < RINGS; i++) {
    int n = put_records(i);
    if (n < 0) return -1;
    more |= n == BATCH;
  }
  return more;
}

static void *write_all(void *unused) {
  struct timespec pause = {0, PAUSE_NS};
  int found = 0;
  while (found >= 0 && !atomic_load(&stopping)) {
    found = drain();
    if (!found) nanosleep(&pause, NULL);
  }
  while (found >= 0 && (found = drain()) > 0) {}
  if (found < 0 || put_communicators() || put_counts()) {
    atomic_store(&recording, 0);
    say("cannot write");
  }
  atomic_store(&ended, 1);
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
  mkdir(folder, 0777); /* if it fails, opening the file reports the reason */
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
  atomic_store(&ended, 0);
  sigfillset(&all); /* leave signals to the job's threads */
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

static int wait_for_writer(void) {
  struct timespec step = {0, 1000000};
  for (int ms = 0; ms < END_MOST_MS && !atomic_load(&ended); ms++) nanosleep(&step, NULL);
  return atomic_load(&ended);
}

static void stop_writer(void) {
  atomic_store(&recording, 0);
  if (!running) return;
  pause_end();
  atomic_store(&stopping, 1);
  pthread_mutex_unlock(&lock); /* the writer needs it for the last blocks */
  int has_ended = wait_for_writer();
  if (has_ended) pthread_join(thread, NULL);
  pthread_mutex_lock(&lock);
  running = 0;
  if (!has_ended) {
    disabled = 1; /* the thread still uses the file and its buffers */
    pthread_detach(thread);
    errno = 0;
    say("the folder does not answer");
    return;
  }
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

/* Several threads may init and finalize communicators at once. */
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

/* Writes the last calls of a job that ends without destroying its communicators. */
__attribute__((destructor)) static void at_exit(void) {
  if (disabled || pthread_mutex_trylock(&turn)) return;
  pthread_mutex_lock(&lock);
  stop_writer();
  pthread_mutex_unlock(&lock);
  pthread_mutex_unlock(&turn);
}
