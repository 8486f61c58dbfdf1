#define _POSIX_C_SOURCE 200809L
#include "ring.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "nccl_abi.h"

enum { WORD = 64, WORDS = SEGMENTS / WORD };
_Static_assert(SEGMENTS % WORD == 0, "the pool has whole words");

static struct ring rings[RINGS];
static struct segment segments[SEGMENTS];
static atomic_uint_fast64_t pool[WORDS]; /* one bit per segment; 1: free */
static atomic_uint_fast64_t dropped, left_out, skipped;
atomic_int ring_off;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* initial-exec: the general model may allocate at a thread's first access. */
static _Thread_local struct ring *mine __attribute__((tls_model("initial-exec")));
static _Thread_local int refused __attribute__((tls_model("initial-exec")));

/* At a thread's end; its later calls have no ring. */
static void give_back(void *ring) {
  mine = NULL, refused = 1;
  atomic_store(&((struct ring *)ring)->owned, 0);
}

static void setup(void) {
  pthread_key_create(&key, give_back);
  for (int i = 0; i < WORDS; i++) atomic_store(&pool[i], ~UINT64_C(0));
}

void ring_setup(void) { pthread_once(&once, setup); }

struct ring *ring_mine(void) {
  if (mine || refused) return mine;
  for (unsigned i = 0; i < RINGS; i++) {
    int free_ring = 0;
    if (atomic_compare_exchange_strong(&rings[i].owned, &free_ring, 1)) {
      mine = &rings[i];
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
  clock_gettime(CLOCK_REALTIME, &now); /* in user space (vDSO) */
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* The lowest free segment, so that memory already touched is reused. */
static struct segment *take(void) {
  for (int i = 0; i < WORDS; i++) {
    uint64_t word = atomic_load_explicit(&pool[i], memory_order_relaxed);
    while (word)
      if (atomic_compare_exchange_weak(&pool[i], &word, word & (word - 1)))
        return &segments[i * WORD + __builtin_ctzll(word)];
  }
  return NULL;
}

static void put_back(struct segment *segment) {
  size_t index = (size_t)(segment - segments);
  atomic_fetch_or(&pool[index / WORD], UINT64_C(1) << index % WORD);
}

static struct record *room_for(struct ring *ring, unsigned units) {
  struct segment *last = ring->last;
  unsigned filled = last ? atomic_load_explicit(&last->filled, memory_order_relaxed) : 0;
  if (last && filled + units <= SEGMENT_UNITS) return &last->units[filled];
  struct segment *fresh = take();
  if (!fresh) return NULL;
  atomic_store_explicit(&fresh->filled, 0, memory_order_relaxed);
  atomic_store_explicit(&fresh->next, NULL, memory_order_relaxed);
  atomic_store_explicit(last ? &last->next : &ring->first, fresh, memory_order_release);
  ring->last = fresh;
  return fresh->units;
}

static int is_texted(int what, int type) {
  return what == START && (type == EV_COLL || type == EV_P2P || type == EV_CE_COLL);
}

int has_texts(const struct record *record) { return is_texted(record->what, record->type); }

struct texts *texts_of(struct record *record) { return (struct texts *)(record + 1); }

struct record *ring_record(struct ring *ring, int what, int type) {
  if (atomic_load_explicit(&ring_off, memory_order_relaxed)) {
    atomic_fetch_add_explicit(&left_out, 1, memory_order_relaxed);
    return NULL;
  }
  unsigned units = is_texted(what, type) ? 2 : 1;
  struct record *record = ring ? room_for(ring, units) : NULL;
  if (!record) {
    ring_count_drop();
    return NULL;
  }
  ring->units = units;
  memset(record, 0, units * sizeof *record);
  record->time_ns = now_ns();
  record->what = (uint8_t)what;
  record->type = (uint16_t)type;
  return record;
}

void ring_commit(struct ring *ring) {
  unsigned filled = atomic_load_explicit(&ring->last->filled, memory_order_relaxed);
  atomic_store_explicit(&ring->last->filled, filled + ring->units, memory_order_release);
}

uint64_t ring_handle(struct ring *ring, int type) {
  uint64_t index = (uint64_t)(ring - rings) + 1;
  return index << 48 | (++ring->handles & UINT64_C(0xfffffffffff)) << 4 | (uint64_t)type;
}

/* Whether a unit can be read; returns a segment to the pool after its last unit. */
static int is_ready(struct ring *ring) {
  if (!ring->reading) ring->reading = atomic_load_explicit(&ring->first, memory_order_acquire);
  while (ring->reading) {
    /* Read `next` first: once it is set, the count is final. */
    struct segment *next = atomic_load_explicit(&ring->reading->next, memory_order_acquire);
    if (ring->read < atomic_load_explicit(&ring->reading->filled, memory_order_acquire)) return 1;
    if (!next) return 0;
    put_back(ring->reading);
    ring->reading = next, ring->read = 0;
  }
  return 0;
}

int ring_drain(int index, struct record *records, struct texts *texts, int *n_texts, int most) {
  struct ring *ring = &rings[index];
  int n = 0;
  for (*n_texts = 0; n < most && is_ready(ring); n++) {
    struct record *unit = &ring->reading->units[ring->read++];
    records[n] = *unit;
    if (!has_texts(unit)) continue;
    memcpy(&texts[(*n_texts)++], unit + 1, sizeof *texts);
    ring->read++;
  }
  return n;
}

void ring_count_drop(void) { atomic_fetch_add_explicit(&dropped, 1, memory_order_relaxed); }

void ring_count_skip(void) { atomic_fetch_add_explicit(&skipped, 1, memory_order_relaxed); }

uint64_t ring_skipped(void) { return atomic_load_explicit(&skipped, memory_order_relaxed); }

uint64_t ring_left_out(void) { return atomic_load_explicit(&left_out, memory_order_relaxed); }

uint64_t ring_dropped(void) { return atomic_load_explicit(&dropped, memory_order_relaxed); }
