// Sums of several values over the lanes of a SIMD group, or of a part of it.
#pragma once

#include <metal_stdlib>

#include "elements.h"

using namespace metal;

// A butterfly over n values and 2 · distance lanes, from those `distance` apart down. While the
// values are even in number, the two lanes of a pair part them: each takes the sums of half of
// them. At the end a lane has sums slot() … slot() + count − 1 in front, if it is the owner() of
// these; lane(i) owns sum i.
template <short n, short distance = 8>
struct LaneSums {
  static constexpr constant bool part = n % 2 == 0;
  static constexpr constant short kept = part ? n / 2 : n;
  using Next = LaneSums<kept, distance / 2>;
  static constexpr constant short count = Next::count;

  static METAL_FUNC void add(thread float* v, ushort lane) {
    const bool upper = lane & distance;
    UNROLL for (short i = 0; i < kept; ++i) {
      const float own = part && upper ? v[i + kept] : v[i];
      const float other = part && !upper ? v[i + kept] : v[i];
      v[i] = own + simd_shuffle_xor(other, ushort(distance));
    }
    Next::add(v, lane);
  }
  static METAL_FUNC ushort slot(ushort lane) {
    return (part && lane & distance ? kept : 0) + Next::slot(lane);
  }
  static METAL_FUNC bool owner(ushort lane) {
    return (part || !(lane & distance)) && Next::owner(lane);
  }
  static constexpr METAL_FUNC ushort lane(short i) {
    return part && i >= kept ? distance + Next::lane(i - kept) : Next::lane(i);
  }
};

template <short n>
struct LaneSums<n, 0> {
  static constexpr constant short count = n;

  static METAL_FUNC void add(thread float*, ushort) {}
  static METAL_FUNC ushort slot(ushort) { return 0; }
  static METAL_FUNC bool owner(ushort) { return true; }
  static constexpr METAL_FUNC ushort lane(short) { return 0; }
};
