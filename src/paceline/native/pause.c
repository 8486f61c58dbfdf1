#define _GNU_SOURCE
#include "pause.h"

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
#include "ring.h"
#include "sampling.h"

/* The same sizes as in pause/records.py. */
enum { CONTROL_BYTES = 192, SLOT_BYTES = 2048, COUNTED = 1024, TOLD = 8, ENDED_IDS = 8, GROUPED = 8 };
enum { IN_USE = 64 }; /* collectives */
enum { IDLE_MS = 500, ACTIVE_MS = 50, BEAT_MS = 500, SILENT_MOST_MS = 30000 };

enum state { IDLE, PUBLISHED, ARMED, ARRIVED, MISSED, LEFT, REFUSED };
static const char *const state_names[] = {"idle",   "published", "armed",  "arrived",
                                          "missed", "left",      "refused"};

struct counted {
  atomic_uint_fast64_t count, boundary; /* collectives queued; at the end of the last group */
  _Atomic(const char *) func, datatype; /* of the last collective */
  atomic_uint_fast64_t elements, seq;
  struct communicator is;
  int open;
  atomic_int even;
};

struct order {
  unsigned long long id, communicator, number;
  char phase[8];
  unsigned beat, hold_ms, arrive_ms, silent_ms;
};

static atomic_int asked; /* the only variable that NCCL's threads read without a pause */
static atomic_int forked; /* in a child: the lock may belong to a thread of the parent */
static struct counted table[COUNTED];
/* Communicators of the group that this thread is queueing. */
static _Thread_local struct {
  uint32_t n, numbers[GROUPED];
} grouped __attribute__((tls_model("initial-exec")));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all variables below */
static pthread_cond_t changed;
static struct {
  enum state state;
  const char *reason;
  unsigned long long id, ended[ENDED_IDS];
  unsigned n_ended;
  struct order order;
  struct counted *where;
  int held;
  int64_t beat_at_ms, stood_at_ms, stopped_ms;
  uint64_t number;
  char signature[96];
} me = {.reason = ""};
static unsigned generation;
static char host[65];
static int rank, world;
static int64_t begun_ns, allowed_ms;
static const char *timeout_from;

/* Per helper thread: an older one may still hang in a call. */
struct helper {
  unsigned generation;
  int64_t idle_ms;
  char control[3200], slot[3300], wish[3200];
};

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Changes the state and wakes waiting threads. */
static void to(enum state state, const char *reason) {
  if (me.state == ARRIVED) me.stopped_ms = now_ms() - me.stood_at_ms;
  if (state == ARRIVED) me.stood_at_ms = now_ms();
  me.state = state;
  me.reason = reason;
  if (state >= MISSED) {
    atomic_store_explicit(&asked, 0, memory_order_relaxed);
    me.ended[me.n_ended++ % ENDED_IDS] = me.id;
  }
  pthread_cond_broadcast(&changed);
}

static int active(void) { return me.state == PUBLISHED || me.state == ARMED || me.state == ARRIVED; }

/* On NCCL's threads. */

uint64_t pause_count(uint32_t communicator, struct queued queued) {
  if (communicator < 1 || communicator > COUNTED) return UINT64_MAX;
  struct counted *where = &table[communicator - 1];
  uint64_t n = atomic_fetch_add_explicit(&where->count, 1, memory_order_relaxed);
  atomic_store_explicit(&where->func, queued.func, memory_order_relaxed);
  atomic_store_explicit(&where->datatype, queued.datatype, memory_order_relaxed);
  atomic_store_explicit(&where->elements, queued.count, memory_order_relaxed);
  atomic_store_explicit(&where->seq, queued.seq, memory_order_relaxed);
  for (uint32_t i = 0; i < grouped.n; i++)
    if (grouped.numbers[i] == communicator) return n;
  if (grouped.n < GROUPED)
    grouped.numbers[grouped.n++] = communicator;
  else
    atomic_store_explicit(&where->even, 0, memory_order_relaxed); /* its end would be missed */
  return n;
}

