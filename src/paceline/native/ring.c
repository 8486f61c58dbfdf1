#include "ring.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

static struct ring rings[RINGS];
static atomic_uint_fast64_t dropped, left_out;
atomic_int ring_off;
static atomic_uint turn;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* initial-exec: the general model may allocate at a thread's first access. */
static _Thread_local struct ring *mine __attribute__((tls_model("initial-exec")));
static _Thread_local int refused __attribute__((tls_model("initial-exec")));

/* At a thread's end; what it calls after that has no ring. */
static void give_back(void *ring) {
  mine = NULL, refused = 1;
  atomic_store(&((struct ring *)ring)->owned, 0);
}

static void make_key(void) { pthread_key_create(&key, give_back); }

void ring_setup(void) { pthread_once(&once, make_key); }

struct ring *ring_mine(void) {
  if (mine || refused) return mine;
  /* In turn: a ring that was just given back may still be full. */
  unsigned first = atomic_fetch_add(&turn, 1);
  for (unsigned i = 0; i < RINGS; i++) {
    struct ring *ring = &rings[(first + i) % RINGS];
    int free_ring = 0;
    if (atomic_compare_exchange_strong(&ring->owned, &free_ring, 1)) {
      mine = ring;
      pthread_setspecific(key, mine);
      return mine;
    }
  }
  refused = 1;
  return NULL;
}

void copy_text(char *to, const char *from, size_t room) {
  for (size_t i = 0; from && i + 1 < room && from[i]; i++) to[i] = from[i];
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now); /* answered in user space, by the vDSO */
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static struct record *slot_of(struct ring *ring) {
  uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
  if (head - atomic_load_explicit(&ring->tail, memory_order_acquire) >= RING_RECORDS) {
    ring_count_drop();
    return NULL;
  }
  return &ring->records[head % RING_RECORDS];
}

struct record *ring_record(struct ring *ring, int what, int type) {
  if (atomic_load_explicit(&ring_off, memory_order_relaxed)) {
    atomic_fetch_add_explicit(&left_out, 1, memory_order_relaxed);
    return NULL;
  }
  struct record *record = ring ? slot_of(ring) : (ring_count_drop(), NULL);
  if (!record) return NULL;
  memset(record, 0, sizeof *record);
  record->time_ns = now_ns();
  record->what = (uint8_t)what;
  record->type = (uint16_t)type;
  return record;
}

void ring_commit(struct ring *ring) {
  uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
  atomic_store_explicit(&ring->head, head + 1, memory_order_release);
}

uint64_t ring_handle(struct ring *ring, int type) {
  uint64_t index = (uint64_t)(ring - rings) + 1;
  return index << 48 | (++ring->handles & 0xfffffffffffULL) << 4 | (uint64_t)type;
}

int ring_drain(int index, struct record *out, int most) {
  struct ring *ring = &rings[index];
  uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
  uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
  int n = 0;
  for (; tail < head && n < most; n++, tail++)
    memcpy(&out[n], &ring->records[tail % RING_RECORDS], sizeof *out);
  atomic_store_explicit(&ring->tail, tail, memory_order_release);
  return n;
}

void ring_count_drop(void) { atomic_fetch_add_explicit(&dropped, 1, memory_order_relaxed); }

uint64_t ring_left_out(void) { return atomic_load_explicit(&left_out, memory_order_relaxed); }

uint64_t ring_dropped(void) { return atomic_load_explicit(&dropped, memory_order_relaxed); }
