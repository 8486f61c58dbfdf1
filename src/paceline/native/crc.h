#ifndef PACELINE_CRC_H
#define PACELINE_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Fills the table; before any other thread uses it. */
void crc_setup(void);
/* CRC-32 as zlib has it, carried on. */
uint32_t crc_more(uint32_t crc, const void *data, size_t n);

#endif
