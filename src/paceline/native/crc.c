#include "crc.h"

static uint32_t table[256];

void crc_setup(void) {
  if (table[1]) return;
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ 0xedb88320u : value >> 1;
    table[i] = value;
  }
}

uint32_t crc_more(uint32_t crc, const void *data, size_t n) {
  const unsigned char *bytes = data;
  crc = ~crc;
  while (n--) crc = table[(crc ^ *bytes++) & 255] ^ crc >> 8;
  return ~crc;
}
