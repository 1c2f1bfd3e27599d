// What a launch did that the GPU does not allow, or that deserves a note.
#pragma once
#include <map>
#include <string>
#include <tuple>

#include "machine.h"

namespace runner {

struct Finding {
  const char* kind;
  std::string text;
  uint64_t address, other_address;  // of instructions, 0 if none
  Place place;                      // in the source, for what has no instruction of its own
  uint64_t count;
};

// By kind and place, so that a loop's millionth repetition costs nothing but a count.
using Findings = std::map<std::tuple<const char*, uint64_t, uint64_t>, Finding>;
extern Findings findings;

// Adds one; `text` is called only the first time that this kind appears at these places.
template <class Text>
void add_finding(const char* kind, uint64_t address, uint64_t other_address, Text text) {
  Finding& finding = findings[{kind, address, other_address}];
  if (!finding.count++) {
    finding = {kind, text(), address, other_address, {}, 1};
  }
}
template <class Text>
void add_finding(const char* kind, Place place, Text text) {
  Finding& finding = findings[{kind, place.site, 0}];
  if (!finding.count++) {
    finding = {kind, text(), 0, 0, place, 1};
  }
}

std::string format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string name_of(const Thread& thread);
std::string name_of(const Place& place);  // file:line

}  // namespace runner