static void wait_until(int64_t at_ms) {
  struct timespec at = {.tv_sec = at_ms / 1000, .tv_nsec = at_ms % 1000 * 1000000};
  pthread_cond_timedwait(&changed, &lock, &at);
}

/* Waits for the order to go on, the deadline, or too long a silence of the requester. */
static void stand(void) {
  while (me.state == ARRIVED) {
    int64_t now = now_ms(), most = me.order.arrive_ms;
    if (me.held) most += me.order.hold_ms;
    if (most > allowed_ms) most = allowed_ms;
    int64_t silent_at = me.beat_at_ms + me.order.silent_ms, end = me.stood_at_ms + most;
    if (now >= end)
      to(LEFT, "deadline");
    else if (now >= silent_at)
      to(LEFT, "asker silent");
    else
      wait_until(end < silent_at ? end : silent_at);
  }
}

static void look(struct counted *where) {
  pthread_mutex_lock(&lock);
  uint64_t before = atomic_load_explicit(&where->boundary, memory_order_relaxed);
  uint64_t after = atomic_load_explicit(&where->count, memory_order_relaxed);
  atomic_store_explicit(&where->boundary, after, memory_order_relaxed);
  if (me.state == ARMED && me.where == where) {
    if (before >= me.order.number) {
      to(MISSED, "passed the number");
    } else if (after >= me.order.number) {
      me.number = after;
      const char *func = atomic_load(&where->func), *datatype = atomic_load(&where->datatype);
      snprintf(me.signature, sizeof me.signature, "%.31s %llu %.31s %llu", func ? func : "",
               (unsigned long long)atomic_load(&where->elements), datatype ? datatype : "",
               (unsigned long long)atomic_load(&where->seq));
      to(ARRIVED, "");
      stand();
    }
  }
  pthread_mutex_unlock(&lock);
}

void pause_point(void) {
  for (uint32_t i = 0; i < grouped.n; i++) {
    struct counted *where = &table[grouped.numbers[i] - 1];
    if (atomic_load_explicit(&asked, memory_order_relaxed)) {
      look(where);
      continue;
    }
    uint64_t count = atomic_load_explicit(&where->count, memory_order_relaxed);
    atomic_store_explicit(&where->boundary, count, memory_order_relaxed);
  }
  grouped.n = 0;
}

/* On the helper's thread. O_NONBLOCK: a pipe, say, must not block it. */

static ssize_t read_start(const char *path, char *text, size_t room) {
  int file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (file < 0) return -1;
  ssize_t n = pread(file, text, room, 0);
  close(file);
  return n;
}

static int read_order(const char *path, struct order *order) {
  char text[CONTROL_BYTES + 1], magic[16] = "";
  unsigned crc;
  int version, length = 0;
  if (read_start(path, text, CONTROL_BYTES) != CONTROL_BYTES) return 0;
  text[CONTROL_BYTES] = 0;
  memset(order, 0, sizeof *order);
  if (sscanf(text, "%15s %d %16llx %7s %u %u %u %u %16llx %llu%n %8x", magic, &version, &order->id,
             order->phase, &order->beat, &order->hold_ms, &order->arrive_ms, &order->silent_ms,
             &order->communicator, &order->number, &length, &crc) != 11)
    return 0;
  return !strcmp(magic, "paceline-pause") && version == 1 && order->id &&
         crc == crc_more(0, text, (size_t)length);
}

static int can_stop(const struct counted *one) {
  return one->open && atomic_load_explicit(&one->even, memory_order_relaxed);
}

