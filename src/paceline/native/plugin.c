/* NCCL's entry points. Each writes at most one record, without lock, allocation or system call. */
#include <stdlib.h>

#include "nccl_abi.h"
#include "pause.h"
#include "ring.h"
#include "sampling.h"
#include "writer.h"

#define BIT(type) (1 << (type))
#define COMMON (BIT(EV_GROUP) | BIT(EV_COLL) | BIT(EV_P2P) | BIT(EV_PROXY_OP) | BIT(EV_KERNEL))

/* With channels, NCCL reports graph replays on all ranks, so that their counts agree. */
#define EVEN (BIT(EV_COLL) | BIT(EV_KERNEL))

/* Handle of an event without a record. The end of a collective still counts for a pause. */
#define DROPPED 0xffffULL
#define LEFT_OUT 0xfffeULL
/* Handle of an event in a step that is left out; events of its proxies are left out, too. */
#define SKIPPED 0xfffdULL

/* Events that PACELINE_NCCL_EVENTS may request. */
#define ALL (COMMON | BIT(EV_PROXY_STEP) | BIT(EV_NET) | BIT(EV_CE_COLL))

/* Per version: the events that we request, and the bits of its type field. */
static const struct version {
  int mask;
  uint64_t type_bits;
} versions[] = {
    [4] = {COMMON, 0xff},
    [5] = {COMMON, ~0ULL},
    [6] = {COMMON | BIT(EV_CE_COLL), ~0ULL},
    [7] = {COMMON | BIT(EV_CE_COLL), ~0ULL}, /* without the phases of a kernel, bit 15 */
};

static void fill_coll(struct record *record, const struct coll *coll, int on_sms) {
  record->a = coll->seq;
  record->b = coll->count;
  record->c = coll->root;
  struct texts *texts = texts_of(record);
  copy_text(texts->func, coll->func, sizeof texts->func);
  copy_text(texts->datatype, coll->datatype, sizeof texts->datatype);
  if (!on_sms) return;
  record->d = coll->channels | coll->warps << 8;
  copy_text(texts->algo, coll->algo, sizeof texts->algo);
  copy_text(texts->proto, coll->proto, sizeof texts->proto);
}

static void fill_p2p(struct record *record, const struct p2p *p2p) {
  record->b = p2p->count;
  record->c = p2p->peer;
  record->d = p2p->channels;
  struct texts *texts = texts_of(record);
  copy_text(texts->func, p2p->func, sizeof texts->func);
  copy_text(texts->datatype, p2p->datatype, sizeof texts->datatype);
}

static void fill_proxy(struct record *record, const struct proxy_op *op) {
  record->a = (uint64_t)(int64_t)op->pid;
  record->b = (uint64_t)(uint32_t)op->steps << 32 | (uint32_t)op->chunk;
  record->c = op->peer;
  record->d = op->channel | (op->is_send ? 256 : 0);
}

/* Of an unknown layout, keep only the identifier. */
static void fill_net(struct record *record, const struct net *net) {
  record->a = (uint64_t)net->id;
  if (!net->data) return;
  if (net->id == NET_IB) {
    const struct net_ib *ib = net->data;
    if (ib->type != NET_QP) return;
    record->b = ib->length, record->c = ib->device, record->d = ib->opcode;
  } else if (net->id == NET_SOCKET) {
    const struct net_socket *sock = net->data;
    if (sock->type != NET_SOCK) return;
    record->b = sock->length, record->c = sock->file, record->d = sock->op;
  }
}

static void fill(struct record *record, int type, const struct descriptor *event) {
  switch (type) {
    case EV_COLL:
    case EV_CE_COLL:
      fill_coll(record, &event->coll, type == EV_COLL);
      break;
    case EV_P2P:
      fill_p2p(record, &event->p2p);
      break;
    case EV_PROXY_OP:
      fill_proxy(record, &event->proxy_op);
      break;
    case EV_PROXY_STEP:
      record->c = event->step;
      break;
    case EV_KERNEL:
      record->a = event->kernel.timer;
      record->d = event->kernel.channel;
      break;
    case EV_NET:
      fill_net(record, &event->net);
      break;
    default:
      break;
  }
}

static int is_coll(int type) { return type == EV_COLL || type == EV_CE_COLL; }

static void *marked(uint64_t why, int type) { return (void *)(uintptr_t)(why << 48 | (uint64_t)type); }

/* Events from the thread that queues. They have a handle even without a record: NCCL 2.27 reports
 * no calls of a group without a handle, so that a pause would not count them. */
static int is_queued(int type) { return is_coll(type) || type == EV_P2P || type == EV_GROUP; }

/* Later events from other threads are recorded if their parent is. */
static int is_skipped(int type, const struct descriptor *event) {
  return is_queued(type) ? sampling_skips() : (uintptr_t)event->parent >> 48 == SKIPPED;
}

