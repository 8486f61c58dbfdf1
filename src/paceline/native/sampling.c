#include "sampling.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "nccl_abi.h"

/* The last calls of the leader, the longest period, and how often it must repeat. */
enum { HISTORY = 8192, MOST = 4096, REPEATS = 4, LONGEST = MOST / REPEATS, FEWEST = 64, WIDER = 4 };

static atomic_int every = 1; /* requested */
static atomic_int skips;
static atomic_uint leader;
static atomic_uint_fast64_t counted, from; /* calls of the leader; the first call in the history */
static atomic_uint history[HISTORY], pattern[LONGEST];
static atomic_uint period; /* 0: unknown; released after pattern and phase */
static atomic_uint phase, kept; /* phase in the period; calls that matched the pattern */
static atomic_int broke;

/* On NCCL's threads. Atomics are relaxed, except `period` and `counted`, which publish others. */

static unsigned hash_of(struct queued queued) {
  uint32_t hash = 0x811c9dc5u; /* FNV-1a of the texts, so that all ranks agree */
  const char *texts[] = {queued.func, queued.datatype};
  for (int i = 0; i < 2; i++)
    for (const char *c = texts[i]; c && *c; c++) hash = (hash ^ (unsigned char)*c) * 0x01000193u;
  return (hash ^ (uint32_t)queued.count ^ (uint32_t)(queued.count >> 32)) * 0x9e3779b1u;
}

static void forget(void) {
  atomic_store_explicit(&skips, 0, memory_order_relaxed);
  atomic_store_explicit(&period, 0, memory_order_release);
}

int sampling_skips(void) { return atomic_load_explicit(&skips, memory_order_relaxed); }

static int steps_end(struct mark *mark, uint64_t step, uint64_t place, int calls) {
  forget();
  *mark = (struct mark){step, place, calls, 0};
  return STEPS_END;
}

int sampling_call(uint32_t communicator, uint64_t n, struct queued queued, struct mark *mark) {
  if (communicator != atomic_load_explicit(&leader, memory_order_relaxed)) return NO_MARK;
  int asked = atomic_load_explicit(&every, memory_order_relaxed);
  unsigned calls = atomic_load_explicit(&period, memory_order_acquire);
  if (asked < 2 && !calls) return NO_MARK;
  unsigned hash = hash_of(queued);
  atomic_store_explicit(&history[n % HISTORY], hash, memory_order_relaxed);
  atomic_store_explicit(&counted, n + 1, memory_order_release);
  uint64_t first = atomic_load_explicit(&phase, memory_order_relaxed);
  if (!calls || n < first) return NO_MARK;
  uint64_t at = (n - first) % calls, step = (n - first) / calls;
  if (atomic_load_explicit(&pattern[at], memory_order_relaxed) != hash) {
    atomic_store_explicit(&broke, 1, memory_order_relaxed);
    return steps_end(mark, step, at, (int)calls);
  }
  atomic_fetch_add_explicit(&kept, 1, memory_order_relaxed);
  if (at == 0 && asked < 2) return steps_end(mark, step, at, (int)calls);
  /* Begins at the last call before the step, so that the computation between them is known. */
  int before = at == calls - 1 && (step + 1) % (unsigned)asked == 0;
  if (at == 0) atomic_store_explicit(&skips, step % (unsigned)asked && !before, memory_order_relaxed);
  else if (before) atomic_store_explicit(&skips, 0, memory_order_relaxed);
  if (at) return NO_MARK;
  *mark = (struct mark){step, 0, (int)calls, asked};
  return STEP_BEGINS;
}

void sampling_put(struct ring *ring, const struct mark *mark, uint32_t communicator, uint64_t handle) {
  struct record *record = ring_record(ring, STEP, EV_COLL);
  if (!record) return;
  record->handle = handle;
  record->communicator = communicator;
  record->a = mark->step;
  record->b = mark->place;
  record->c = mark->calls, record->d = mark->every;
  ring_commit(ring);
}

/* On the helper's thread. */

void sampling_ask(int n) {
  const char *text = getenv("PACELINE_NCCL_EVERY");
  if (n < 1) n = text ? atoi(text) : 1;
  atomic_store_explicit(&every, n < 1 ? 1 : n, memory_order_relaxed);
}

/* The smallest distance at which all calls repeat; 0: none. */
static unsigned period_of(const unsigned *calls, unsigned n) {
  for (unsigned lag = 1; lag <= n / REPEATS; lag++) {
    unsigned i = lag;
    while (i < n && calls[i] == calls[i - lag]) i++;
    if (i == n) return lag;
  }
  return 0;
}

/* Start of the least rotation: all ranks find the same call, whenever they look. */
static unsigned least_rotation(const unsigned *calls, unsigned n) {
  unsigned best = 0, other = 1, same = 0;
  while (best < n && other < n && same < n) {
    unsigned a = calls[(best + same) % n], b = calls[(other + same) % n];
    if (a == b) {
      same++;
      continue;
    }
    if (a > b) best += same + 1;
    else other += same + 1;
    if (best == other) other++;
    same = 0;
  }
  return best < other ? best : other;
}

static void lock_on(const unsigned *calls, uint64_t first, unsigned n) {
  unsigned start = least_rotation(calls, n);
  for (unsigned i = 0; i < n; i++)
    atomic_store_explicit(&pattern[i], calls[(start + i) % n], memory_order_relaxed);
  atomic_store_explicit(&phase, (unsigned)((first + start) % n), memory_order_relaxed);
  atomic_store_explicit(&kept, 0, memory_order_relaxed);
  atomic_store_explicit(&period, n, memory_order_release);
}

void sampling_learn(uint32_t given) {
  static unsigned last[MOST], width = FEWEST;
  /* A call during the end of sampling may have skipped once more. */
  if (!atomic_load(&period)) atomic_store_explicit(&skips, 0, memory_order_relaxed);
  if (given != atomic_load_explicit(&leader, memory_order_relaxed)) {
    forget();
    atomic_store_explicit(&counted, 0, memory_order_relaxed);
    atomic_store_explicit(&from, UINT64_MAX, memory_order_relaxed);
    atomic_store_explicit(&leader, given, memory_order_relaxed);
    width = FEWEST;
    return;
  }
  if (!given || atomic_load(&period)) return;
  if (atomic_load_explicit(&every, memory_order_relaxed) < 2) {
    atomic_store_explicit(&counted, 0, memory_order_relaxed);
    atomic_store_explicit(&from, UINT64_MAX, memory_order_relaxed);
    return;
  }
  uint64_t end = atomic_load_explicit(&counted, memory_order_acquire);
  if (!end) return;
  uint64_t begun = atomic_load_explicit(&from, memory_order_relaxed);
  if (begun == UINT64_MAX || end < begun) {
    atomic_store_explicit(&from, end, memory_order_relaxed); /* earlier calls may be missing */
    return;
  }
  /* A short-lived period came from equal layers within a step: require more calls. */
  if (atomic_exchange(&broke, 0) && atomic_load(&kept) < width && width < MOST) width *= WIDER;
  for (unsigned n = width; n <= MOST && end - begun >= n; n *= WIDER) {
    for (unsigned i = 0; i < n; i++)
      last[i] = atomic_load_explicit(&history[(end - n + i) % HISTORY], memory_order_relaxed);
    if (atomic_load_explicit(&counted, memory_order_acquire) - end > HISTORY - MOST) return;
    unsigned calls = period_of(last, n);
    if (calls) {
      lock_on(last, end - n, calls);
      return;
    }
  }
}
