/* Plays NCCL's side of the profiler interface: harness PLUGIN VERSION MODE [N].
 * Prints "attempts N": the records that the plugin was asked for. Exit code 1: a check failed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nccl_abi.h"

#define CHECK(what) \
  do { \
    if (!(what)) fprintf(stderr, "line %d: %s\n", __LINE__, #what), exit(1); \
  } while (0)

enum { RANKS = 8, STEPS = 60, LONG = 140, ONSET = 90, SLOW = 5, THREADS = 4, CHANNELS = 2 };

static int version;
static struct profiler_v4 *old;
static struct profiler_v5 *new;
static atomic_long attempts;

/* Libc's, which makes no system call; set before threads begin. */
static int (*libc_clock)(clockid_t, struct timespec *);
/* What the plugin takes for the wall clock; 0: the real one. */
static _Atomic int64_t wall_ns;
int clock_gettime(clockid_t which, struct timespec *now) {
  if (!libc_clock) return (int)syscall(SYS_clock_gettime, which, now);
  if (which != CLOCK_REALTIME || !wall_ns) return libc_clock(which, now);
  now->tv_sec = wall_ns / 1000000000, now->tv_nsec = wall_ns % 1000000000;
  return 0;
}

static void load(const char *path) {
  char name[32];
  libc_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib) fprintf(stderr, "%s\n", dlerror());
  CHECK(lib && !dlsym(lib, "ncclProfiler_v3") && !dlsym(lib, "ncclProfiler_v8"));
  snprintf(name, sizeof name, "ncclProfiler_v%d", version);
  if (version == 4)
    old = dlsym(lib, name);
  else
    new = dlsym(lib, name);
  CHECK(old || new);
}

static void *init(uint64_t id, int ranks, int rank, int *mask) {
  void *context = NULL;
  int wrong = old ? old->init(&context, mask, NULL, id, 1, ranks, rank, NULL)
                  : new->init(&context, id, mask, "world", 1, ranks, rank, NULL);
  CHECK(!wrong);
  return context;
}

static void finalize(void *context) {
  CHECK(!(old ? old->finalize : new->finalize)(context));
}

static void *begin(void *context, struct descriptor event, int type) {
  void *handle = &handle;
  /* Version 4 has one byte of type; what lies behind it is undefined. */
  event.type64 = version == 4 ? ~0xffULL | 1u << type : 1ULL << type;
  CHECK(!(old ? old->start : new->start)(context, &handle, &event));
  attempts++;
  return handle;
}

static void end(void *handle) {
  if (!handle) return;
  CHECK(!(old ? old->stop : new->stop)(handle));
  if (((uintptr_t)handle & 15) != EV_KERNEL) attempts++;
}

static void state(void *handle, int code, uint64_t value) {
  if (!handle) return;
  CHECK(!(old ? old->state : new->state)(handle, code, value ? &value : NULL));
  attempts++;
}

static void *begin_coll(void *context, void *group, const char *func, uint64_t seq, size_t count) {
  struct descriptor event = {.parent = group};
  event.coll = (struct coll){.seq = seq, .func = func, .count = count, .datatype = "ncclFloat32",
                             .channels = CHANNELS, .algo = "RING", .proto = "SIMPLE"};
  return begin(context, event, EV_COLL);
}

/* What the proxy thread says of a call: its channels on the device, and the network. */
static void device(void *context, void *call, uint64_t from, uint64_t to, int channels) {
  for (int channel = 0; channel < channels; channel++) {
    struct descriptor op = {.parent = call}, kernel = {.parent = call};
    op.proxy_op = (struct proxy_op){.pid = getpid(), .peer = 1, .steps = 4, .is_send = 1};
    kernel.kernel = (struct kernel){.channel = (uint8_t)channel, .timer = from + 100u * channel};
    void *sent = begin(context, op, EV_PROXY_OP);
    void *running = begin(context, kernel, EV_KERNEL);
    state(running, STATE_KERNEL_STOP, to - 50u * channel);
    state(sent, 19, 0);
    end(running);
    end(sent);
  }
}

struct call {
  void *context, *handle;
  uint64_t from, to;
};

static void *proxy(void *given) {
  struct call *call = given;
  device(call->context, call->handle, call->from, call->to, CHANNELS);
  return NULL;
}

