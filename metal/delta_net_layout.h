// Where a step has its heads in what GatedDeltaNet's input projections give, as C++ writes it and
// both C++ and MSL read it.
#pragma once

#ifndef __METAL_VERSION__
#include <cstdint>
#endif

// One of q, k, v, z, a and b, in elements. The value heads of a key head lie side by side.
struct HeadPlaces {
  uint32_t first;     // where the first key head's begin
  uint32_t key_head;  // from one key head to the next
};

struct DeltaNetLayout {
  uint32_t qkv_step, z_step, gate_step;  // from one step to the next
  HeadPlaces q, k, v, z, a, b;
};

// Where head j, of `size` elements, of those of key head hk begins.
static inline uint32_t place_of(HeadPlaces heads, uint32_t hk, uint32_t j, uint32_t size) {
  return heads.first + hk * heads.key_head + j * size;
}

#ifndef __METAL_VERSION__
// Interleaved: q | k | v | z of each key head in turn, and b | a of each. Otherwise q of all heads,
// k of all, v of all; z, a and b apart.
static inline DeltaNetLayout delta_net_layout(bool interleaved, uint32_t Hk, uint32_t Hv,
                                              uint32_t Dk, uint32_t Dv) {
  const uint32_t share = Hv / Hk, values = share * Dv;
  if (interleaved) {
    const uint32_t head = 2 * (Dk + values), gates = 2 * share;
    return {.qkv_step = Hk * head,
            .z_step = Hk * head,
            .gate_step = Hk * gates,
            .q = {0, head},
            .k = {Dk, head},
            .v = {2 * Dk, head},
            .z = {2 * Dk + values, head},
            .a = {share, gates},
            .b = {0, gates}};
  }
  return {.qkv_step = 2 * Hk * Dk + Hv * Dv,
          .z_step = Hv * Dv,
          .gate_step = Hv,
          .q = {0, Dk},
          .k = {Hk * Dk, Dk},
          .v = {2 * Hk * Dk, values},
          .z = {0, values},
          .a = {0, share},
          .b = {0, share}};
}
#endif
