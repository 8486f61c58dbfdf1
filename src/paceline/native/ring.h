/* A ring of records per thread: one producer, and one consumer, the writer. */
#ifndef PACELINE_RING_H
#define PACELINE_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { RINGS = 32, RING_RECORDS = 2048 }; /* 7.3 MB, of which only touched pages cost memory */

enum { WAITING = 64 };

enum { START, STOP, STATE };

/* As it lies in the file; docs/nccl.md says what a, b, c and d are for each type of event. */
struct record {
  int64_t time_ns;
  uint64_t handle, parent;
  uint32_t communicator;
  uint16_t type;
  uint8_t what, state;
  uint64_t a, b;
  int32_t c, d;
  char func[16], datatype[16], algo[16], proto[8];
};
_Static_assert(sizeof(struct record) == 112, "the reader knows this size");

struct ring {
  atomic_int owned;
  _Alignas(64) atomic_uint_fast64_t head; /* written by the producer */
  uint64_t handles, waiting[WAITING]; /* steps whose wait for the peer was told */
  _Alignas(64) atomic_uint_fast64_t tail; /* written by the writer */
  struct record records[RING_RECORDS];
};

/* The thread's ring; NULL where all are taken. */
struct ring *ring_mine(void);
/* The next record, cleared, with its time; NULL, and counted, where there is no room or no ring. */
struct record *ring_record(struct ring *ring, int what, int type);
void copy_text(char *to, const char *from, size_t room);
void ring_commit(struct ring *ring);
/* A handle that no other event of this process has: never an address, so a stale one is harmless. */
uint64_t ring_handle(struct ring *ring, int type);
/* Copies at most `most` records; the writer's only. */
int ring_drain(int index, struct record *out, int most);
/* `paceline record off`: nothing is recorded, and not counted as dropped. */
extern atomic_int ring_off;
/* Records that were not made while it was off. */
uint64_t ring_left_out(void);
void ring_count_drop(void);
uint64_t ring_dropped(void);
/* Makes the key by which threads give their rings back; once. */
void ring_setup(void);

#endif