static const char *unable(const struct order *order) {
  int any = 0, able = 0;
  if (!atomic_load(&recording)) return "the plugin is off";
  if (order->silent_ms < 1 || order->silent_ms > SILENT_MOST_MS) return "silent out of range";
  if ((int64_t)order->hold_ms + order->arrive_ms > allowed_ms) return "longer than allowed";
  for (int i = 0; i < COUNTED; i++) {
    any |= table[i].open, able |= can_stop(&table[i]);
    for (int k = 0; k < i && can_stop(&table[i]); k++)
      if (can_stop(&table[k]) && table[k].is.id == table[i].is.id &&
          table[k].is.rank != table[i].is.rank)
        return "several ranks in one process";
  }
  return any && !able ? "its counts may differ from other ranks' (events 1 and 6 are needed)" : NULL;
}

static int is_ended(unsigned long long id) {
  for (int i = 0; i < ENDED_IDS; i++)
    if (me.ended[i] == id) return 1;
  return 0;
}

static void begin(const struct order *order) {
  me.id = order->id;
  me.order = *order;
  me.held = 0, me.number = 0, me.stopped_ms = 0, me.where = NULL, me.signature[0] = 0;
  me.beat_at_ms = now_ms();
  const char *why = unable(order);
  if (why) {
    to(REFUSED, why);
    return;
  }
  to(PUBLISHED, "");
  atomic_store_explicit(&asked, 1, memory_order_relaxed);
}

static void arm(const struct order *order) {
  for (int i = 0; i < COUNTED && !me.where; i++)
    if (can_stop(&table[i]) && table[i].is.id == order->communicator) me.where = &table[i];
  me.order = *order;
  if (!me.where)
    to(REFUSED, "no such communicator: a pause of another job");
  else if (atomic_load_explicit(&me.where->boundary, memory_order_relaxed) >= order->number)
    to(MISSED, "passed the number");
  else
    to(ARMED, "");
}

static void react(const struct order *order) {
  int64_t now = now_ms();
  if (order && order->id != me.id) {
    if (active()) to(LEFT, "another pause was asked");
    if (!strcmp(order->phase, "ask") && !is_ended(order->id)) begin(order);
    return;
  }
  if (!active()) return;
  if (order) {
    if (order->beat != me.order.beat) me.beat_at_ms = now;
    me.order.beat = order->beat;
    if (!strcmp(order->phase, "stop") && me.state == PUBLISHED) arm(order);
    if (!strcmp(order->phase, "held") && me.state == ARRIVED && !me.held) {
      me.held = 1;
      pthread_cond_broadcast(&changed);
    }
    if (!strcmp(order->phase, "go")) to(LEFT, "go");
    if (!strcmp(order->phase, "cancel")) to(LEFT, "cancel");
  }
  if (active() && now - me.beat_at_ms >= me.order.silent_ms) to(LEFT, "asker silent");
}

/* The communicators with the most ranks; of these, those with the most calls first. */
static int print_communicators(char *text, size_t room) {
  int told[TOLD], n = 0, length = 0;
  for (; n < TOLD; n++) {
    int best = -1;
    for (int i = 0; i < COUNTED; i++) {
      int known = 0;
      for (int k = 0; k < n; k++) known |= told[k] == i;
      if (known || !can_stop(&table[i])) continue;
      int more = best < 0 ? 1 : table[i].is.ranks - table[best].is.ranks;
      if (more > 0 || (more == 0 && atomic_load(&table[i].count) > atomic_load(&table[best].count)))
        best = i;
    }
    if (best < 0) break;
    told[n] = best;
    length += snprintf(text + length, room - (size_t)length, "%s[\"%016llx\",%d,%d,%llu]",
                       n ? "," : "", (unsigned long long)table[best].is.id, table[best].is.rank,
                       table[best].is.ranks, (unsigned long long)atomic_load(&table[best].boundary));
  }
  return length;
}

