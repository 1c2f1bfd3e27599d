// Members xy, zyx, xxyw ... of a vector of the width that RUNNER_THIRD and RUNNER_FOURTH select.
// They are properties, which a compiler reads far faster than proxy classes: `v.xy` is a call of
// get_xy, `v.xy = a` one of put_xy. Included inside of the vectors' structs.

#define RUNNER_LETTERS_1(M, ...) \
  M(x, 0, __VA_ARGS__)           \
  M(y, 1, __VA_ARGS__) RUNNER_THIRD(M(z, 2, __VA_ARGS__)) RUNNER_FOURTH(M(w, 3, __VA_ARGS__))
#define RUNNER_LETTERS_2(M, ...) \
  M(x, 0, __VA_ARGS__)           \
  M(y, 1, __VA_ARGS__) RUNNER_THIRD(M(z, 2, __VA_ARGS__)) RUNNER_FOURTH(M(w, 3, __VA_ARGS__))
#define RUNNER_LETTERS_3(M, ...) \
  M(x, 0, __VA_ARGS__)           \
  M(y, 1, __VA_ARGS__) RUNNER_THIRD(M(z, 2, __VA_ARGS__)) RUNNER_FOURTH(M(w, 3, __VA_ARGS__))
#define RUNNER_LETTERS_4(M, ...) \
  M(x, 0, __VA_ARGS__)           \
  M(y, 1, __VA_ARGS__) RUNNER_THIRD(M(z, 2, __VA_ARGS__)) RUNNER_FOURTH(M(w, 3, __VA_ARGS__))

#define RUNNER_MEMBER(NAME, COUNT, ...)                       \
  METAL_FUNC constexpr vec<T, COUNT> get_##NAME() const {     \
    return runner::take<T, COUNT>(d, __VA_ARGS__);            \
  }                                                           \
  METAL_FUNC constexpr void put_##NAME(vec<T, COUNT> value) { \
    runner::put<T, COUNT>(d, value, __VA_ARGS__);             \
  }                                                           \
  __declspec(property(get = get_##NAME, put = put_##NAME)) vec<T, COUNT> NAME;

#define RUNNER_PAIR(a, i, b, j, ...) RUNNER_MEMBER(a##b, 2, i, j)
#define RUNNER_TRIPLE(a, i, b, j, c, k, ...) RUNNER_MEMBER(a##b##c, 3, i, j, k)
#define RUNNER_FOUR(a, i, b, j, c, k, d, l, ...) RUNNER_MEMBER(a##b##c##d, 4, i, j, k, l)

#define RUNNER_PAIRS(b, j, ...) RUNNER_LETTERS_2(RUNNER_PAIR, b, j)
#define RUNNER_TRIPLES(c, k, ...) RUNNER_LETTERS_2(RUNNER_TRIPLES_2, c, k)
#define RUNNER_TRIPLES_2(b, j, ...) RUNNER_LETTERS_3(RUNNER_TRIPLE, b, j, __VA_ARGS__)
#define RUNNER_FOURS(d, l, ...) RUNNER_LETTERS_2(RUNNER_FOURS_2, d, l)
#define RUNNER_FOURS_2(c, k, ...) RUNNER_LETTERS_3(RUNNER_FOURS_3, c, k, __VA_ARGS__)
#define RUNNER_FOURS_3(b, j, ...) RUNNER_LETTERS_4(RUNNER_FOUR, b, j, __VA_ARGS__)

RUNNER_LETTERS_1(RUNNER_PAIRS)
RUNNER_LETTERS_1(RUNNER_TRIPLES)
RUNNER_LETTERS_1(RUNNER_FOURS)

#undef RUNNER_LETTERS_1
#undef RUNNER_LETTERS_2
#undef RUNNER_LETTERS_3
#undef RUNNER_LETTERS_4
#undef RUNNER_MEMBER
#undef RUNNER_PAIR
#undef RUNNER_TRIPLE
#undef RUNNER_FOUR
#undef RUNNER_PAIRS
#undef RUNNER_TRIPLES
#undef RUNNER_TRIPLES_2
#undef RUNNER_FOURS
#undef RUNNER_FOURS_2
#undef RUNNER_FOURS_3
#undef RUNNER_THIRD
#undef RUNNER_FOURTH