/* Calls of a step: from `onset` on the SLOW rank comes 8 ms late to the first; all leave each
 * together. All ranks have one clock, that of the calls, however busy the machine is. */
static void job_rank(int rank, int steps, int onset) {
  static const char *const funcs[] = {"AllGather", "ReduceScatter", "AllGather", "AllReduce"};
  int mask = 0;
  void *context = init(0xabc, RANKS, rank, &mask);
  CHECK(context && mask & (1 << EV_COLL) && mask & (1 << EV_KERNEL));
  uint64_t clock = 1700000000000000000ULL;
  for (int step = 0; step < steps; step++) {
    struct call calls[4];
    pthread_t thread;
    for (int i = 0; i < 4; i++) {
      uint64_t work = 8000000u + 10000u * (uint64_t)((rank * 7 + step * 3 + i) % 5);
      uint64_t late = i == 0 && step >= onset ? 8000000u : 0;
      uint64_t from = clock + work + (rank == SLOW ? late : 0);
      wall_ns = (int64_t)from;
      clock += 9000000u + late;
      void *group = begin(context, (struct descriptor){0}, EV_GROUP);
      void *handle = begin_coll(context, group, funcs[i], (uint64_t)(step * 4 + i), 1u << (10 + i));
      end(handle);
      end(group);
      calls[i] = (struct call){context, handle, from, clock};
      if (step % 20 == 0) {
        CHECK(!pthread_create(&thread, NULL, proxy, &calls[i]));
        pthread_join(thread, NULL);
      } else {
        proxy(&calls[i]);
      }
    }
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
  }
  finalize(context);
}

static void job(int steps, int onset) {
  int failed = 0, status;
  for (int rank = 0; rank < RANKS; rank++)
    if (!fork()) job_rank(rank, steps, onset), exit(0);
  for (int rank = 0; rank < RANKS; rank++) wait(&status), failed |= status;
  CHECK(!failed);
}

/* A job of which one step in n may be recorded. Steps go on until all ranks leave some out, then for
 * `more`; in the middle of these the SLOW rank becomes late, or there is an evaluation. */
enum { LEFT_OUT_MARK = 0xfffd, MARGIN = 20, EVALUATED = 6 };
struct sampled {
  atomic_long done[RANKS], leaves_out[RANKS], end;
};

static void *send_or_recv(void *context, int rank) {
  struct descriptor event = {0};
  event.p2p = (struct p2p){.func = rank % 2 ? "Recv" : "Send", .datatype = "ncclFloat32",
                           .count = 64, .peer = !(rank % 2), .channels = 1};
  return begin(context, event, EV_P2P);
}

/* A collective from its launch to what the proxy says; returns whether it was left out. */
static int whole_call(void *context, const char *func, uint64_t seq, size_t n, uint64_t from,
                      uint64_t to) {
  void *group = begin(context, (struct descriptor){0}, EV_GROUP);
  CHECK(group); /* without one NCCL 2.27 would tell of no call */
  void *handle = begin_coll(context, group, func, seq, n);
  end(handle);
  end(group);
  struct call call = {context, handle, from, to};
  proxy(&call);
  return (uintptr_t)handle >> 48 == LEFT_OUT_MARK;
}

static void wait_for_others(struct sampled *job, long done) {
  for (int i = 0; i < RANKS; i++)
    while (done - job->done[i] > 2) usleep(100);
}

static void know_the_end(struct sampled *job, int more) {
  long most = 0, none = 0;
  for (int i = 0; i < RANKS; i++) {
    if (!job->leaves_out[i]) return;
    if (job->done[i] > most) most = job->done[i];
  }
  atomic_compare_exchange_strong(&job->end, &none, most + MARGIN + more);
}