static int start(void *context, void **handle, struct descriptor *event, int version) {
  *handle = NULL;
  if (!context || !event || !atomic_load_explicit(&recording, memory_order_relaxed)) return 0;
  uint64_t bits = event->type64 & versions[version].type_bits;
  int type = bits ? __builtin_ctzll(bits) : EV_LAST + 1;
  /* With any event, NCCL also reports its API's calls, which were not requested. */
  if (type > EV_LAST || !(ALL & BIT(type))) return 0;
  uint32_t communicator = (uint32_t)(uintptr_t)context;
  struct mark mark;
  int told = NO_MARK;
  if (is_coll(type)) {
    struct queued queued = {event->coll.func, event->coll.datatype, event->coll.count,
                            event->coll.seq};
    told = sampling_call(communicator, pause_count(communicator, queued), queued, &mark);
  }
  if (told == NO_MARK && is_skipped(type, event)) {
    ring_count_skip();
    if (is_queued(type)) *handle = marked(SKIPPED, type);
    return 0;
  }
  struct ring *ring = ring_mine();
  struct record *record = ring_record(ring, START, type);
  if (!record) {
    uint64_t why = atomic_load_explicit(&ring_off, memory_order_relaxed) ? LEFT_OUT : DROPPED;
    if (is_queued(type)) *handle = marked(why, type);
    return 0;
  }
  record->handle = ring_handle(ring, type);
  record->parent = (uint64_t)(uintptr_t)event->parent;
  record->communicator = communicator;
  fill(record, type, event);
  uint64_t number = record->handle;
  *handle = (void *)(uintptr_t)number;
  ring_commit(ring);
  if (told != NO_MARK) sampling_put(ring, &mark, communicator, number);
  return 0;
}

static int later(void *handle, int what, int state, uint64_t value) {
  int type = (int)((uintptr_t)handle & 15);
  if (!handle || !atomic_load_explicit(&recording, memory_order_relaxed)) return 0;
  if ((uintptr_t)handle >> 48 == LEFT_OUT) return 0;
  if ((uintptr_t)handle >> 48 == SKIPPED) {
    ring_count_skip();
    return 0;
  }
  if ((uintptr_t)handle >> 48 == DROPPED) {
    ring_count_drop();
    return 0;
  }
  struct ring *ring = ring_mine();
  struct record *record = ring_record(ring, what, type);
  if (!record) return 0;
  record->handle = (uint64_t)(uintptr_t)handle;
  record->state = (uint8_t)state;
  record->a = value;
  ring_commit(ring);
  return 0;
}

static int stop(void *handle) {
  int type = (int)((uintptr_t)handle & 15);
  /* A kernel's stop follows its last state at once and adds nothing. */
  if (type == EV_KERNEL) return 0;
  later(handle, STOP, 0, 0);
  if (is_coll(type)) pause_point();
  return 0;
}

static int is_repeated(void *handle) {
  struct ring *ring = ring_mine();
  if (!ring) return 0;
  uint64_t *told = &ring->waiting[(uintptr_t)handle >> 4 & (WAITING - 1)];
  int again = *told == (uintptr_t)handle;
  *told = (uintptr_t)handle;
  return again;
}

static int state(void *handle, int code, uint64_t *args) {
  int type = (int)((uintptr_t)handle & 15);
  int has_value = type == EV_KERNEL ? code == STATE_KERNEL_STOP
                                    : type == EV_PROXY_STEP && (code == STATE_SEND_WAIT ||
                                                                code == STATE_RECV_FLUSH_WAIT);
  if (type == EV_PROXY_STEP && code == STATE_SEND_PEER_WAIT && is_repeated(handle)) return 0;
  return later(handle, STATE, code, has_value && args ? *args : 0);
}

static int start_4(void *c, void **h, struct descriptor *e) { return start(c, h, e, 4); }
static int start_5(void *c, void **h, struct descriptor *e) { return start(c, h, e, 5); }
static int start_6(void *c, void **h, struct descriptor *e) { return start(c, h, e, 6); }
static int start_7(void *c, void **h, struct descriptor *e) { return start(c, h, e, 7); }

static int open_one(void **context, int *mask, struct communicator given, const char *name,
                    int version) {
  const char *events = getenv("PACELINE_NCCL_EVENTS");
  copy_text(given.name, name, sizeof given.name);
  uint32_t number = writer_open(&given, version);
  *context = (void *)(uintptr_t)number;
  /* NCCL has one mask for all communicators; it is 0 only if nothing is recorded. */
  *mask = number ? versions[version].mask : 0;
  if (number && events && *events) *mask = (int)strtol(events, NULL, 0) & ALL;
  given.number = number;
  pause_opened(&given, (*mask & EVEN) == EVEN);
  return 0;
}

static int init_4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
                  int rank, logger log) {
  (void)log;
  struct communicator given = {.id = hash, .rank = rank, .ranks = ranks, .nodes = nodes};
  return open_one(context, mask, given, name, 4);
}

static int init_new(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
                    int rank, int version) {
  struct communicator given = {.id = id, .rank = rank, .ranks = ranks, .nodes = nodes};
  return open_one(context, mask, given, name, version);
}

static int init_5(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
                  int rank, logger log) {
  (void)log;
  return init_new(context, id, mask, name, nodes, ranks, rank, 5);
}

static int init_6(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
                  int rank, logger log) {
  (void)log;
  return init_new(context, id, mask, name, nodes, ranks, rank, 6);
}

static int init_7(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
                  int rank, logger log) {
  (void)log;
  return init_new(context, id, mask, name, nodes, ranks, rank, 7);
}

static int finalize(void *context) {
  if (context) {
    pause_closed((uint32_t)(uintptr_t)context);
    writer_close();
  }
  return 0;
}

/* NCCL looks up the newest name that it supports. */
#define SEEN __attribute__((visibility("default")))
SEEN struct profiler_v4 ncclProfiler_v4 = {"Paceline", init_4, start_4, stop, state, finalize};
SEEN struct profiler_v5 ncclProfiler_v5 = {"Paceline", init_5, start_5, stop, state, finalize};
SEEN struct profiler_v5 ncclProfiler_v6 = {"Paceline", init_6, start_6, stop, state, finalize};
/* In forks of NCCL, version 7 has further functions: all are NULL here. */
SEEN struct {
  struct profiler_v5 known;
  void *more[8];
} ncclProfiler_v7 = {{"Paceline", init_7, start_7, stop, state, finalize}, {NULL}};
