#include "crc.h"

/* Eight bytes at a time: tables[k][b] is the contribution of byte b followed by k zero bytes. */
static uint32_t tables[8][256];

void crc_setup(void) {
  if (tables[0][1]) return;
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ 0xedb88320u : value >> 1;
    tables[0][i] = value;
  }
  for (int k = 1; k < 8; k++)
    for (int i = 0; i < 256; i++)
      tables[k][i] = tables[0][tables[k - 1][i] & 255] ^ tables[k - 1][i] >> 8;
}

static uint32_t word_of(const unsigned char *bytes) {
  return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
         (uint32_t)bytes[3] << 24;
}

uint32_t crc_more(uint32_t crc, const void *data, size_t n) {
  const unsigned char *bytes = data;
  crc = ~crc;
  for (; n >= 8; n -= 8, bytes += 8) {
    uint32_t low = crc ^ word_of(bytes), high = word_of(bytes + 4);
    crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^
          tables[4][low >> 24] ^ tables[3][high & 255] ^ tables[2][high >> 8 & 255] ^
          tables[1][high >> 16 & 255] ^ tables[0][high >> 24];
  }
  while (n--) crc = tables[0][(crc ^ *bytes++) & 255] ^ crc >> 8;
  return ~crc;
}