static void sampled_rank(struct sampled *job, int rank, int more, int evaluates) {
  static const char *const funcs[] = {"AllGather", "ReduceScatter", "AllGather", "AllReduce"};
  int mask = 0;
  uint64_t clock = 1700000000000000000ULL, seq = 0;
  void *context = init(0xabc, RANKS, rank, &mask), *pair = init(0xd0 + (uint64_t)rank / 2, 2, rank % 2, &mask);
  for (long step = 0; !job->end || step < job->end; step++) {
    long middle = job->end ? job->end - more / 2 : step + 1;
    uint64_t late = step >= middle && !evaluates ? 8000000u : 0;
    for (int i = 0; i < 4; i++) {
      uint64_t work = 8000000u + 10000u * (uint64_t)((rank * 7 + step * 3 + i) % 5);
      uint64_t from = clock + work + (i == 0 && rank == SLOW ? late : 0);
      clock += 9000000u + (i == 0 ? late : 0);
      job->leaves_out[rank] |= whole_call(context, funcs[i], seq++, 1u << (10 + i), from, clock);
      void *sent = send_or_recv(pair, rank);
      end(sent);
      device(pair, sent, clock, clock + 50000u, 1);
      clock += 100000u;
      whole_call(pair, "AllReduce", seq, 64, clock, clock + 100000u);
      clock += 100000u;
    }
    for (int i = 0; evaluates && step == middle && i < EVALUATED; i++, clock += 500000u)
      whole_call(context, "Broadcast", seq++, 4096, clock, clock + 400000u);
    usleep(1000);
    job->done[rank] = step + 1;
    if (!job->end) know_the_end(job, more);
    wait_for_others(job, step + 1);
  }
  finalize(pair);
  finalize(context);
  printf("steps %ld\n", (long)job->end);
}

static void sampled(int more, int evaluates) {
  int failed = 0, status;
  struct sampled *job = mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(job != MAP_FAILED);
  for (int rank = 0; rank < RANKS; rank++)
    if (!fork()) sampled_rank(job, rank, more, evaluates), exit(0);
  for (int rank = 0; rank < RANKS; rank++) wait(&status), failed |= status;
  CHECK(!failed);
}

static void *world;
static int n_events;

static void *emit(void *unused) {
  for (int i = 0; i < n_events; i++) end(begin_coll(world, NULL, "AllReduce", (uint64_t)i, 8));
  return unused;
}

static void threads(int n) {
  int mask;
  pthread_t all[THREADS];
  n_events = n;
  world = init(1, 1, 0, &mask);
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&all[i], NULL, emit, NULL));
  for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
  finalize(world);
}

/* Many communicators, split and aborted: finalised in another order, with events still open. */
static void communicators(int n) {
  void **contexts = calloc((size_t)n, sizeof *contexts), *last = NULL;
  int mask;
  for (int i = 0; i < n; i++) {
    CHECK((contexts[i] = init((uint64_t)i, 2, 0, &mask)));
    last = begin_coll(contexts[i], NULL, "AllReduce", 0, 8);
    if (i % 100 == 0) usleep(4000);
  }
  for (int i = 0; i < n; i++) finalize(contexts[(i * 7) % n]);
  CHECK(!(old ? old->stop : new->stop)(last)); /* behind the end: ignored */
  free(contexts);
}

/* An all-to-all of n ranks: one group of n sends and n recvs, which end after the last is queued. */
static void group_of(int n) {
  int mask;
  void *context = init(7, n, 0, &mask);
  void **calls = calloc(2 * (size_t)n, sizeof *calls);
  for (int step = 0; step < 3; step++) {
    struct descriptor event = {0};
    void *group = begin(context, event, EV_GROUP);
    for (int i = 0; i < 2 * n; i++) {
      struct descriptor one = {.parent = group};
      one.p2p = (struct p2p){.func = i % 2 ? "Recv" : "Send", .datatype = "ncclFloat32",
                             .count = 64, .peer = i / 2, .channels = 1};
      calls[i] = begin(context, one, EV_P2P);
    }
    for (int i = 0; i < 2 * n; i++) {
      device(context, calls[i], 1000u * (unsigned)(step + 1), 1000u * (unsigned)(step + 1) + 500, 1);
      end(calls[i]);
    }
    end(group);
  }
  finalize(context);
  free(calls);
}

static void forked(void) {
  int mask, status;
  world = init(1, 1, 0, &mask);
  end(begin_coll(world, NULL, "AllReduce", 0, 8));
  if (!fork()) {
    end(begin_coll(world, NULL, "Broadcast", 1, 8));
    CHECK(!init(2, 1, 0, &mask) && !mask);
    finalize(world);
    exit(0);
  }
  CHECK(wait(&status) > 0 && !status);
  finalize(world);
  world = init(3, 1, 0, &mask); /* the last one ended: recording begins anew */
  end(begin_coll(world, NULL, "AllReduce", 1, 8));
  /* No finalize: what ends without it is written, too. */
}

