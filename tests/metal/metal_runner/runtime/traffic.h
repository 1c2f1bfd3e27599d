// How much memory a launch moves, and how well the lanes of a simdgroup share lines.
#pragma once
#include <map>
#include <string>

#include "buffers.h"

namespace runner {

enum Space { kInDevice, kInConstant, kInThreadgroup, kInThread, kSpaces };
constexpr int kWidths = 6;  // 1, 2, 4, 8, 16 bytes, others

struct SpaceTraffic {
  uint64_t bytes_loaded, bytes_stored;
  uint64_t loads[kWidths], stores[kWidths];
  uint64_t joined_loads;  // if neighbouring loads of a thread join into vectors of up to four
};

struct Site {  // one load or store of the code
  uint64_t simd_accesses, lanes, bytes, lines, sectors;
  unsigned width;
  bool store;
  Space space;
};

struct Traffic {
  SpaceTraffic spaces[kSpaces];
  uint64_t threads, simdgroups, threadgroups;
  uint64_t threadgroup_barriers, simdgroup_barriers, atomics, inactive_reads;
};
extern Traffic traffic;
extern std::map<uint64_t, Site> sites;                  // by address of the instruction
extern std::map<std::string, uint64_t> simd_functions;  // calls by name

void forget_traffic();        // before a launch
void begin_thread_traffic();  // before a threadgroup: no thread has loaded yet
void add_traffic(Space space, uintptr_t at, size_t bytes, bool store, uint64_t address);
void join_lanes();  // after a threadgroup: put the lanes of each access together

}  // namespace runner
