// metal_type_traits and metal_limits.
#pragma once
#include "scalars.h"

// Every way a type can name an address space when spaces are kept.
#define RUNNER_SPACES(M)                   \
  M(__private)                             \
  M(__local)                               \
  M(__global)                              \
  M(__constant)                            \
  M(__generic)                             \
  M(__attribute__((opencl_global_device))) \
  M(__attribute__((opencl_global_host)))

namespace metal {

template <class T, T V>
struct integral_constant {
  static constexpr T value = V;
  typedef T value_type;
  typedef integral_constant type;
  constexpr operator T() const { return V; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <class A, class B>
struct is_same : bool_constant<runner::same<A, B>> {};
template <class A, class B>
constexpr bool is_same_v = runner::same<A, B>;

template <bool B, class T = void>
using enable_if = runner::If<B, T>;
template <bool B, class T = void>
using enable_if_t = runner::Require<B, T>;

template <bool B, class T, class F>
struct conditional {
  typedef T type;
};
template <class T, class F>
struct conditional<false, T, F> {
  typedef F type;
};
template <bool B, class T, class F>
using conditional_t = typename conditional<B, T, F>::type;

template <class T>
struct remove_const {
  typedef T type;
};
template <class T>
struct remove_const<const T> {
  typedef T type;
};
template <class T>
struct remove_volatile {
  typedef T type;
};
template <class T>
struct remove_volatile<volatile T> {
  typedef T type;
};
template <class T>
struct remove_cv : remove_const<typename remove_volatile<T>::type> {};
template <class T>
using remove_const_t = typename remove_const<T>::type;
template <class T>
using remove_cv_t = typename remove_cv<T>::type;

template <class T>
struct remove_reference {
  typedef T type;
};
template <class T>
struct remove_reference<T&> {
  typedef T type;
};
template <class T>
struct remove_reference<T&&> {
  typedef T type;
};
template <class T>
using remove_reference_t = typename remove_reference<T>::type;

template <class T>
struct remove_addrspace {
  typedef remove_cv_t<T> type;
};
#ifdef __OPENCL_CPP_VERSION__
#define RUNNER_SPACE(SPACE)                \
  template <class T>                       \
  struct remove_addrspace<SPACE T> {       \
    typedef remove_cv_t<T> type;           \
  };                                       \
  template <class T>                       \
  struct remove_addrspace<const SPACE T> { \
    typedef remove_cv_t<T> type;           \
  };
RUNNER_SPACES(RUNNER_SPACE)
#undef RUNNER_SPACE
#endif
template <class T>
using remove_addrspace_t = typename remove_addrspace<T>::type;

template <class T>
struct remove_pointer {
  typedef T type;
};
template <class T>
struct remove_pointer<T*> {
  typedef T type;
};
template <class T>
using remove_pointer_t = typename remove_pointer<T>::type;
template <class T>
struct decay {
  typedef remove_cv_t<remove_reference_t<T>> type;
};
template <class T>
using decay_t = typename decay<T>::type;

template <class A, class B>
constexpr bool is_convertible_v = __is_convertible(A, B);
template <class A, class B>
struct is_convertible : bool_constant<is_convertible_v<A, B>> {};
template <class T>
constexpr bool is_integral_v = __is_integral(T);
template <class T>
struct is_integral : bool_constant<is_integral_v<T>> {};
template <class T>
constexpr bool is_floating_point_v = runner::one_of<remove_cv_t<T>, half, float, bfloat>;
template <class T>
struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <class T>
constexpr bool is_arithmetic_v = runner::is_scalar<remove_cv_t<T>>;
template <class T>
struct is_arithmetic : bool_constant<is_arithmetic_v<T>> {};
template <class T>
constexpr bool is_unsigned_v = __is_unsigned(T);
template <class T>
struct is_unsigned : bool_constant<is_unsigned_v<T>> {};
template <class T>
constexpr bool is_signed_v = is_arithmetic_v<T> && !__is_unsigned(T);
template <class T>
struct is_signed : bool_constant<is_signed_v<T>> {};
template <class T>
constexpr bool is_pointer_v = __is_pointer(T);
template <class T>
struct is_pointer : bool_constant<is_pointer_v<T>> {};
template <class T>
struct is_class : bool_constant<__is_class(T)> {};
template <class T>
struct make_unsigned {
  typedef __make_unsigned(T) type;
};
template <class T>
using make_unsigned_t = typename make_unsigned<T>::type;
template <class T>
struct make_signed {
  typedef __make_signed(T) type;
};
template <class T>
using make_signed_t = typename make_signed<T>::type;

// A name of Apple's library that MLX uses.
template <class...>
struct _disjunction : false_type {};
template <class B>
struct _disjunction<B> : B {};
template <class B, class... Rest>
struct _disjunction<B, Rest...> : conditional_t<B::value, B, _disjunction<Rest...>> {};

template <class T>
constexpr T&& forward(remove_reference_t<T>& value) {
  return static_cast<T&&>(value);
}
template <class T>
constexpr remove_reference_t<T>&& move(T&& value) {
  return static_cast<remove_reference_t<T>&&>(value);
}
template <class T>
T&& declval();

template <class T>
struct numeric_limits;

#define RUNNER_LIMITS(T, LOWEST, HIGHEST, DIGITS)                   \
  template <>                                                       \
  struct numeric_limits<T> {                                        \
    static constexpr bool is_specialized = true, is_integer = true; \
    static constexpr int digits = DIGITS;                           \
    static constexpr T min() { return LOWEST; }                     \
    static constexpr T lowest() { return LOWEST; }                  \
    static constexpr T max() { return HIGHEST; }                    \
    static constexpr T infinity() { return 0; }                     \
    static constexpr T quiet_NaN() { return 0; }                    \
  };
RUNNER_LIMITS(bool, false, true, 1)
RUNNER_LIMITS(char, -128, 127, 7)
RUNNER_LIMITS(int8_t, -128, 127, 7)
RUNNER_LIMITS(uint8_t, 0, 255, 8)
RUNNER_LIMITS(short, -32768, 32767, 15)
RUNNER_LIMITS(ushort, 0, 65535, 16)
RUNNER_LIMITS(int, INT_MIN, INT_MAX, 31)
RUNNER_LIMITS(uint, 0, UINT_MAX, 32)
RUNNER_LIMITS(long, (-9223372036854775807L - 1), 9223372036854775807L, 63)
RUNNER_LIMITS(ulong, 0, 18446744073709551615UL, 64)
#undef RUNNER_LIMITS

#define RUNNER_LIMITS(T, BITS, MIN, MAX, EPSILON, INF, QUIET, DIGITS, DIGITS10)        \
  template <>                                                                          \
  struct numeric_limits<T> {                                                           \
    static constexpr bool is_specialized = true, is_integer = false, is_signed = true; \
    static constexpr int digits = DIGITS, digits10 = DIGITS10;                         \
    static constexpr T of(BITS bits) { return __builtin_bit_cast(T, bits); }           \
    static constexpr T min() { return of(MIN); }                                       \
    static constexpr T max() { return of(MAX); }                                       \
    static constexpr T lowest() { return -of(MAX); }                                   \
    static constexpr T epsilon() { return of(EPSILON); }                               \
    static constexpr T infinity() { return of(INF); }                                  \
    static constexpr T quiet_NaN() { return of(QUIET); }                               \
    static constexpr T signaling_NaN() { return of(QUIET); }                           \
    static constexpr T denorm_min() { return of(1); }                                  \
  };
RUNNER_LIMITS(float, uint32_t, 0x00800000, 0x7f7fffff, 0x34000000, 0x7f800000, 0x7fc00000, 24, 6)
RUNNER_LIMITS(half, uint16_t, 0x0400, 0x7bff, 0x1400, 0x7c00, 0x7e00, 11, 3)
RUNNER_LIMITS(bfloat, uint16_t, 0x0080, 0x7f7f, 0x3c00, 0x7f80, 0x7fc0, 8, 2)
#undef RUNNER_LIMITS

}  // namespace metal
