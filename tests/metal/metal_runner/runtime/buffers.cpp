#include "buffers.h"

#include <sys/mman.h>

#include <cstring>

#include "findings.h"

namespace runner {

namespace {

constexpr size_t kRegion = size_t(1) << 36;
constexpr size_t kGap = size_t(64) << 20;
constexpr size_t kAlignment = 16;    // of the data, the widest that a load asks for
constexpr size_t kSlack = 64 << 10;  // instrumented kernels report a bad access and go on
constexpr int kPattern = 0xff;       // NaN in every float type

char* region = nullptr;
size_t region_used = kGap;

size_t round_up(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace

std::vector<Buffer*> buffers;

bool in_region(uintptr_t address) {
  return address - (uintptr_t)region < kRegion;
}

Buffer* buffer_at(uintptr_t address) {
  for (Buffer* buffer : buffers) {
    if (address >= buffer->first && address < buffer->end)
      return buffer;
  }
  return nullptr;
}

std::string name_of_nearest(uintptr_t address) {
  const Buffer* nearest = nullptr;
  uintptr_t distance = ~uintptr_t(0);
  for (const Buffer* buffer : buffers) {
    uintptr_t away = address < buffer->first  ? buffer->first - address
                     : address >= buffer->end ? address - buffer->end
                                              : 0;
    if (away < distance)
      distance = away, nearest = buffer;
  }
  if (!nearest)
    return "any buffer";
  return format("buffer %u (%zu bytes), at byte %ld", nearest->index,
                size_t(nearest->end - nearest->first), long(address - nearest->first));
}

void check_guards() {
  for (const Buffer* buffer : buffers) {
    for (uintptr_t at = buffer->map_first; at < buffer->map_end; at++) {
      if (at == buffer->first)
        at = buffer->end;
      if (at >= buffer->map_end || *(const uint8_t*)at == kPattern)
        continue;
      add_finding("device store out of bounds", 0, at,
                  [&] { return "a store outside of " + name_of_nearest(at); });
      break;
    }
  }
}

}  // namespace runner

using namespace runner;

extern "C" void* runner_buffer_new(const void* data, size_t bytes, unsigned index, int read_only,
                                   int constant, int instrumented, int count) {
  if (!region) {
    void* at = mmap(nullptr, kRegion, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
      return nullptr;
    region = (char*)at;
  }
  size_t padded = round_up(bytes, kAlignment);
  size_t span = round_up(padded ? padded : 1, page_bytes());
  if (region_used + span + 2 * kGap > kRegion)
    return nullptr;
  auto* buffer = new Buffer();
  buffer->index = index;
  buffer->map_first = (uintptr_t)region + region_used;
  buffer->map_end = buffer->map_first + span;
  buffer->first = buffer->map_end - padded;
  buffer->end = buffer->first + bytes;
  buffer->read_only = read_only, buffer->constant = constant;
  region_used += round_up(span + kGap, page_bytes());
  size_t slack = instrumented ? kSlack : 0;
  auto* mapped = (char*)(buffer->map_first - slack);
  mprotect(mapped, span + 2 * slack, PROT_READ | PROT_WRITE);
  memset(mapped, kPattern, span + 2 * slack);
  memcpy((void*)buffer->first, data, bytes);
  if (read_only && !instrumented)
    mprotect((void*)buffer->map_first, span, PROT_READ);
  if (count)
    buffer->touched.resize(bytes);
  buffers.push_back(buffer);
  return (void*)buffer->first;
}

extern "C" void runner_buffers_free() {
  for (Buffer* buffer : buffers) {
    auto* mapped = (char*)(buffer->map_first - kSlack);
    size_t span = buffer->map_end - buffer->map_first + 2 * kSlack;
    madvise(mapped, span, MADV_DONTNEED);
    mprotect(mapped, span, PROT_NONE);
    delete buffer;
  }
  buffers.clear();
  region_used = kGap;
}
