/* Plays NCCL's proxies: network PLUGIN VERSION WHAT N. Eight ranks on two hosts, each with a NIC,
 * send to two ranks of the other host. WHAT is "send", "recv" or "rail": that direction of rank N's
 * NIC, or all NICs of local rank N, take three times as long; or "none". Rank 0's GPU is always
 * late, and so is the peer of what rank 1 sends. Time is made here, so none is lost to a busy
 * machine; all records of a process have room in its ring. Exit code 1: a check failed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nccl_abi.h"

#define CHECK(what) \
  do { \
    if (!(what)) fprintf(stderr, "line %d: %s\n", __LINE__, #what), exit(1); \
  } while (0)

enum { RANKS = 8, HOST = 4, ROUNDS = 10, STEPS = 3, BYTES = 1 << 20, US = 1000 };
enum { API_CALL = 9, GPU_WAIT = 8, PEER_WAIT = 20, SEND_WAIT = 9 };
enum { DATA_WAIT = 10, FLUSH = 11, DONE = 12 };

static int version, rank, number, mask;
static const char *what;
static int64_t clock_ns;
static struct profiler_v4 *old;
static struct profiler_v5 *new;
static void *context;

int clock_gettime(clockid_t which, struct timespec *now) {
  if (which != CLOCK_REALTIME || !clock_ns) return (int)syscall(SYS_clock_gettime, which, now);
  now->tv_sec = clock_ns / 1000000000, now->tv_nsec = clock_ns % 1000000000;
  return 0;
}

int gethostname(char *name, size_t n) { return snprintf(name, n, "node%d", rank / HOST), 0; }

/* Bits of which one is enough: NCCL tells of the parents of what was asked. */
static const int needed[] = {[EV_COLL] = 2,
                             [EV_PROXY_OP] = 1 << EV_PROXY_OP | 1 << EV_PROXY_STEP | 1 << EV_NET,
                             [EV_PROXY_STEP] = 1 << EV_PROXY_STEP | 1 << EV_NET,
                             [EV_NET] = 1 << EV_NET,
                             [API_CALL] = ~0};
static void *begin(int type, struct descriptor event) {
  void *handle = &handle;
  if (!(mask & needed[type])) return NULL;
  event.type64 = version == 4 ? ~0xffULL | 1u << type : 1ULL << type;
  CHECK(!(old ? old->start : new->start)(context, &handle, &event));
  return handle;
}
static void state(void *handle, int code, uint64_t size) {
  if (!handle) return;
  CHECK(!(old ? old->state : new->state)(handle, code, &size));
}
static void end(void *handle) { CHECK(!handle || !(old ? old->stop : new->stop)(handle)); }

static int is_slow(int from, int to) {
  if (!strcmp(what, "send")) return from == number;
  if (!strcmp(what, "recv")) return to == number;
  if (!strcmp(what, "rail")) return from % HOST == number || to % HOST == number;
  return 0;
}

/* In ns: of a step, which varies a little with the round. */
static int64_t network(int from, int to, int round) {
  return (300 + (from * 7 + to * 5 + round * 11) % 13) * US * (is_slow(from, to) ? 3 : 1);
}

static void *operation(int peer, int sends) {
  struct descriptor event = {0};
  event.proxy_op = (struct proxy_op){.pid = getpid(), .channel = (uint8_t)(peer % 2), .peer = peer,
                                     .steps = STEPS, .chunk = BYTES, .is_send = sends};
  void *op = begin(EV_PROXY_OP, event);
  state(op, 19, 0);
  return op;
}

static void *plugin_event(void *step, int i) {
  struct net_ib ib = {.type = NET_QP, .device = i % 2, .work = 5, .opcode = 1, .qp = 77, .length = BYTES};
  struct net_socket sock = {.type = NET_SOCK, .file = 9, .op = 0, .length = BYTES};
  struct descriptor event = {.parent = step};
  event.net = (struct net){i == 2 ? 0x77777 : number == 3 ? NET_SOCKET : NET_IB,
                           number == 3 ? (void *)&sock : (void *)&ib};
  return begin(EV_NET, event);
}

static void send_to(int peer, int round) {
  void *op = operation(peer, 1);
  for (int i = 0; i < STEPS; i++) {
    struct descriptor event = {.parent = op, .step = i};
    void *step = begin(EV_PROXY_STEP, event);
    state(step, GPU_WAIT, 99);
    clock_ns += rank == 0 ? 4000 * US : 50 * US;
    for (int look = 0; look < 5; look++, clock_ns += rank == 1 ? 400 * US : US)
      state(step, PEER_WAIT, 99);
    state(step, SEND_WAIT, BYTES);
    void *told = plugin_event(step, i);
    clock_ns += network(rank, peer, round);
    end(told);
    end(told); /* NCCL's InfiniBand plugin ends some twice */
    end(step);
  }
  end(op);
}

static void recv_from(int peer, int round) {
  void *op = operation(peer, 0);
  for (int i = 0; i < STEPS; i++) {
    struct descriptor event = {.parent = op, .step = i};
    void *step = begin(EV_PROXY_STEP, event);
    state(step, DATA_WAIT, 99);
    clock_ns += network(peer, rank, round) + 2000 * US;
    state(step, FLUSH, BYTES);
    state(step, DONE, BYTES);
    clock_ns += 20 * US;
    end(step);
  }
  end(op);
}

static void one_rank(void) {
  char text[16];
  snprintf(text, sizeof text, "%d", rank);
  setenv("RANK", text, 1);
  clock_ns = 1700000000000000000LL + rank * 1000000;
  CHECK(!(old ? old->init(&context, &mask, NULL, 0xabc, 2, RANKS, rank, NULL)
              : new->init(&context, 0xabc, &mask, NULL, 2, RANKS, rank, NULL)));
  struct descriptor event = {0};
  CHECK(version == 4 || !begin(API_CALL, event)); /* nobody asked for it */
  event.coll = (struct coll){.seq = 0, .func = "AllReduce", .count = 8, .datatype = "ncclFloat32"};
  end(begin(EV_COLL, event));
  for (int round = 0; round < ROUNDS; round++)
    for (int next = 0; next < 2; next++) {
      int other = rank < HOST ? HOST : 0;
      send_to(other + (rank + next) % HOST, round);
      recv_from(other + (rank + HOST - next) % HOST, round);
    }
  CHECK(!(old ? old->finalize : new->finalize)(context));
}

int main(int argc, char **argv) {
  char name[32];
  int failed = 0, status;
  CHECK(argc == 5);
  version = atoi(argv[2]), what = argv[3], number = atoi(argv[4]);
  void *lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  CHECK(lib);
  snprintf(name, sizeof name, "ncclProfiler_v%d", version);
  if (version == 4)
    CHECK((old = dlsym(lib, name)));
  else
    CHECK((new = dlsym(lib, name)));
  for (rank = 0; rank < RANKS; rank++)
    if (!fork()) one_rank(), exit(0);
  for (rank = 0; rank < RANKS; rank++) wait(&status), failed |= status;
  CHECK(!failed);
  return 0;
}
