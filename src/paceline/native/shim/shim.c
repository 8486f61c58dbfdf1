/* LD_PRELOAD: replaces NCCL's functions, records each call, and calls the original.
 * For libraries without the profiler interface: older NCCL, RCCL. Only host times are recorded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../nccl_abi.h"
#include "../pause.h"
#include "../ring.h"
#include "../sampling.h"
#include "../writer.h"
#include "nccl_api.h"

#define SEEN __attribute__((visibility("default")))

enum { COMMS = 4096, NO_ABI = 0 };

/* Communicators by address: written under the lock, read without. A slot keeps its address. */
struct known {
  _Atomic(comm_t) comm;
  _Atomic uint32_t number; /* 0: not open */
  atomic_uint_fast64_t id, calls;
  atomic_uint splits;
};
static struct known comms[COMMS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local struct {
  int depth;  /* of nested groups */
  int inside; /* ignore functions that NCCL calls itself */
  uint64_t group;
} me __attribute__((tls_model("initial-exec")));

static const char *const datatypes[] = {
    "ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",   "ncclInt64",      "ncclUint64",
    "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};

/* The NCCL or RCCL library. */

static int is_nccl(struct dl_phdr_info *info, size_t size, void *found) {
  (void)size;
  const char *name = strrchr(info->dlpi_name ? info->dlpi_name : "", '/');
  if (!name || (strncmp(name, "/libnccl.so", 11) && strncmp(name, "/librccl.so", 11))) return 0;
  *(const char **)found = info->dlpi_name;
  return 1;
}

/* RTLD_NEXT finds linked libraries, but not one that dlopen opened with local scope, as Python
 * opens PyTorch. Such a library is found by its name. */
static void *resolve(const char *name) {
  void *function = dlsym(RTLD_NEXT, name), *lib;
  const char *path = NULL;
  if (!function && dl_iterate_phdr(is_nccl, &path) && (lib = dlopen(path, RTLD_LAZY | RTLD_NOLOAD)))
    function = dlsym(lib, name);
  if (!function) fprintf(stderr, "paceline: NCCL shim: no library has %s\n", name);
  return function;
}

#define REAL(name, parameters) \
  static _Atomic(void *) found_##name; \
  if (!found_##name) found_##name = resolve("nccl" #name); \
  int(*real) parameters = __extension__(int(*) parameters) found_##name; \
  if (!real) return NCCL_INTERNAL_ERROR

/* Communicators. */

static uint64_t hash(uint64_t hash, const void *data, size_t n) {
  const unsigned char *bytes = data;
  for (size_t i = 0; i < n; i++) hash = (hash ^ bytes[i]) * 0x100000001b3ULL; /* FNV-1a */
  return hash;
}

static struct known *place_of(comm_t comm) {
  size_t first = ((uintptr_t)comm >> 4) * 0x9e3779b97f4a7c15ULL >> 52;
  for (size_t i = 0; i < COMMS; i++) {
    struct known *one = &comms[(first + i) % COMMS];
    comm_t there = atomic_load_explicit(&one->comm, memory_order_acquire);
    if (there == comm) return one;
    if (!there) return NULL;
  }
  return NULL;
}

static int is_off(void) {
  const char *plugin = getenv("NCCL_PROFILER_PLUGIN");
  return plugin && strstr(plugin, "paceline"); /* the plugin records more */
}

/* A communicator's identity, the same on all its ranks; 0: unknown. */
static struct known *remember(comm_t comm, uint64_t id) {
  if (!comm) return NULL;
  pthread_mutex_lock(&lock);
  struct known *one = place_of(comm);
  size_t first = ((uintptr_t)comm >> 4) * 0x9e3779b97f4a7c15ULL >> 52;
  for (size_t i = 0; !one && i < COMMS; i++)
    if (!atomic_load(&comms[(first + i) % COMMS].comm)) one = &comms[(first + i) % COMMS];
  if (one) {
    atomic_store(&one->id, id);
    atomic_store(&one->calls, 0);
    atomic_store(&one->splits, 0);
    atomic_store_explicit(&one->comm, comm, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
  return one;
}

static void open_one(struct known *one, int rank, int ranks) {
  if (!one || is_off()) return;
  struct communicator given = {.id = one->id, .rank = rank, .ranks = ranks};
  given.number = writer_open(&given, NO_ABI);
  if (given.number) pause_opened(&given, given.id != 0);
  atomic_store(&one->number, given.number);
}

static void add(comm_t comm, uint64_t id, int rank, int ranks) {
  open_one(remember(comm, id), rank, ranks);
}

static void drop(comm_t comm) {
  struct known *one = place_of(comm);
  uint32_t number = one ? atomic_exchange(&one->number, 0) : 0;
  if (!number) return;
  pause_closed(number);
  writer_close();
}

static int ask_comm(const char *name, comm_t comm) {
  int (*real)(comm_t, int *) = __extension__(int (*)(comm_t, int *)) resolve(name), value = -1;
  me.inside++;
  if (!real || real(comm, &value)) value = -1;
  me.inside--;
  return value;
}

/* At its first call, a communicator's rank and size are known, even if it was split off. If the
 * shim missed its creation, it has no identity: its calls are recorded, but not paused. */
static struct known *known_of(comm_t comm) {
  struct known *one = place_of(comm);
  if (one && one->number) return one;
  int rank = ask_comm("ncclCommUserRank", comm), ranks = ask_comm("ncclCommCount", comm);
  if (rank < 0 || ranks < 1) return NULL;
  open_one(one ? one : remember(comm, 0), rank, ranks);
  one = place_of(comm);
  return one && one->number ? one : NULL;
}

/* Calls. */

static void *begin(int type, const char *func, comm_t comm, size_t count, int datatype, int root) {
  struct known *one = known_of(comm);
  if (!one) return NULL;
  uint64_t seq = type == EV_COLL ? atomic_fetch_add(&one->calls, 1) : 0;
  const char *name = datatype >= 0 && datatype < 12 ? datatypes[datatype] : "";
  struct mark mark;
  int told = NO_MARK;
  if (type == EV_COLL) {
    struct queued queued = {func, name, count, seq};
    told = sampling_call(one->number, pause_count(one->number, queued), queued, &mark);
  }
  if (told == NO_MARK && sampling_skips()) {
    ring_count_skip();
    return NULL;
  }
  struct ring *ring = ring_mine();
  struct record *record = ring_record(ring, START, type);
  if (!record) return NULL;
  record->handle = ring_handle(ring, type);
  record->parent = me.group;
  record->communicator = one->number;
  record->a = seq, record->b = count, record->c = root;
  copy_text(texts_of(record)->func, func, sizeof texts_of(record)->func);
  copy_text(texts_of(record)->datatype, name, sizeof texts_of(record)->datatype);
  uint64_t handle = record->handle;
  ring_commit(ring);
  if (told != NO_MARK) sampling_put(ring, &mark, one->number, handle);
  return (void *)(uintptr_t)handle;
}

static void end(void *handle) {
  struct ring *ring = handle ? ring_mine() : NULL;
  struct record *record = ring ? ring_record(ring, STOP, (int)((uintptr_t)handle & 15)) : NULL;
  if (record) {
    record->handle = (uintptr_t)handle;
    ring_commit(ring);
  }
}

static int is_recording(void) { return atomic_load_explicit(&recording, memory_order_relaxed); }

#define CALL(type, name, func, parameters, arguments, count, datatype, root) \
  SEEN int nccl##name parameters { \
    REAL(name, parameters); \
    if (me.inside || !comm || !is_recording()) return real arguments; \
    void *handle = begin(type, func, comm, count, datatype, root); \
    me.inside++; \
    int result = real arguments; \
    me.inside--; \
    end(handle); \
    if (!me.depth) pause_point(); \
    return result; \
  }
#define COLLECTIVE(...) CALL(EV_COLL, __VA_ARGS__)
#define TRANSFER(...) CALL(EV_P2P, __VA_ARGS__)
COLLECTIVES(COLLECTIVE)
TRANSFERS(TRANSFER)

SEEN int ncclGroupStart(void) {
  REAL(GroupStart, (void));
  if (me.inside) return real();
  if (!me.depth++ && is_recording() && !sampling_skips()) {
    struct ring *ring = ring_mine();
    struct record *record = ring_record(ring, START, EV_GROUP);
    if (record) {
      me.group = record->handle = ring_handle(ring, EV_GROUP);
      ring_commit(ring);
    }
  }
  return real();
}

/* Ranks pause after the outermost group end, where no group is half issued. */
SEEN int ncclGroupEnd(void) {
  REAL(GroupEnd, (void));
  if (me.inside) return real();
  me.inside++;
  int result = real();
  me.inside--;
  if (me.depth > 0 && !--me.depth) {
    end((void *)(uintptr_t)me.group);
    me.group = 0;
    pause_point();
  }
  return result;
}

#define MAKE(name, parameters, arguments, after) \
  SEEN int nccl##name parameters { \
    REAL(name, parameters); \
    me.inside++; \
    int result = real arguments; \
    me.inside--; \
    if (!me.inside && (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS)) after; \
    return result; \
  }

static uint64_t id_of(const void *data, size_t n) {
  uint64_t id = hash(0xcbf29ce484222325ULL, data, n);
  return id ? id : 1;
}

MAKE(CommInitRank, (comm_t * comm, int ranks, unique_id id, int rank), (comm, ranks, id, rank),
     add(*comm, id_of(&id, sizeof id), rank, ranks))
MAKE(CommInitRankConfig, (comm_t * comm, int ranks, unique_id id, int rank, void *config),
     (comm, ranks, id, rank, config), add(*comm, id_of(&id, sizeof id), rank, ranks))
MAKE(CommInitRankScalable,
     (comm_t * comm, int ranks, int rank, int n, unique_id *ids, void *config),
     (comm, ranks, rank, n, ids, config), add(*comm, id_of(ids, sizeof *ids * (size_t)n), rank, ranks))

static void add_all(comm_t *made, int n) {
  uint64_t own[3] = {(uint64_t)getpid(), (uint64_t)(uintptr_t)made[0], (uint64_t)n};
  for (int rank = 0; rank < n; rank++) add(made[rank], id_of(own, sizeof own), rank, n);
}
MAKE(CommInitAll, (comm_t * made, int n, const int *devices), (made, n, devices), add_all(made, n))

/* `which` agrees on all members: all have made equally many communicators of the parent. */
static void add_child(comm_t parent, uint64_t which, comm_t *made) {
  struct known *one = place_of(parent);
  if (!one) return;
  uint64_t key[3] = {one->id, which, atomic_fetch_add(&one->splits, 1)};
  if (made && *made) remember(*made, one->id ? id_of(key, sizeof key) : 0);
}

static void add_split(comm_t parent, int color, comm_t *made) {
  add_child(parent, (uint64_t)(int64_t)color, made);
}

static void add_shrunk(comm_t parent, const int *excluded, int n, comm_t *made) {
  if (n > 0 && excluded) add_child(parent, id_of(excluded, sizeof *excluded * (size_t)n), made);
}
MAKE(CommSplit, (comm_t comm, int color, int key, comm_t *made, void *config),
     (comm, color, key, made, config), add_split(comm, color, made))
MAKE(CommShrink, (comm_t comm, int *excluded, int n, comm_t *made, void *config, int flags),
     (comm, excluded, n, made, config, flags), add_shrunk(comm, excluded, n, made))

#define UNMAKE(name) \
  SEEN int nccl##name(comm_t comm) { \
    REAL(name, (comm_t)); \
    if (!me.inside && comm) drop(comm); \
    me.inside++; \
    int result = real(comm); \
    me.inside--; \
    return result; \
  }
UNMAKE(CommDestroy)
UNMAKE(CommAbort)
