/* The thread that moves records into files, and the communicators of the process. */
#ifndef PACELINE_WRITER_H
#define PACELINE_WRITER_H

#include <stdatomic.h>
#include <stdint.h>

struct communicator {
  uint64_t id;
  uint32_t number;
  int32_t rank, ranks, nodes;
  char name[32];
};
_Static_assert(sizeof(struct communicator) == 56, "the reader knows this size");

/* 1 while records are taken: read by every call of NCCL. */
extern atomic_int recording;

/* Counts a communicator in and starts the writer with the first; 0: recording is off. */
uint32_t writer_open(const struct communicator *given, int version);
/* Counts one out; with the last one the files are complete. */
void writer_close(void);

#endif
