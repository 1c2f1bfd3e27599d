// metal_simdgroup_matrix: 8x8, two elements in each lane.
#pragma once
#include "simdgroup.h"

namespace runner {

// Where a lane's first element stands; the second is in the next column. Apple does not document
// this map; MLX's kernels rely on it through thread_elements().
struct MatrixPlace {
  int row, column;
};
inline MatrixPlace matrix_place(int lane) {
  int quad = lane / 4;
  return {(quad & 4) + (lane / 2) % 4, (quad & 2) * 2 + (lane % 2) * 2};
}

}  // namespace runner

namespace metal {

template <class T, int Columns, int Rows = Columns>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "MSL has simdgroup matrices of 8x8 only");
  static_assert(is_floating_point_v<T>, "MSL has simdgroup matrices of floats only");

  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    auto [row, column] = runner::matrix_place(runner_lane());
    elements[0] = row == column ? diagonal : T(0);
    elements[1] = row == column + 1 ? diagonal : T(0);
  }
  RUNNER_THREAD vec<T, 2>& thread_elements() RUNNER_THREAD { return elements; }
  const RUNNER_THREAD vec<T, 2>& thread_elements() const RUNNER_THREAD { return elements; }

 private:
  vec<T, 2> elements;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Columns = 8, int Rows = 8>
inline simdgroup_matrix<T, 8, 8> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, 8, 8> result;
  result.thread_elements() = vec<T, 2>(value);
  return result;
}

template <class T, class S>
inline void simdgroup_load(RUNNER_THREAD simdgroup_matrix<T, 8, 8>& matrix, const S* from,
                           ulong elements_per_row = 8, vec<ulong, 2> origin = vec<ulong, 2>(0ul),
                           bool transpose = false) {
  static_assert(is_same_v<T, remove_addrspace_t<S>>, "simdgroup_load: element types differ");
  auto [row, column] = runner::matrix_place(runner_lane());
  for (int j = 0; j < 2; j++) {
    ulong x = origin.x + (transpose ? row : column + j);
    ulong y = origin.y + (transpose ? column + j : row);
    matrix.thread_elements()[j] = from[y * elements_per_row + x];
  }
}

template <class T, class S>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> matrix, S* to, ulong elements_per_row = 8,
                            vec<ulong, 2> origin = vec<ulong, 2>(0ul), bool transpose = false) {
  static_assert(is_same_v<T, remove_addrspace_t<S>>, "simdgroup_store: element types differ");
  auto [row, column] = runner::matrix_place(runner_lane());
  for (int j = 0; j < 2; j++) {
    ulong x = origin.x + (transpose ? row : column + j);
    ulong y = origin.y + (transpose ? column + j : row);
    to[y * elements_per_row + x] = matrix.thread_elements()[j];
  }
}

}  // namespace metal

namespace runner {

template <class D, class A, class B>
struct MatrixOperands : Post {
  vec<A, 2> a;
  vec<B, 2> b;
  vec<D, 2> c, result;
};

// Products summed over k in order, in fp32 with one rounding each. The order inside of the GPU's
// matrix unit is not known.
template <class D, class A, class B>
__attribute__((noinline)) vec<D, 2> runner_mma(vec<A, 2> a, vec<B, 2> b, vec<D, 2> c,
                                               runner_string name, unsigned site,
                                               runner_string file) {
  typedef MatrixOperands<D, A, B> Mine;
  Mine mine;
  mine.a = a, mine.b = b, mine.c = c, mine.name = name;
  mine.combine = [](Post* const* lanes) {
    float left[8][8], right[8][8], sum[8][8];
    for (int lane = 0; lane < kSimdWidth; lane++) {
      auto* from = (Mine*)lanes[lane];
      auto [row, column] = matrix_place(lane);
      if (!from)
        runner_inactive_read();
      for (int j = 0; j < 2; j++) {
        left[row][column + j] = from ? float(from->a.d[j]) : nothing<float>();
        right[row][column + j] = from ? float(from->b.d[j]) : nothing<float>();
        sum[row][column + j] = from ? float(from->c.d[j]) : nothing<float>();
      }
    }
    for (int row = 0; row < 8; row++) {
      for (int k = 0; k < 8; k++) {
        for (int column = 0; column < 8; column++) {
          sum[row][column] = __builtin_fmaf(left[row][k], right[k][column], sum[row][column]);
        }
      }
    }
    for (int lane = 0; lane < kSimdWidth; lane++) {
      auto* to = (Mine*)lanes[lane];
      auto [row, column] = matrix_place(lane);
      if (to)
        to->result = vec<D, 2>(D(sum[row][column]), D(sum[row][column + 1]));
    }
  };
  runner_simd(&mine, site, file);
  return mine.result;
}

}  // namespace runner

namespace metal {

template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(RUNNER_THREAD simdgroup_matrix<D, 8, 8>& d,
                                          simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
                                          simdgroup_matrix<C, 8, 8> c, RUNNER_PLACE) {
  auto sum = c.thread_elements();
  d.thread_elements() = runner::runner_mma<D, A, B>(a.thread_elements(), b.thread_elements(),
                                                    vec<D, 2>(D(sum.x), D(sum.y)),
                                                    "simdgroup_multiply_accumulate", RUNNER_HERE);
}
template <class D, class A, class B>
inline void simdgroup_multiply(RUNNER_THREAD simdgroup_matrix<D, 8, 8>& d,
                               simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
                               RUNNER_PLACE) {
  d.thread_elements() = runner::runner_mma<D, A, B>(
      a.thread_elements(), b.thread_elements(), vec<D, 2>(D(0)), "simdgroup_multiply", RUNNER_HERE);
}
template <class T>
inline simdgroup_matrix<T, 8, 8> operator*(simdgroup_matrix<T, 8, 8> a,
                                           simdgroup_matrix<T, 8, 8> b) {
  simdgroup_matrix<T, 8, 8> product;
  simdgroup_multiply(product, a, b);
  return product;
}

}  // namespace metal
