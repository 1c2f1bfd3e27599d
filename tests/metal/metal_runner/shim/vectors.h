// vec<T, N> with MSL's rules: no implicit conversion between vector types, sizes and alignments of
// the GPU, operators that work component by component. clang's own vector types do not follow them.
#pragma once
#include "traits.h"

namespace metal {
template <class T, int N>
struct vec;
}

namespace runner {
using metal::vec;

template <class X>
constexpr int width = 1;
template <class T, int N>
constexpr int width<vec<T, N>> = N;

template <class T, int N, class D, class... Index>
constexpr vec<T, N> take(const D& from, Index... index) {
  return vec<T, N>(from[index]...);
}
template <class T, int N, class D, class... Index>
constexpr void put(D& to, vec<T, N> value, Index... index) {
  int i = 0;
  ((to[index] = value.d[i++]), ...);
}

// Copies go through a native vector, so that each is one load or store, as on a GPU.
template <class T>
struct NativeElement {
  typedef T type;
};
template <>
struct NativeElement<bool> {
  typedef uint8_t type;
};
template <>
struct NativeElement<bfloat> {
  typedef uint16_t type;
};
template <class T, int N>
using Native = typename NativeElement<T>::type __attribute__((ext_vector_type(N)));

template <class T, int N>
struct Components;

#define RUNNER_COMPONENTS(N, NAMES, COLOURS)                 \
  union {                                                    \
    T d[N];                                                  \
    Native<T, N> native;                                     \
    struct {                                                 \
      T NAMES;                                               \
    };                                                       \
    struct {                                                 \
      T COLOURS;                                             \
    };                                                       \
  };                                                         \
  Components() = default;                                    \
  constexpr Components(const Components& other) : d{} {      \
    copy(other);                                             \
  }                                                          \
  constexpr Components& operator=(const Components& other) { \
    copy(other);                                             \
    return *this;                                            \
  }                                                          \
  constexpr void copy(const Components& other) {             \
    if (__builtin_is_constant_evaluated()) {                 \
      for (int i = 0; i < N; i++)                            \
        d[i] = other.d[i];                                   \
    } else {                                                 \
      native = other.native;                                 \
    }                                                        \
  }
#define RUNNER_LIST(...) __VA_ARGS__

template <class T>
struct alignas(2 * sizeof(T)) Components<T, 2> {
  RUNNER_COMPONENTS(2, RUNNER_LIST(x, y), RUNNER_LIST(r, g))
#define RUNNER_THIRD(...)
#define RUNNER_FOURTH(...)
#include "swizzles.h"
};
template <class T>
struct alignas(4 * sizeof(T)) Components<T, 3> {
  RUNNER_COMPONENTS(3, RUNNER_LIST(x, y, z), RUNNER_LIST(r, g, b))
#define RUNNER_THIRD(...) __VA_ARGS__
#define RUNNER_FOURTH(...)
#include "swizzles.h"
};
template <class T>
struct alignas(4 * sizeof(T)) Components<T, 4> {
  RUNNER_COMPONENTS(4, RUNNER_LIST(x, y, z, w), RUNNER_LIST(r, g, b, a))
#define RUNNER_THIRD(...) __VA_ARGS__
#define RUNNER_FOURTH(...) __VA_ARGS__
#include "swizzles.h"
};
#undef RUNNER_COMPONENTS
#undef RUNNER_LIST

}  // namespace runner

namespace metal {

template <class T, int N>
struct vec : runner::Components<T, N> {
  typedef T value_type;
  using runner::Components<T, N>::d;

  vec() = default;
  constexpr vec(T value) : runner::Components<T, N>() {
    for (int i = 0; i < N; i++)
      d[i] = value;
  }
  // A scalar of another type is converted and repeated.
  template <class S, class = runner::Require<runner::is_scalar<S> && !is_same_v<S, T>>>
  constexpr vec(S value) : vec(T(value)) {}
  template <class S, class = runner::Require<!is_same_v<S, T>>>
  explicit constexpr vec(const vec<S, N>& other) : runner::Components<T, N>() {
    for (int i = 0; i < N; i++)
      d[i] = T(other.d[i]);
  }
  // Scalars and vectors that have N components together.
  template <class A, class B, class... Rest,
            class = runner::Require<(runner::width<A> +
                                     (runner::width<B> + ... + runner::width<Rest>)) == N>>
  constexpr vec(A a, B b, Rest... rest) : runner::Components<T, N>() {
    int i = 0;
    append(i, a), append(i, b), (append(i, rest), ...);
  }

  constexpr T& operator[](int i) { return d[i]; }
  constexpr const T& operator[](int i) const { return d[i]; }

 private:
  template <class S>
  constexpr void append(int& i, S value) {
    d[i++] = T(value);
  }
  template <class S, int M>
  constexpr void append(int& i, vec<S, M> value) {
    for (int j = 0; j < M; j++)
      d[i++] = T(value.d[j]);
  }
};

template <class T, int N>
struct packed_vec {  // aligned as T
  T d[N];