/* Programs that a job starts, by fork and by vfork, hold none of its files; then, `times` times, it
 * becomes another program without an end, as a launcher does that starts the job anew. */
static void executed(char **argv, int times) {
  int mask, status;
  pid_t child;
  char fewer[16], *look[] = {"/bin/sh", "-c", "ls -l /proc/$$/fd 2>/dev/null | grep -qE '[.](nccl|slot)' && exit 7; exit 0", NULL};
  world = init(1, 1, 0, &mask);
  end(begin_coll(world, NULL, "AllReduce", 0, 8));
  CHECK(!system(look[2]));
  CHECK(!posix_spawn(&child, look[0], NULL, NULL, look, NULL));
  CHECK(waitpid(child, &status, 0) == child && !status);
  if (!(child = fork())) execv(look[0], look), exit(9);
  CHECK(waitpid(child, &status, 0) == child && !status);
  end(begin_coll(world, NULL, "AllReduce", 1, 8));
  if (!times) {
    finalize(world);
    return;
  }
  snprintf(fewer, sizeof fewer, "%d", times - 1);
  argv[4] = fewer;
  execv("/proc/self/exe", argv);
  CHECK(!"exec");
}

/* A job that may be paused. Each collective ends when all ranks have queued it, and the host is at
 * most AHEAD groups ahead; every third group has two collectives. Ends by itself after `ms`. */
enum { AHEAD = 2 };
struct shared {
  atomic_long queued[RANKS];
  atomic_int over;
};

static int64_t clock_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static long slowest(struct shared *job) {
  long least = job->queued[0];
  for (int i = 1; i < RANKS; i++)
    if (job->queued[i] < least) least = job->queued[i];
  return least;
}

static void paused_rank(struct shared *job, int rank, int ms) {
  int mask;
  int64_t begun = clock_ms(), longest = 0;
  uint64_t seq = 0, stood_at = 0;
  char number[16];
  snprintf(number, sizeof number, "%d", rank);
  setenv("RANK", number, 1);
  void *context = init(0xabc, RANKS, rank, &mask);
  void *other = init(0xdef, 2, rank % 2, &mask);
  while (clock_ms() - begun < ms && !job->over) {
    void *calls[2], *group = begin(context, (struct descriptor){0}, EV_GROUP);
    CHECK(group); /* without one NCCL 2.27 would tell of no call */
    int n = job->queued[rank] % 3 == 2 ? 2 : 1;
    end(begin_coll(other, NULL, "AllReduce", seq, 8));
    for (int i = 0; i < n; i++) calls[i] = begin_coll(context, group, "AllGather", seq++, 64);
    int64_t before = clock_ms();
    for (int i = 0; i < n; i++) end(calls[i]);
    int64_t stood = clock_ms() - before;
    if (stood > longest) longest = stood, stood_at = seq;
    end(group);
    job->queued[rank]++;
    usleep(500 + 300 * (unsigned)((rank * 5 + seq * 3) % 7));
    while (job->queued[rank] - slowest(job) > AHEAD && !job->over && clock_ms() - begun < ms)
      usleep(200);
  }
  printf("rank %d queued %llu longest %lld ms at %llu\n", rank, (unsigned long long)seq,
         (long long)longest, (unsigned long long)stood_at);
  finalize(other);
  finalize(context);
}

/* A SIGTERM ends it early. Prints the ranks' process numbers first. */
static struct shared *pausable;
static void end_early(int signal) { (void)signal, pausable->over = 1; }

