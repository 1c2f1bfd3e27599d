// metal_simdgroup and metal_quadgroup: barriers, and functions across the lanes of a group of W.
// Each is one call out of line, so that counting sees one operation.
#pragma once
#include "integers.h"
#include "interface.h"

namespace metal {

enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return mem_flags(uint(a) | uint(b));
}
METAL_FUNC void threadgroup_barrier(mem_flags flags, RUNNER_PLACE) {
  runner_barrier(0, uint(flags), RUNNER_HERE);
}
METAL_FUNC void simdgroup_barrier(mem_flags flags, RUNNER_PLACE) {
  runner_barrier(1, uint(flags), RUNNER_HERE);
}

}  // namespace metal

namespace runner {

template <class T>
struct Operands : Post {
  T in, fill, out;
  int argument, modulo;
};

template <class T>
T nothing() {  // NaN in every float type
  T result;
  __builtin_memset((void*)&result, 0xff, sizeof(T));
  return result;
}

// What MSL takes as an operand.
template <class T>
constexpr bool is_lane_type = is_scalar<T> && sizeof(T) <= 4 && !same<T, bool>;
template <class T, int N>
constexpr bool is_lane_type<vec<T, N>> = is_lane_type<T>;

// Which lane of its group a lane reads; `filled` says that it takes that lane's fill value.
struct SourceLane {
  int lane;
  bool filled = false;
};
template <int W>
struct ByIndex {
  static SourceLane of(int, int index, int) { return {index}; }
};
template <int W>
struct ByXor {
  static SourceLane of(int lane, int mask, int) { return {lane ^ mask}; }
};
template <int W>
struct Down {
  static SourceLane of(int lane, int by, int) { return {lane + by < W ? lane + by : lane}; }
};
template <int W>
struct Up {
  static SourceLane of(int lane, int by, int) { return {lane - by >= 0 ? lane - by : lane}; }
};
template <int W>
struct RotateDown {
  static SourceLane of(int lane, int by, int) { return {(lane + by) & (W - 1)}; }
};
template <int W>
struct RotateUp {
  static SourceLane of(int lane, int by, int) { return {(lane - by) & (W - 1)}; }
};
template <int W>
struct FillDown {
  static SourceLane of(int lane, int by, int modulo) {
    int block = lane / modulo * modulo, at = lane - block + by;
    return at < modulo ? SourceLane{block + at} : SourceLane{block + at - modulo, true};
  }
};
template <int W>
struct FillUp {
  static SourceLane of(int lane, int by, int modulo) {
    int block = lane / modulo * modulo, at = lane - block - by;
    return at >= 0 ? SourceLane{block + at} : SourceLane{block + at + modulo, true};
  }
};

template <class T, int W, class From>
__attribute__((noinline)) T runner_shuffle(T in, T fill, int argument, int modulo,
                                           runner_string name, unsigned site, runner_string file) {
  static_assert(is_lane_type<T>, "MSL has no simdgroup function for this type");
  Operands<T> mine;
  mine.in = in, mine.fill = fill, mine.argument = argument, mine.modulo = modulo;
  mine.name = name;
  mine.combine = [](Post* const* lanes) {
    for (int lane = 0; lane < kSimdWidth; lane++) {
      if (!lanes[lane])
        continue;
      auto* to = (Operands<T>*)lanes[lane];
      SourceLane source = From::of(lane & (W - 1), to->argument, to->modulo);
      bool exists = source.lane >= 0 && source.lane < W;
      auto* from = exists ? (Operands<T>*)lanes[(lane & ~(W - 1)) + source.lane] : nullptr;
      if (!from)
        runner_inactive_read();
      to->out = !from ? nothing<T>() : source.filled ? from->fill : from->in;
    }
  };
  runner_simd(&mine, site, file);
  return mine.out;
}

struct Sum {
  template <class T>
  static T of(T a, T b) {
    return T(a + b);
  }
};
struct Product {
  template <class T>
  static T of(T a, T b) {
    return T(a * b);
  }
};
struct Minimum {
  template <class T>
  static T of(T a, T b) {
    return T(metal::min(a, b));
  }
};
struct Maximum {
  template <class T>
  static T of(T a, T b) {
    return T(metal::max(a, b));
  }
};
struct And {
  template <class T>
  static T of(T a, T b) {
    return T(a & b);
  }
};
struct Or {
  template <class T>
  static T of(T a, T b) {
    return T(a | b);
  }
};
struct Xor {
  template <class T>
  static T of(T a, T b) {
    return T(a ^ b);
  }
};

// With all lanes there: a butterfly, lowest bit first, as Apple's GPUs are reported to do it (the
// specification promises no order). With some missing: in the order of the lanes.
template <class T, int W, class Operation>
__attribute__((noinline)) T runner_reduce(T in, runner_string name, unsigned site,
                                          runner_string file) {
  static_assert(is_lane_type<T>, "MSL has no simdgroup function for this type");
  Operands<T> mine;
  mine.in = in, mine.name = name;
  mine.combine = [](Post* const* lanes) {
    for (Post* const* group = lanes; group < lanes + kSimdWidth; group += W) {
      T values[W];
      int present = 0;
      for (int lane = 0; lane < W; lane++) {
        if (group[lane])
          values[present++] = ((Operands<T>*)group[lane])->in;
      }
      if (present == W) {
        for (int distance = 1; distance < W; distance *= 2) {
          T next[W];
          for (int lane = 0; lane < W; lane++) {
            next[lane] = Operation::of(values[lane & ~distance], values[lane | distance]);
          }
          for (int lane = 0; lane < W; lane++)
            values[lane] = next[lane];
        }
      } else {
        for (int i = 1; i < present; i++)
          values[0] = Operation::of(values[0], values[i]);
      }
      for (int lane = 0; lane < W; lane++) {
        if (group[lane]) {
          ((Operands<T>*)group[lane])->out = values[present == W ? lane : 0];
        }
      }
    }
  };
  runner_simd(&mine, site, file);
  return mine.out;
}

template <class T, int W, class Operation, bool Inclusive>
__attribute__((noinline)) T runner_scan(T in, T neutral, runner_string name, unsigned site,
                                        runner_string file) {
  static_assert(is_lane_type<T>, "MSL has no simdgroup function for this type");
  Operands<T> mine;
  mine.in = in, mine.fill = neutral, mine.name = name;
  mine.combine = [](Post* const* lanes) {
    for (Post* const* group = lanes; group < lanes + kSimdWidth; group += W) {
      bool any = false;
      T sum = T();
      for (int lane = 0; lane < W; lane++) {
        if (!group[lane])
          continue;
        auto* at = (Operands<T>*)group[lane];
        T before = any ? sum : at->fill;
        sum = any ? Operation::of(sum, at->in) : at->in;
        any = true;
        at->out = Inclusive ? sum : before;
      }
    }
  };
  runner_simd(&mine, site, file);
  return mine.out;
}

template <int W>
__attribute__((noinline)) ulong runner_ballot(bool in, runner_string name, unsigned site,
                                              runner_string file) {
  Operands<ulong> mine;
  mine.in = in, mine.name = name;
  mine.combine = [](Post* const* lanes) {
    ulong mask = 0;
    for (int lane = 0; lane < kSimdWidth; lane++) {
      if (lanes[lane] && ((Operands<ulong>*)lanes[lane])->in)
        mask |= 1ul << lane;
    }
    for (int lane = 0; lane < kSimdWidth; lane++) {
      ulong of_group = (mask >> (lane & ~(W - 1))) & ((1ul << W) - 1);
      if (lanes[lane])
        ((Operands<ulong>*)lanes[lane])->out = of_group;
    }
  };
  runner_simd(&mine, site, file);
  return mine.out;
}

}  // namespace runner

