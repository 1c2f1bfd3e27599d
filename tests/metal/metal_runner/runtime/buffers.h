// Device buffers: copies of the caller's arrays, each ended by pages that nobody may touch.
#pragma once
#include <string>
#include <vector>

#include "machine.h"

namespace runner {

struct DeviceShadow {  // of one byte: who wrote and read it last, and when
  uint32_t writer_group, writer_epoch, writer_simd_epoch;
  uint32_t reader_group, reader_epoch, reader_simd_epoch;
  uint16_t writer, reader;
  uint64_t writer_access;
};

struct Buffer {
  unsigned index;                // the kernel's
  uintptr_t first, end;          // of the data
  uintptr_t map_first, map_end;  // of the pages it lies in
  bool read_only, constant;
  uint64_t loaded = 0, stored = 0;   // bytes
  std::vector<uint8_t> touched;      // one a byte, when counting
  std::vector<DeviceShadow> shadow;  // one a byte, once raced for
};
extern std::vector<Buffer*> buffers;

Buffer* buffer_at(uintptr_t address);
bool in_region(uintptr_t address);
std::string name_of_nearest(uintptr_t address);
void check_guards();  // finds stores beside the data that no fault told of

}  // namespace runner
