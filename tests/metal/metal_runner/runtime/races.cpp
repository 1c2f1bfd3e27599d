#include "races.h"

#include <algorithm>
#include <cstring>

#include "findings.h"

namespace runner {

namespace {

const char* const kAcross = "race in threadgroup memory";
const char* const kWithin = "race in threadgroup memory within a simdgroup";
const char* const kSoft = "threadgroup memory ordered only by a simdgroup function";
const char* const kUninitialised = "uninitialised threadgroup read";
const char* const kDeviceRace = "race in device memory";
const char* const kTwice = "device memory written by two threads";
const char* const kTwiceSame = "device memory written by two threads with the same value";

constexpr uint16_t kNobody = 0xffff;

struct ThreadgroupShadow {  // of one byte
  // The last store.
  uint32_t group, epoch, simd_epoch, functions;
  uint64_t store_address;
  uint16_t writer;
  // Reads since the last barrier: by which simdgroups, and by which lanes of the last of them
  // since its own last barrier; `lanes_now` since its last simdgroup function.
  uint16_t reading_simdgroup;
  uint32_t read_group, read_epoch, simdgroups, read_simd_epoch, read_functions, lanes, lanes_now;
  uint64_t read_address;
};
std::vector<ThreadgroupShadow> shadows;

struct PendingStore {
  uintptr_t at;
  size_t bytes;
  uint64_t address, other_address;
  uint16_t writer;
  bool same_threadgroup;
  char before[16];
} pending = {};

const char* verb(bool store) {
  return store ? "store" : "load";
}

void check_against_store(const ThreadgroupShadow& byte, size_t offset, bool store,
                         uint64_t address) {
  const Thread& thread = *machine.current;
  unsigned simdgroup = thread.simdgroup();
  const Epochs& mine = machine.of_simdgroup[simdgroup];
  if (byte.group != machine.threadgroup || byte.writer == kNobody)
    return;
  if (byte.writer == thread.index() || byte.epoch != machine.of_threadgroup.threadgroup)
    return;
  bool near = byte.writer / unsigned(kSimdWidth) == simdgroup;
  if (near && byte.simd_epoch != mine.threadgroup)
    return;
  const char* kind = !near ? kAcross : byte.functions != mine.simd_functions ? kSoft : kWithin;
  add_finding(kind, address, byte.store_address, [&] {
    return format("%s by %s of byte %zu, which thread %u stored with no barrier between",
                  verb(store), name_of(thread).c_str(), offset, byte.writer);
  });
}

void check_against_reads(const ThreadgroupShadow& byte, size_t offset, uint64_t address) {
  const Thread& thread = *machine.current;
  unsigned simdgroup = thread.simdgroup();
  const Epochs& mine = machine.of_simdgroup[simdgroup];
  bool current = byte.read_group == machine.threadgroup &&
                 byte.read_epoch == machine.of_threadgroup.threadgroup;
  if (!current)
    return;
  uint32_t me = 1u << thread.lane();
  const char* kind = nullptr;
  if (byte.simdgroups & ~(1u << simdgroup)) {
    kind = kAcross;
  } else if (byte.read_simd_epoch == mine.threadgroup && (byte.lanes & ~me)) {
    bool now = byte.read_functions == mine.simd_functions && (byte.lanes_now & ~me);
    kind = now ? kWithin : kSoft;
  }
  if (!kind)
    return;
  add_finding(kind, address, byte.read_address, [&] {
    return format("store by %s to byte %zu, which another thread loaded with no barrier between",
                  name_of(thread).c_str(), offset);
  });
}

void note_read(ThreadgroupShadow& byte, uint64_t address) {
  const Thread& thread = *machine.current;
  unsigned simdgroup = thread.simdgroup();
  const Epochs& mine = machine.of_simdgroup[simdgroup];
  if (byte.read_group != machine.threadgroup ||
      byte.read_epoch != machine.of_threadgroup.threadgroup) {
    byte.read_group = machine.threadgroup;
    byte.read_epoch = machine.of_threadgroup.threadgroup;
    byte.simdgroups = byte.lanes = 0;
    byte.reading_simdgroup = kNobody;
  }
  byte.simdgroups |= 1u << simdgroup;
  if (byte.reading_simdgroup != simdgroup || byte.read_simd_epoch != mine.threadgroup) {
    byte.reading_simdgroup = uint16_t(simdgroup);
    byte.read_simd_epoch = mine.threadgroup;
    byte.lanes = 0;
  }
  if (!byte.lanes || byte.read_functions != mine.simd_functions) {
    byte.read_functions = mine.simd_functions;
    byte.lanes_now = 0;
  }
  byte.lanes |= 1u << thread.lane();
  byte.lanes_now |= 1u << thread.lane();
  byte.read_address = address;
}

void note_store(ThreadgroupShadow& byte, uint64_t address) {
  const Thread& thread = *machine.current;
  const Epochs& mine = machine.of_simdgroup[thread.simdgroup()];
  byte.group = machine.threadgroup;
  byte.epoch = machine.of_threadgroup.threadgroup;
  byte.simd_epoch = mine.threadgroup;
  byte.functions = mine.simd_functions;
  byte.writer = uint16_t(thread.index());
  byte.store_address = address;
}

// Whether an access of the running thread comes after one of (group, thread, epochs) by chance.
bool unordered(uint32_t group, uint16_t other, uint32_t epoch, uint32_t simd_epoch) {
  if (!group)
    return false;
  if (group != machine.threadgroup)
    return true;
  const Thread& thread = *machine.current;
  if (other == thread.index() || epoch != machine.of_threadgroup.device)
    return false;
  bool near = other / unsigned(kSimdWidth) == thread.simdgroup();
  return !(near && simd_epoch != machine.of_simdgroup[thread.simdgroup()].device);
}

}  // namespace

void forget_threadgroup_accesses() {
  shadows.assign(kThreadgroupArena, {});
  pending.bytes = 0;
}

void threadgroup_access(uintptr_t at, size_t bytes, bool store, uint64_t address) {
  const Thread& thread = *machine.current;
  size_t offset = at - (uintptr_t)machine.arena;
  if (offset + bytes > machine.arena_used) {
    add_finding("threadgroup access out of bounds", address, 0, [&] {
      return format("%zu-byte %s at byte %zu by %s, where %zu bytes are declared", bytes,
                    verb(store), offset, name_of(thread).c_str(), machine.arena_used);
    });
    if (offset + bytes > kThreadgroupArena)
      return;
  }
  if (!machine.find_races)
    return;
  for (size_t i = offset; i < offset + bytes; i++) {
    ThreadgroupShadow& byte = shadows[i];
    check_against_store(byte, i, store, address);
    if (store) {
      check_against_reads(byte, i, address);
      note_store(byte, address);
      continue;
    }
    if (byte.group != machine.threadgroup) {
      add_finding(kUninitialised, address, 0, [&] {
        return format("load of byte %zu, which this threadgroup never stored, by ", i) +
               name_of(thread);
      });
    }
    note_read(byte, address);
  }
}

void threadgroup_atomic(uintptr_t at, size_t bytes) {
  size_t offset = at - (uintptr_t)machine.arena;
  for (size_t i = offset; i < std::min(offset + bytes, kThreadgroupArena); i++) {
    shadows[i].group = machine.threadgroup;
    shadows[i].writer = kNobody;
  }
}

void device_access(Buffer& buffer, uintptr_t at, size_t bytes, bool store, uint64_t address) {
  if (buffer.read_only || !machine.find_races)
    return;
  if (buffer.shadow.empty())
    buffer.shadow.resize(buffer.end - buffer.first);
  const Thread& thread = *machine.current;
  const Epochs& mine = machine.of_simdgroup[thread.simdgroup()];
  for (size_t i = at - buffer.first; i < at - buffer.first + bytes; i++) {
    DeviceShadow& byte = buffer.shadow[i];
    auto tell = [&](uint16_t other, uint32_t group, const char* did) {
      const char* whose = group == machine.threadgroup ? "the same" : "another";
      return format(
          "%s by %s of byte %zu of buffer %u, which thread %u of %s threadgroup %s "
          "with nothing to order them",
          verb(store), name_of(thread).c_str(), i, buffer.index, other, whose, did);
    };
    bool after_store =
        unordered(byte.writer_group, byte.writer, byte.writer_epoch, byte.writer_simd_epoch);
    if (after_store && !store) {
      add_finding(kDeviceRace, address, byte.writer_access,
                  [&] { return tell(byte.writer, byte.writer_group, "stored"); });
    } else if (after_store && !pending.bytes) {
      bool same_group = byte.writer_group == machine.threadgroup;
      pending = {at, bytes, address, byte.writer_access, byte.writer, same_group, {}};
      memcpy(pending.before, (const void*)at, std::min(bytes, sizeof pending.before));
    }
    if (!store) {
      byte.reader_group = machine.threadgroup, byte.reader = uint16_t(thread.index());
      byte.reader_epoch = machine.of_threadgroup.device;
      byte.reader_simd_epoch = mine.device;
      continue;
    }
    if (unordered(byte.reader_group, byte.reader, byte.reader_epoch, byte.reader_simd_epoch)) {
      add_finding(kDeviceRace, address, 0,
                  [&] { return tell(byte.reader, byte.reader_group, "loaded"); });
    }
    byte.writer_group = machine.threadgroup, byte.writer = uint16_t(thread.index());
    byte.writer_epoch = machine.of_threadgroup.device, byte.writer_simd_epoch = mine.device;
    byte.writer_access = address;
  }
}

void settle_store() {
  if (!pending.bytes)
    return;
  size_t compared = std::min(pending.bytes, sizeof pending.before);
  bool same = memcmp(pending.before, (const void*)pending.at, compared) == 0;
  add_finding(same ? kTwiceSame : kTwice, pending.address, pending.other_address, [] {
    const Buffer* buffer = buffer_at(pending.at);
    return format(
        "store by %s to byte %zu of buffer %u, which thread %u of %s threadgroup "
        "stored with nothing to order them",
        name_of(*machine.current).c_str(), size_t(pending.at - buffer->first), buffer->index,
        pending.writer, pending.same_threadgroup ? "the same" : "another");
  });
  pending.bytes = 0;
}

}  // namespace runner