  packed_vec() = default;
  constexpr packed_vec(vec<T, N> value) : d{} {
    for (int i = 0; i < N; i++)
      d[i] = value.d[i];
  }
  constexpr operator vec<T, N>() const {
    vec<T, N> value;
    for (int i = 0; i < N; i++)
      value.d[i] = d[i];
    return value;
  }
  constexpr T& operator[](int i) { return d[i]; }
  constexpr const T& operator[](int i) const { return d[i]; }
};

template <class T, size_t N>
struct array {
  T elements[N];
  constexpr T& operator[](size_t i) { return elements[i]; }
  constexpr const T& operator[](size_t i) const { return elements[i]; }
  static constexpr size_t size() { return N; }
};

template <class T>
using uniform = T;  // a hint without effect on values
template <class T>
constexpr T make_uniform(T value) {
  return value;
}

#define RUNNER_ELEMENTS(M) \
  M(bool)                  \
  M(char) M(uchar) M(short) M(ushort) M(int) M(uint) M(long) M(ulong) M(half) M(float) M(bfloat)
#define RUNNER_NAMES(T)                   \
  typedef vec<T, 2> T##2;                 \
  typedef vec<T, 3> T##3;                 \
  typedef vec<T, 4> T##4;                 \
  typedef packed_vec<T, 2> packed_##T##2; \
  typedef packed_vec<T, 3> packed_##T##3; \
  typedef packed_vec<T, 4> packed_##T##4;
RUNNER_ELEMENTS(RUNNER_NAMES)
#undef RUNNER_NAMES

// Operators take values, so that an operand in memory is loaded whole. A scalar beside a vector
// takes the vector's element type.
#define RUNNER_OPERATOR(op, R)                                                      \
  template <class T, int N>                                                         \
  constexpr vec<R, N> operator op(vec<T, N> a, vec<T, N> b) {                       \
    vec<R, N> result;                                                               \
    for (int i = 0; i < N; i++)                                                     \
      result.d[i] = R(a.d[i] op b.d[i]);                                            \
    return result;                                                                  \
  }                                                                                 \
  template <class T, int N, class S, class = runner::Require<runner::is_scalar<S>>> \
  constexpr vec<R, N> operator op(vec<T, N> a, S b) {                               \
    return a op vec<T, N>(T(b));                                                    \
  }                                                                                 \
  template <class T, int N, class S, class = runner::Require<runner::is_scalar<S>>> \
  constexpr vec<R, N> operator op(S a, vec<T, N> b) {                               \
    return vec<T, N>(T(a)) op b;                                                    \
  }
#define RUNNER_ASSIGNING(op)                                  \
  RUNNER_OPERATOR(op, T)                                      \
  template <class T, int N, class B>                          \
  constexpr vec<T, N>& operator op## = (vec<T, N> & a, B b) { \
    return a = a op b;                                        \
  }
RUNNER_ASSIGNING(+)
RUNNER_ASSIGNING(-)
RUNNER_ASSIGNING(*)
RUNNER_ASSIGNING(/)
RUNNER_ASSIGNING(%)
RUNNER_ASSIGNING(&)
RUNNER_ASSIGNING(|)
RUNNER_ASSIGNING(^)
RUNNER_ASSIGNING(<<)
RUNNER_ASSIGNING(>>)
RUNNER_OPERATOR(<, bool)
RUNNER_OPERATOR(>, bool)
RUNNER_OPERATOR(<=, bool)
RUNNER_OPERATOR(>=, bool)
RUNNER_OPERATOR(==, bool)
RUNNER_OPERATOR(!=, bool)
RUNNER_OPERATOR(&&, bool)
RUNNER_OPERATOR(||, bool)
#undef RUNNER_ASSIGNING
#undef RUNNER_OPERATOR

#define RUNNER_OPERATOR(op, R)                   \
  template <class T, int N>                      \
  constexpr vec<R, N> operator op(vec<T, N> a) { \
    vec<R, N> result;                            \
    for (int i = 0; i < N; i++)                  \
      result.d[i] = R(op a.d[i]);                \
    return result;                               \
  }
RUNNER_OPERATOR(-, T)
RUNNER_OPERATOR(~, T)
RUNNER_OPERATOR(!, bool)
#undef RUNNER_OPERATOR

}  // namespace metal

// Without `using namespace metal` too, as Apple's headers have it.
#define RUNNER_NAMES(T)       \
  using metal::T##2;          \
  using metal::T##3;          \
  using metal::T##4;          \
  using metal::packed_##T##2; \
  using metal::packed_##T##3; \
  using metal::packed_##T##4;
RUNNER_ELEMENTS(RUNNER_NAMES)
#undef RUNNER_NAMES
#undef RUNNER_ELEMENTS

template <class To, class From>
constexpr To as_type(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs equal sizes");
  if constexpr (__is_trivially_copyable(To) && __is_trivially_copyable(From)) {
    return __builtin_bit_cast(To, from);
  } else {
    To result;
    __builtin_memcpy((void*)&result, (const void*)&from, sizeof(To));
    return result;
  }
}
namespace metal {
using ::as_type;
}