namespace metal {

#define RUNNER_SHUFFLE(NAME, W, FROM)                                                            \
  template <class T>                                                                             \
  inline T NAME(T x, ushort argument, RUNNER_PLACE) {                                            \
    return runner::runner_shuffle<T, W, runner::FROM<W>>(x, x, argument, W, #NAME, RUNNER_HERE); \
  }
#define RUNNER_FILLING(NAME, W, FROM)                                                              \
  template <class T>                                                                               \
  inline T NAME(T x, T fill, ushort by, ushort modulo = W, RUNNER_PLACE) {                         \
    return runner::runner_shuffle<T, W, runner::FROM<W>>(x, fill, by, modulo, #NAME, RUNNER_HERE); \
  }
#define RUNNER_REDUCE(NAME, W, OPERATION)                                         \
  template <class T>                                                              \
  inline T NAME(T x, RUNNER_PLACE) {                                              \
    return runner::runner_reduce<T, W, runner::OPERATION>(x, #NAME, RUNNER_HERE); \
  }
#define RUNNER_SCAN(NAME, W, OPERATION, NEUTRAL, INCLUSIVE)                              \
  template <class T>                                                                     \
  inline T NAME(T x, RUNNER_PLACE) {                                                     \
    return runner::runner_scan<T, W, runner::OPERATION, INCLUSIVE>(x, T(NEUTRAL), #NAME, \
                                                                   RUNNER_HERE);         \
  }
#define RUNNER_GROUP(GROUP, W)                                                           \
  RUNNER_SHUFFLE(GROUP##_shuffle, W, ByIndex)                                            \
  RUNNER_SHUFFLE(GROUP##_broadcast, W, ByIndex)                                          \
  RUNNER_SHUFFLE(GROUP##_shuffle_xor, W, ByXor)                                          \
  RUNNER_SHUFFLE(GROUP##_shuffle_down, W, Down)                                          \
  RUNNER_SHUFFLE(GROUP##_shuffle_up, W, Up)                                              \
  RUNNER_SHUFFLE(GROUP##_shuffle_rotate_down, W, RotateDown)                             \
  RUNNER_SHUFFLE(GROUP##_shuffle_rotate_up, W, RotateUp)                                 \
  RUNNER_FILLING(GROUP##_shuffle_and_fill_down, W, FillDown)                             \
  RUNNER_FILLING(GROUP##_shuffle_and_fill_up, W, FillUp)                                 \
  RUNNER_REDUCE(GROUP##_sum, W, Sum)                                                     \
  RUNNER_REDUCE(GROUP##_product, W, Product)                                             \
  RUNNER_REDUCE(GROUP##_min, W, Minimum)                                                 \
  RUNNER_REDUCE(GROUP##_max, W, Maximum)                                                 \
  RUNNER_REDUCE(GROUP##_and, W, And)                                                     \
  RUNNER_REDUCE(GROUP##_or, W, Or)                                                       \
  RUNNER_REDUCE(GROUP##_xor, W, Xor)                                                     \
  RUNNER_SCAN(GROUP##_prefix_inclusive_sum, W, Sum, 0, true)                             \
  RUNNER_SCAN(GROUP##_prefix_exclusive_sum, W, Sum, 0, false)                            \
  RUNNER_SCAN(GROUP##_prefix_inclusive_product, W, Product, 1, true)                     \
  RUNNER_SCAN(GROUP##_prefix_exclusive_product, W, Product, 1, false)                    \
  inline bool GROUP##_any(bool x, RUNNER_PLACE) {                                        \
    return runner::runner_reduce<int, W, runner::Or>(x, #GROUP "_any", RUNNER_HERE);     \
  }                                                                                      \
  inline bool GROUP##_all(bool x, RUNNER_PLACE) {                                        \
    return runner::runner_reduce<int, W, runner::And>(x, #GROUP "_all", RUNNER_HERE);    \
  }                                                                                      \
  inline bool GROUP##_is_first(RUNNER_PLACE) {                                           \
    ulong here = runner::runner_ballot<W>(true, #GROUP "_is_first", RUNNER_HERE);        \
    return uint(__builtin_ctzl(here)) == (runner_lane() & (W - 1));                      \
  }                                                                                      \
  template <class T>                                                                     \
  inline T GROUP##_broadcast_first(T x, RUNNER_PLACE) {                                  \
    ulong here = runner::runner_ballot<W>(true, #GROUP "_broadcast_first", RUNNER_HERE); \
    return runner::runner_shuffle<T, W, runner::ByIndex<W>>(                             \
        x, x, __builtin_ctzl(here), W, #GROUP "_broadcast_first", RUNNER_HERE);          \
  }
RUNNER_GROUP(simd, 32)
RUNNER_GROUP(quad, 4)
#undef RUNNER_GROUP
#undef RUNNER_SCAN
#undef RUNNER_REDUCE
#undef RUNNER_FILLING
#undef RUNNER_SHUFFLE

struct simd_vote {
  typedef ulong vote_t;
  explicit simd_vote(ulong mask = 0) : mask(mask) {}
  explicit operator vote_t() const { return mask; }
  bool all() const { return mask == 0xffffffffu; }
  bool any() const { return mask != 0; }

 private:
  ulong mask;
};
inline simd_vote simd_ballot(bool x, RUNNER_PLACE) {
  return simd_vote(runner::runner_ballot<32>(x, "simd_ballot", RUNNER_HERE));
}
inline simd_vote simd_active_threads_mask(RUNNER_PLACE) {
  return simd_vote(runner::runner_ballot<32>(true, "simd_active_threads_mask", RUNNER_HERE));
}

}  // namespace metal