static void pause_job(int ms) {
  pid_t pids[RANKS];
  int status;
  pausable = mmap(NULL, sizeof *pausable, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(pausable != MAP_FAILED);
  signal(SIGTERM, end_early);
  printf("pids");
  fflush(stdout);
  for (int rank = 0; rank < RANKS; rank++) {
    if (!(pids[rank] = fork())) paused_rank(pausable, rank, ms), exit(0);
    dprintf(1, " %d", (int)pids[rank]);
  }
  dprintf(1, "\n");
  for (int left = RANKS; left;)
    if (wait(&status) > 0) left--;
    else CHECK(errno == EINTR);
}

/* Whatever may come, from several threads at once: types that nobody asked for, handles of others or
 * of nobody, no arguments, no texts, communicators that end meanwhile. All must be answered by 0. */
static atomic_uintptr_t seen_handle;
static void *random_calls(void *given) {
  unsigned seed = (unsigned)(uintptr_t)given + 1;
  static const char *const texts[] = {NULL, "", "AllReduce", "a text that is longer than its room"};
  int (*stop)(void *) = old ? old->stop : new->stop;
  int (*tell)(void *, int, uint64_t *) = old ? old->state : new->state;
  for (int i = 0; i < n_events; i++) {
    unsigned choice = (unsigned)rand_r(&seed);
    uint64_t value = (uint64_t)rand_r(&seed) << 33 ^ choice;
    struct descriptor event;
    memset(&event, (int)(choice & 255), sizeof event);
    event.type64 = choice & 256 ? value & ~(1ULL << EV_P2P) : 1ULL << choice / 8 % 20;
    if (event.type64 == 1ULL << EV_P2P)
      event.p2p.func = event.p2p.datatype = texts[choice % 4];
    else
      event.coll.func = event.coll.datatype = event.coll.algo = event.coll.proto = texts[choice % 4];
    void *handle = (void *)(choice & 512 ? value : atomic_load(&seen_handle));
    void *context = choice & 1024 ? world : (void *)(uintptr_t)(choice / 16 % 5);
    if (choice % 8 == 0) {
      CHECK(!stop(handle));
    } else if (choice % 8 == 1) {
      CHECK(!tell(handle, (int)(value % 40), choice & 2048 ? &value : NULL));
    } else if (choice % 8 == 2) {
      CHECK(!stop(NULL) && !tell(NULL, 22, NULL));
    } else {
      CHECK(!(old ? old->start : new->start)(context, &handle, &event));
      if (handle) atomic_store(&seen_handle, (uintptr_t)handle);
    }
    if (i % 1000 == 999) {
      int mask;
      finalize(init(value % 3, 2, (int)(choice % 2), &mask));
    }
  }
  return NULL;
}

static void fuzz(int n) {
  pthread_t all[THREADS];
  int mask;
  n_events = n;
  world = init(1, 2, 0, &mask);
  for (uintptr_t i = 0; i < THREADS; i++)
    CHECK(!pthread_create(&all[i], NULL, random_calls, (void *)i));
  for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
  finalize(world);
}

/* A second copy of the plugin in the same process, as where a framework brings an NCCL of its own;
 * and the first once more, closed and opened again. */
static void twice(const char *path) {
  char copy[600];
  int mask;
  void *first = world = init(1, 1, 0, &mask);
  struct profiler_v5 *new_one = new;
  end(begin_coll(world, NULL, "AllReduce", 0, 8));
  snprintf(copy, sizeof copy, "%s.copy", path);
  load(copy);
  CHECK(new && new != new_one);
  world = init(1, 1, 0, &mask);
  CHECK(world && mask);
  end(begin_coll(world, NULL, "Broadcast", 0, 8));
  finalize(world);
  new = new_one;
  finalize(first);
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(lib && !dlclose(lib) && !dlclose(lib));
  load(path);
  world = init(2, 1, 0, &mask);
  end(begin_coll(world, NULL, "AllReduce", 1, 8));
  finalize(world);
}

/* Collectives of another tool's file, as lines "func datatype count launch start end" in ns: each is
 * queued as long after the first as it was launched. N is the rank, of two. */
static void replay(int rank) {
  char func[32], type[32];
  size_t count;
  long long launch, from, to, first = -1;
  uint64_t seq[256] = {0};
  int mask;
  void *context = init(0xabc, 2, rank, &mask);
  int64_t begun = 0, n = 0;
  while (scanf("%31s %31s %zu %lld %lld %lld", func, type, &count, &launch, &from, &to) == 6) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (first < 0) first = launch, begun = now.tv_sec * 1000000000LL + now.tv_nsec;
    wall_ns = begun + launch - first + n++ * 7919 % 20000; /* a host strays by some 10 us */
    struct descriptor event = {0};
    event.coll = (struct coll){.seq = seq[(unsigned char)func[0]]++, .func = strdup(func),
                               .count = count, .datatype = strdup(type), .channels = CHANNELS,
                               .algo = "RING", .proto = "LL"};
    void *call = begin(context, event, EV_COLL);
    end(call);
    struct descriptor kernel = {.parent = call};
    kernel.kernel = (struct kernel){.channel = 0, .timer = (uint64_t)from};
    wall_ns = begun + to - first; /* what the proxy says comes behind the end */
    void *running = begin(context, kernel, EV_KERNEL);
    state(running, STATE_KERNEL_STOP, (uint64_t)to);
    end(running);
  }
  finalize(context);
}

