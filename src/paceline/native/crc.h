#ifndef PACELINE_CRC_H
#define PACELINE_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Fills the table; call it before other threads use the table. */
void crc_setup(void);
/* Continues a CRC-32, the same as zlib's. */
uint32_t crc_more(uint32_t crc, const void *data, size_t n);

#endif
