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
_Static_assert(sizeof(struct communicator) == 56, "the reader expects this size");

/* 1 while recording; every call of NCCL reads it. */
extern atomic_int recording;

/* Registers a communicator, and starts the writer with the first. Returns 0 if recording is off. */
uint32_t writer_open(const struct communicator *given, int version);
/* Unregisters a communicator; after the last one, the files are complete. */
void writer_close(void);

#endif