static void off(void) {
  int mask = 7;
  CHECK(!init(1, 1, 0, &mask) && !mask);
  CHECK(!begin_coll(NULL, NULL, "AllReduce", 0, 8));
  attempts = 0;
}

static void cost(int n) {
  struct timespec from, to;
  int mask;
  world = init(1, 1, 0, &mask);
  n_events = 500;
  double spent = 0;
  for (int i = 0; i < n; i++) {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    emit(NULL);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    spent += (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
    usleep(5000);
  }
  printf("%.0f ns a record\n", spent / n / 1000);
  finalize(world);
}

/* Records as NCCL makes them: collectives in groups by one thread, their proxies and kernels by
 * another, so many a second in all. A thread that was late catches up at once. */
enum { RATE_CHANNELS = 8, RATE_HOST = 4, RATE_RECORDS = RATE_HOST + 5 * RATE_CHANNELS };
static double per_second;
static struct timespec rate_begun;

static void *at_rate(void *is_proxy) {
  struct timespec spent;
  for (int i = 0; i < n_events; i++) {
    double due_s = (double)i * RATE_RECORDS / per_second + (double)rate_begun.tv_nsec * 1e-9;
    struct timespec due = {rate_begun.tv_sec + (time_t)due_s, (long)((due_s - (long)due_s) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
    if (is_proxy) {
      device(world, (void *)(uintptr_t)(i + 1), 1, 2, RATE_CHANNELS);
      continue;
    }
    void *group = begin(world, (struct descriptor){0}, EV_GROUP);
    end(begin_coll(world, group, "AllReduce", (uint64_t)i, 8));
    end(group);
  }
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  double cpu_ns = (double)spent.tv_sec * 1e9 + (double)spent.tv_nsec;
  int records = is_proxy ? RATE_RECORDS - RATE_HOST : RATE_HOST;
  printf("%.0f ns of CPU a record with the thread's sleeps\n", cpu_ns / n_events / records);
  return NULL;
}

static void rate(int records, int a_second) {
  int mask;
  pthread_t proxies;
  struct timespec ended, cpu;
  n_events = records / RATE_RECORDS, per_second = a_second;
  world = init(1, 1, 0, &mask);
  clock_gettime(CLOCK_MONOTONIC, &rate_begun);
  CHECK(!pthread_create(&proxies, NULL, at_rate, world));
  at_rate(NULL);
  pthread_join(proxies, NULL);
  clock_gettime(CLOCK_MONOTONIC, &ended);
  finalize(world);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  printf("%.1f s, %.2f s of CPU\n",
         (double)(ended.tv_sec - rate_begun.tv_sec) + (double)(ended.tv_nsec - rate_begun.tv_nsec) * 1e-9,
         (double)cpu.tv_sec + (double)cpu.tv_nsec * 1e-9);
}

int main(int argc, char **argv) {
  CHECK(argc > 3);
  const char *mode = argv[3];
  int n = argc > 4 ? atoi(argv[4]) : 0;
  version = atoi(argv[2]);
  load(argv[1]);
  if (!strcmp(mode, "job")) job(STEPS, 0);
  if (!strcmp(mode, "onset")) job(LONG, ONSET);
  if (!strcmp(mode, "sampled")) sampled(n, argc > 5);
  if (!strcmp(mode, "threads")) threads(n);
  if (!strcmp(mode, "communicators")) communicators(n);
  if (!strcmp(mode, "group")) group_of(n);
  if (!strcmp(mode, "fork")) forked();
  if (!strcmp(mode, "exec")) executed(argv, n);
  if (!strcmp(mode, "off")) off();
  if (!strcmp(mode, "fuzz")) fuzz(n);
  if (!strcmp(mode, "twice")) twice(argv[1]);
  if (!strcmp(mode, "replay")) replay(n);
  if (!strcmp(mode, "pause")) pause_job(n);
  if (!strcmp(mode, "cost")) cost(n);
  if (!strcmp(mode, "rate")) rate(n, argc > 5 ? atoi(argv[5]) : 100000);
  printf("attempts %ld\n", attempts);
  return 0;
}
