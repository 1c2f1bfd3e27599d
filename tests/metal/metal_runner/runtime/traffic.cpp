#include "traffic.h"

#include <algorithm>

namespace runner {

namespace {

constexpr unsigned kLineShift = 7, kSectorShift = 5;  // 128 and 32 bytes
constexpr int kVector = 4;                            // elements that one load may join

struct Access {
  uint64_t address;
  uint32_t turn;  // the how manieth of this thread at this address
  uint16_t lane;
  bool store;
  Space space;
  uint32_t bytes;
  uintptr_t at;
};
std::vector<Access> accesses[kMaxThreads / kSimdWidth];
std::unordered_map<uint64_t, uint32_t> turns;  // by instruction and thread

struct Run {  // of loads that continue each other
  uintptr_t end;
  size_t bytes;
  int elements;
};
struct RecentRuns {
  Run runs[4];
  unsigned next;
};
RecentRuns recent[kMaxThreads];

bool continues_a_run(RecentRuns& of_thread, uintptr_t at, size_t bytes) {
  for (Run& run : of_thread.runs) {
    if (run.end == at && run.bytes == bytes && run.elements < kVector) {
      run.end += bytes;
      run.elements++;
      return true;
    }
  }
  of_thread.runs[of_thread.next++ % 4] = {at + bytes, bytes, bytes > 4 ? kVector : 1};
  return false;
}

int width_class(size_t bytes) {
  int power = __builtin_ctzl(bytes);
  return (bytes & (bytes - 1)) || power > 4 ? kWidths - 1 : power;
}

uint64_t count_distinct(std::vector<uintptr_t>& values) {
  std::sort(values.begin(), values.end());
  return uint64_t(std::unique(values.begin(), values.end()) - values.begin());
}

void append_units(std::vector<uintptr_t>& to, const Access& access, unsigned shift) {
  uintptr_t last = (access.at + access.bytes - 1) >> shift;
  for (uintptr_t unit = access.at >> shift; unit <= last; unit++)
    to.push_back(unit);
}

}  // namespace

Traffic traffic;
std::map<uint64_t, Site> sites;
std::map<std::string, uint64_t> simd_functions;

void forget_traffic() {
  traffic = {};
  sites.clear();
  simd_functions.clear();
  turns.clear();
  for (auto& list : accesses)
    list.clear();
}

void begin_thread_traffic() {
  std::fill(std::begin(recent), std::end(recent), RecentRuns{});
}

void add_traffic(Space space, uintptr_t at, size_t bytes, bool store, uint64_t address) {
  SpaceTraffic& to = traffic.spaces[space];
  (store ? to.bytes_stored : to.bytes_loaded) += bytes;
  (store ? to.stores : to.loads)[width_class(bytes)]++;
  if (space == kInThread)
    return;
  const Thread& thread = *machine.current;
  if (!store && !continues_a_run(recent[thread.index()], at, bytes))
    to.joined_loads++;
  uint32_t turn = turns[(address << 10) ^ thread.index()]++;
  accesses[thread.simdgroup()].push_back(
      {address, turn, uint16_t(thread.lane()), store, space, uint32_t(bytes), at});
}

void join_lanes() {
  std::vector<uintptr_t> lines, sectors;
  for (auto& list : accesses) {
    std::sort(list.begin(), list.end(), [](const Access& a, const Access& b) {
      return a.address != b.address ? a.address < b.address : a.turn < b.turn;
    });
    for (size_t i = 0; i < list.size();) {
      const Access& first = list[i];
      Site& site = sites[first.address];
      site.width = first.bytes, site.store = first.store, site.space = first.space;
      site.simd_accesses++;
      lines.clear(), sectors.clear();
      for (; i < list.size() && list[i].address == first.address && list[i].turn == first.turn;
           i++) {
        site.lanes++, site.bytes += list[i].bytes;
        append_units(lines, list[i], kLineShift);
        append_units(sectors, list[i], kSectorShift);
      }
      site.lines += count_distinct(lines);
      site.sectors += count_distinct(sectors);
    }
    list.clear();
  }
  turns.clear();
}

}  // namespace runner