static void print_slot(char *slot, unsigned beat) {
  char named[600] = "", text[SLOT_BYTES];
  print_communicators(named, sizeof named);
  int length = snprintf(
      text, sizeof text,
      "{\"what\":\"paceline-pause\",\"version\":1,\"beat\":%u,\"begun_ns\":%lld,\"host\":\"%s\","
      "\"pid\":%d,\"rank\":%d,\"world\":%d,\"allowed_ms\":%lld,\"timeout_from\":\"%s\",\"id\":\"%016llx\","
      "\"state\":\"%s\",\"reason\":\"%s\",\"number\":%llu,\"signature\":\"%s\","
      "\"stopped_ms\":%lld,\"communicators\":[%s]}",
      beat, (long long)begun_ns, host, (int)getpid(),
      rank, world, (long long)allowed_ms, timeout_from,
      me.id, state_names[me.state], me.reason, (unsigned long long)me.number, me.signature,
      (long long)me.stopped_ms, named);
  memset(slot, ' ', SLOT_BYTES);
  memcpy(slot, text, (size_t)length);
  snprintf(text, sizeof text, "%08x\n", crc_more(0, slot, SLOT_BYTES - 9));
  memcpy(slot + SLOT_BYTES - 9, text, 9);
}

static void write_slot(const char *path, const char *slot) {
  int file = open(path, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return;
  ssize_t done = pwrite(file, slot, SLOT_BYTES, 0);
  (void)done; /* the checksum reveals a partial write */
  close(file);
}

/* `paceline record off`, as record/recorder.py reads it; an unreadable file changes nothing. */
static void obey(const char *path) {
  char text[1024], *value;
  ssize_t n = read_start(path, text, sizeof text - 1);
  if (n <= 0) return;
  text[n] = 0;
  if (!(value = strstr(text, "\"on\":"))) return;
  value += strlen("\"on\":");
  value += strspn(value, " ");
  if (!strncmp(value, "false", 5)) atomic_store(&ring_off, 1);
  if (!strncmp(value, "true", 4)) atomic_store(&ring_off, 0);
  const char *every = strstr(text, "\"every\":");
  sampling_ask(every ? atoi(every + strlen("\"every\":")) : 0);
}

/* The first communicator in use among those with the most ranks; 0: none. */
static uint32_t leader(void) {
  int best = -1;
  for (int i = 0; i < COUNTED; i++)
    if (can_stop(&table[i]) && atomic_load(&table[i].count) >= IN_USE &&
        (best < 0 || table[i].is.ranks > table[best].is.ranks))
      best = i;
  return (uint32_t)(best + 1);
}

static void nap(int64_t ms) {
  struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* Only this thread touches the files: if they hang, no other thread does. */
static void *help(void *given) {
  struct helper *mine = given;
  unsigned beat = 0;
  enum state told = REFUSED;
  unsigned long long told_id = 0;
  int64_t written_ms = 0;
  char slot[SLOT_BYTES];
  for (;;) {
    struct order order;
    int whole = read_order(mine->control, &order);
    pthread_mutex_lock(&lock);
    int over = generation != mine->generation, busy = 0, write = 0;
    uint32_t first = leader();
    if (!over) {
      react(whole ? &order : NULL);
      busy = active();
      write = told != me.state || told_id != me.id || me.state == PUBLISHED ||
              (busy && now_ms() - written_ms >= BEAT_MS);
      if (write) print_slot(slot, ++beat), told = me.state, told_id = me.id;
    }
    pthread_mutex_unlock(&lock);
    if (over) break;
    if (write) write_slot(mine->slot, slot), written_ms = now_ms();
    if (!busy) obey(mine->wish);
    sampling_learn(first);
    nap(busy && mine->idle_ms > ACTIVE_MS ? ACTIVE_MS : mine->idle_ms);
  }
  free(mine);
  return NULL;
}

/* In init and finalize. */

static int64_t seconds_of(const char *name, int64_t otherwise, int64_t factor) {
  const char *text = getenv(name);
  int64_t value = text && *text ? atoll(text) : 0;
  return value > 0 ? value * factor : otherwise;
}

/* A third of the smallest timeout that the environment sets: docs/pause.md lists the sources. */
static void know_timeouts(void) {
  const char *monitoring = getenv("TORCH_NCCL_ENABLE_MONITORING");
  int64_t given = seconds_of("PACELINE_NCCL_TIMEOUT_S", 0, 1), smallest = given ? given : 600;
  int64_t deepspeed = seconds_of("DEEPSPEED_TIMEOUT", 0, 60);
  int64_t heartbeat = seconds_of("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 480, 1);
  timeout_from = given ? "PACELINE_NCCL_TIMEOUT_S" : "PyTorch's default of 10 minutes";
  if (deepspeed && deepspeed < smallest) smallest = deepspeed, timeout_from = "DEEPSPEED_TIMEOUT";
  if (!(monitoring && !strcmp(monitoring, "0")) && heartbeat < smallest)
    smallest = heartbeat, timeout_from = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC";
  allowed_ms = smallest * 1000 / 3;
}

/* Create the control file at the start: network file systems show new names late. */
static int make_files(const char *folder, struct helper *helper) {
  int file, n = 0;
  snprintf(helper->wish, sizeof helper->wish, "%s/control.json", folder);
  snprintf(helper->control, sizeof helper->control, "%s/pause", folder);
  mkdir(helper->control, 0777);
  snprintf(helper->control, sizeof helper->control, "%s/pause/control", folder);
  file = open(helper->control, O_RDONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
  if (file < 0) return -1;
  close(file);
  do {
    snprintf(helper->slot, sizeof helper->slot, "%s/pause/%s-%d-%d.slot", folder, host,
             (int)getpid(), n++);
    file = open(helper->slot, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  } while (file < 0 && errno == EEXIST && n < 1000);
  if (file < 0) return -1;
  close(file);
  return 0;
}

static void start_helper(const char *folder) {
  const char *poll = getenv("PACELINE_NCCL_POLL_MS");
  struct helper *helper = malloc(sizeof *helper);
  pthread_attr_t detached;
  pthread_t thread;
  if (!helper) return;
  helper->generation = ++generation;
  helper->idle_ms = poll && atoi(poll) > 0 ? atoi(poll) : IDLE_MS;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  if (make_files(folder, helper) || pthread_create(&thread, &detached, help, helper)) free(helper);
  pthread_attr_destroy(&detached);
}

static void setup_once(void) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

void pause_begin(const char *folder, const char *host_name, int64_t at_ns) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, setup_once);
  pthread_mutex_lock(&lock);
  snprintf(host, sizeof host, "%s", host_name);
  know_timeouts();
  sampling_ask(0);
  const char *given = getenv("RANK");
  rank = given && *given >= '0' && *given <= '9' ? atoi(given) : -1;
  given = getenv("WORLD_SIZE");
  world = given && *given >= '0' && *given <= '9' ? atoi(given) : 0;
  begun_ns = at_ns;
  me.state = IDLE, me.reason = "";
  start_helper(folder);
  pthread_mutex_unlock(&lock);
}

void pause_end(void) {
  if (atomic_load(&forked)) return;
  pthread_mutex_lock(&lock);
  generation++;
  if (active()) to(LEFT, "the process ends");
  pthread_mutex_unlock(&lock);
}

void pause_opened(const struct communicator *given, int even) {
  if (given->number < 1 || given->number > COUNTED || atomic_load(&forked)) return;
  pthread_mutex_lock(&lock);
  struct counted *one = &table[given->number - 1];
  one->is = *given, one->open = 1;
  atomic_store(&one->even, even);
  pthread_mutex_unlock(&lock);
}

void pause_closed(uint32_t number) {
  if (number < 1 || number > COUNTED || atomic_load(&forked)) return;
  pthread_mutex_lock(&lock);
  table[number - 1].open = 0;
  if (active() && me.where == &table[number - 1]) to(LEFT, "the communicator was destroyed");
  pthread_mutex_unlock(&lock);
}

void pause_forked(void) {
  atomic_store(&asked, 0);
  atomic_store(&forked, 1);
}
