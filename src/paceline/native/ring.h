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

/* A record of the file: one unit. docs/nccl.md lists a, b, c and d of each type of event. */
struct record {
  int64_t time_ns;
  uint64_t handle, parent;
  uint32_t communicator;
  uint16_t type;
  uint8_t what, state;
  uint64_t a, b;
  int32_t c, d;
};
/* The unit after the start of a collective, send or recv. */
struct texts {
  char func[16], datatype[16], algo[16], proto[8];
};
_Static_assert(sizeof(struct record) == 56, "the reader expects this size");
_Static_assert(sizeof(struct texts) == sizeof(struct record), "each must be one unit");

struct segment {
  atomic_uint filled;             /* complete units; written by the producer */
  _Atomic(struct segment *) next; /* set once this segment is full */
  struct record units[SEGMENT_UNITS];
};

struct ring {
  atomic_int owned;
  struct segment *last; /* the producer's */
  unsigned units;       /* of the record being written */
  uint64_t handles, waiting[WAITING]; /* proxy steps whose wait for the peer is recorded */
  _Alignas(64) _Atomic(struct segment *) first;
  struct segment *reading; /* the writer's, as is `read` */
  unsigned read;
};

/* The thread's ring; NULL if all are in use. */
struct ring *ring_mine(void);
/* The next record, zeroed, with its time. NULL without room or ring: then it counts as dropped. */
struct record *ring_record(struct ring *ring, int what, int type);
/* Whether a unit of texts follows the record. */
int has_texts(const struct record *record);
struct texts *texts_of(struct record *record);
void copy_text(char *to, const char *from, size_t room);
void ring_commit(struct ring *ring);
/* A handle unique in this process. It is no address, so a stale handle is harmless. */
uint64_t ring_handle(struct ring *ring, int type);
/* Copies up to `most` records with their texts; returns their number. Only the writer calls it. */
int ring_drain(int index, struct record *records, struct texts *texts, int *n_texts, int most);
/* `paceline record off`: nothing is recorded or counted as dropped. */
extern atomic_int ring_off;
/* Records not written while recording was off. */
uint64_t ring_left_out(void);
/* Records of steps that sampling leaves out. */
void ring_count_skip(void);
uint64_t ring_skipped(void);
void ring_count_drop(void);
uint64_t ring_dropped(void);
/* Creates the key whose destructor returns a thread's ring, and fills the pool. Call it once. */
void ring_setup(void);

#endif
