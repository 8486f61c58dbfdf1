/* A queue of records per thread: one producer, and one consumer, the writer. All queues take their
 * segments out of one pool, so that a busy thread has the room that others do not need. */
#ifndef PACELINE_RING_H
#define PACELINE_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* 7.4 MB, of which only touched pages cost memory: 130,816 units. */
enum { RINGS = 128, SEGMENTS = 448, SEGMENT_UNITS = 292 };

enum { WAITING = 64 };

enum { START, STOP, STATE, STEP };

/* As it lies in the file; docs/nccl.md says what a, b, c and d are for each type of event. One unit. */
struct record {
  int64_t time_ns;
  uint64_t handle, parent;
  uint32_t communicator;
  uint16_t type;
  uint8_t what, state;
  uint64_t a, b;
  int32_t c, d;
};
/* What a start of a collective, send or recv has besides: the unit behind it. */
struct texts {
  char func[16], datatype[16], algo[16], proto[8];
};
_Static_assert(sizeof(struct record) == 56, "the reader knows this size");
_Static_assert(sizeof(struct texts) == sizeof(struct record), "each is a unit");

struct segment {
  atomic_uint filled;             /* units that are whole; the producer's */
  _Atomic(struct segment *) next; /* set when this one gets no more */
  struct record units[SEGMENT_UNITS];
};

struct ring {
  atomic_int owned;
  struct segment *last; /* the producer's */
  unsigned units;       /* of the record that is being made */
  uint64_t handles, waiting[WAITING]; /* steps whose wait for the peer was told */
  _Alignas(64) _Atomic(struct segment *) first;
  struct segment *reading; /* the writer's, as is `read` */
  unsigned read;
};

/* The thread's ring; NULL where all are taken. */
struct ring *ring_mine(void);
/* The next record, cleared, with its time; NULL, and counted, where there is no room or no ring. */
struct record *ring_record(struct ring *ring, int what, int type);
/* Whether a unit of texts lies behind a record. */
int has_texts(const struct record *record);
struct texts *texts_of(struct record *record);
void copy_text(char *to, const char *from, size_t room);
void ring_commit(struct ring *ring);
/* A handle that no other event of this process has: never an address, so a stale one is harmless. */
uint64_t ring_handle(struct ring *ring, int type);
/* Copies at most `most` records and their texts; the writer's only. Returns how many records. */
int ring_drain(int index, struct record *records, struct texts *texts, int *n_texts, int most);
/* `paceline record off`: nothing is recorded, and not counted as dropped. */
extern atomic_int ring_off;
/* Records that were not made while it was off. */
uint64_t ring_left_out(void);
/* Those of steps that are left out. */
void ring_count_skip(void);
uint64_t ring_skipped(void);
void ring_count_drop(void);
uint64_t ring_dropped(void);
/* Makes the key by which threads give their rings back, and fills the pool; once. */
void ring_setup(void);

#endif
