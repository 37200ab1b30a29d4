// Vectors of eight floats, and the products and elementwise functions that all passes are made of.
//
// Layouts. *Feature-major*: the activations of 16 tokens lie as [feature][16], one panel after the other. A product
// W X then reads W only as scalars to broadcast, row by row or column by column as it lies, so that no weight is ever
// packed or transposed. *Token-major*: [token][feature], as torch has it, with a row length of your choice.
//
// All of it is GCC/Clang vector extensions, without intrinsics. No sum depends on where a buffer lies or on how many
// rows are computed at once: a row has the same bits whatever its neighbors are.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#define INLINE static inline __attribute__((always_inline))
// Within one file, vectors are always passed in registers: GCC's note on passing them between files does not apply.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace prequential {

typedef float v8 __attribute__((vector_size(32)));
typedef float v8_unaligned __attribute__((vector_size(32), aligned(4)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef int32_t i8_unaligned __attribute__((vector_size(32), aligned(4)));

constexpr int PANEL = 16;  // tokens side by side

INLINE v8 load(const float *p) { return *(const v8_unaligned *)p; }
INLINE i8 load(const int32_t *p) { return *(const i8_unaligned *)p; }
INLINE void store(float *p, v8 x) { *(v8_unaligned *)p = x; }
INLINE void store2(float *p, v8 a, v8 b) { store(p, a), store(p + 8, b); }
INLINE void add2(float *p, v8 a, v8 b) { store(p, load(p) + a), store(p + 8, load(p + 8) + b); }
INLINE v8 fill(float x) { return v8{x, x, x, x, x, x, x, x}; }
INLINE v8 select(i8 where, v8 a, v8 b) { return (v8)(((i8)a & where) | ((i8)b & ~where)); }
// of a NaN in b, all three give NaN
INLINE v8 larger(v8 a, v8 b) { return a > b ? a : b; }
INLINE v8 smaller(v8 a, v8 b) { return a < b ? a : b; }
INLINE float larger(float a, float b) { return a > b ? a : b; }
INLINE long ceil_to(long n, long step) { return (n + step - 1) / step * step; }
INLINE float sum(v8 a) { return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])); }
INLINE float largest(v8 a) {
  float m = a[0];
  for (int i = 1; i < 8; i++) m = larger(m, a[i]);
  return m;
}
INLINE v8 inverse_root(v8 a) {
  for (int i = 0; i < 8; i++) a[i] = 1.0f / __builtin_sqrtf(a[i]);
  return a;
}

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, i8{__VA_ARGS__})
#endif

// While it lives, denormal numbers count as 0: they are slow, and only so near 0 that nothing depends on them.
struct NoDenormals {
#if defined(__SSE__)
  unsigned before = __builtin_ia32_stmxcsr();
  NoDenormals() { __builtin_ia32_ldmxcsr(before | 0x8040); }
  ~NoDenormals() { __builtin_ia32_ldmxcsr(before); }
#else
  NoDenormals() {}
  ~NoDenormals() {}
#endif
};

// e^x, to a relative error of about 1e-7. 0 below -87.3; NaN stays NaN.
INLINE v8 exp8(v8 x) {
  const v8 lowest = fill(-87.3f);
  const i8 tiny = x < lowest;
  x = smaller(fill(88.3f), larger(lowest, x));
  const v8 magic = fill(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
  const v8 rounded = x * 1.44269504f + magic;
  const v8 n = rounded - magic;
  const v8 f = x - n * 0.693145752f - n * 1.42860677e-6f;
  v8 p = fill(1.9875691500e-4f);
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  const v8 power = (v8)(((i8)rounded + 127) << 23);
  return (v8)((i8)(p * power) & ~tiny);
}

// The natural logarithm of positive normal numbers, to about 1e-7 of the larger of 1 and itself; NaN stays NaN.
INLINE v8 log8(v8 x) {
  const i8 bits = (i8)x;
  i8 exponent = ((bits >> 23) & 0xff) - 126;
  v8 m = (v8)((bits & 0x007fffff) | 0x3f000000);  // in [0.5, 1)
  const i8 low = m < fill(0.707106781f);
  exponent += low;  // less 1
  m = select(low, m + m, m) - 1.0f;
  v8 p = fill(7.0376836292e-2f);
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const v8 e = __builtin_convertvector(exponent, v8);
  const v8 square = m * m;
  v8 y = p * m * square + e * -2.12194440e-4f - square * 0.5f;
  y = m + y + e * 0.693359375f;
  return select(x == x, select(x > fill(0.0f), y, fill(-INFINITY)), x);
}

// gelu by erf (Abramowitz and Stegun 7.1.26, absolute error 1.5e-7), and its slope
INLINE void gelu8(v8 x, v8 &y, v8 &slope) {
  const v8 z = x * 0.70710678f;
  const i8 negative = z < fill(0.0f);
  const v8 a = select(negative, -z, z);
  const v8 t = 1.0f / (a * 0.3275911f + 1.0f);
  const v8 e = exp8(-(z * z));
  const v8 tail =
      ((((t * 1.061405429f - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t * e * 0.5f;
  const v8 cdf = select(negative, tail, 1.0f - tail);
  y = x * cdf;
  slope = cdf + x * e * 0.39894228f;
}

// A row of a panel, 16 floats: one vector where the CPU has registers of that size, otherwise two. And how many rows, of
// how many panels, a product computes at a time: panels share what is read of the other factor, and all sums stay in
// registers.
#if defined(__AVX512F__)
typedef float v16 __attribute__((vector_size(64)));
typedef float v16_unaligned __attribute__((vector_size(64), aligned(4)));
constexpr int ROWS = 8, PANELS = 2;  // 16 sums: four more rows gain nothing
INLINE void load(const float *p, v16 &x) { x = *(const v16_unaligned *)p; }
INLINE void store(float *p, v16 x) { *(v16_unaligned *)p = x; }
INLINE void add_product(float a, v16 b, v16 &sum) { sum += a * b; }
// number by number: behind a pointer to a half, GCC would keep the whole vector in memory
INLINE v8 low_half(v16 x) { return v8{x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]}; }
INLINE v8 high_half(v16 x) { return v8{x[8], x[9], x[10], x[11], x[12], x[13], x[14], x[15]}; }
#else
struct v16 {
  v8 low, high;
};
constexpr int ROWS = 6, PANELS = 1;
INLINE void load(const float *p, v16 &x) { x = {load(p), load(p + 8)}; }
INLINE void store(float *p, v16 x) { store2(p, x.low, x.high); }
INLINE void add_product(float a, v16 b, v16 &sum) { sum.low += a * b.low, sum.high += a * b.high; }
INLINE v8 low_half(v16 x) { return x.low; }
INLINE v8 high_half(v16 x) { return x.high; }
#endif
INLINE void load(const float *p, v8 &x) { x = load(p); }
INLINE void add_product(float a, v8 b, v8 &sum) { sum += a * b; }

// acc[r][v] += sum over k of A(r, k) B[k][v], of R rows and V vectors, which are `apart` from each other. A is row-major
// with this stride, or column-major.
template <int R, bool COLUMNS, int V, class Vector>
INLINE void multiply_tile(int K, const float *A, long stride, const float *B, long b_stride, Vector (&acc)[R][V],
                          long apart = 0) {
  for (int k = 0; k < K; k++) {
    Vector b[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) load(B + v * apart, b[v]);
    B += b_stride;
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const float a = COLUMNS ? A[r] : A[r * stride];
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) add_product(a, b[v], acc[r][v]);
    }
    A += COLUMNS ? stride : 1;
  }
}

// A number of rows or panels, as a type: the loops over them are unrolled.
template <int N> struct Rows {
  static constexpr int value = N;
};
// f(how many rows, the first of them): MOST at a time, the last ones 4, 2 or 1.
template <int MOST, class F> INLINE void in_tiles(int begin, int end, F f) {
  int i = begin;
  for (; end - i >= MOST && end - i != MOST + 2; i += MOST) f(Rows<MOST>(), i);
  for (; end - i >= 4; i += 4) f(Rows<4>(), i);
  for (; end - i >= 2; i += 2) f(Rows<2>(), i);
  for (; end - i >= 1; i += 1) f(Rows<1>(), i);
}

// f(how many panels, the first of them): PANELS at a time, then one by one; numbers of panels are `step` apart.
template <class F> INLINE void in_panels(int begin, int end, int step, F f) {
  int i = begin;
  if constexpr (PANELS > 1)
    for (; i + step < end; i += 2 * step) f(Rows<2>(), i);
  for (; i < end; i += step) f(Rows<1>(), i);
}

// f(row, two vectors) for each of M rows of A B, where A is (M, K) and B [K][16].
// With COLUMNS, A lies transposed: A(r, k) is A[k * stride + r]. With `half`, only the first vector is computed.
template <bool COLUMNS, class F>
INLINE void multiply(int M, int K, const float *A, long stride, const float *B, bool half, F f) {
  if (half) {
    in_tiles<12>(0, M, [&](auto rows, int i) __attribute__((always_inline)) {
      constexpr int R = decltype(rows)::value;
      v8 acc[R][1] = {};
      multiply_tile<R, COLUMNS>(K, A + i * (COLUMNS ? 1 : stride), stride, B, PANEL, acc);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) f(i + r, acc[r][0], fill(0.0f));
    });
    return;
  }
  in_tiles<ROWS>(0, M, [&](auto rows, int i) __attribute__((always_inline)) {
    constexpr int R = decltype(rows)::value;
    v16 acc[R][1] = {};
    multiply_tile<R, COLUMNS>(K, A + i * (COLUMNS ? 1 : stride), stride, B, PANEL, acc);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) f(i + r, low_half(acc[r][0]), high_half(acc[r][0]));
  });
}

// C [M][16] = A B, where A lies transposed and K is large: both are gone through in parts that stay in the cache.
// The order of each sum is that of `multiply`.
INLINE void multiply_long_columns(int M, int K, const float *A, long stride, const float *B, bool half, float *C) {
  constexpr int PART = 64;
  auto part = [&](auto zero, auto rows, int k, int i) __attribute__((always_inline)) {
    constexpr int R = decltype(rows)::value;
    decltype(zero) acc[R][1] = {};
#pragma GCC unroll 12
    for (int r = 0; r < R && k; r++) load(C + (i + r) * PANEL, acc[r][0]);
    multiply_tile<R, true>(K - k < PART ? K - k : PART, A + k * stride + i, stride, B + (long)k * PANEL, PANEL, acc);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) store(C + (i + r) * PANEL, acc[r][0]);
  };
  if (half)  // the other half is 0
    for (int i = 0; i < M; i++) store(C + i * PANEL + 8, fill(0.0f));
  for (int k = 0; k == 0 || k < K; k += PART)
    if (half)
      in_tiles<12>(0, M, [&](auto rows, int i) __attribute__((always_inline)) { part(v8(), rows, k, i); });
    else
      in_tiles<ROWS>(0, M, [&](auto rows, int i) __attribute__((always_inline)) { part(v16(), rows, k, i); });
}

// `multiply` on several panels B [panel][K][16]: f(panel, row, two vectors). Each part of A serves two panels at a time.
// With `half`, that is so of the last panel.
template <bool COLUMNS, class F>
INLINE void multiply_panels(int M, int K, const float *A, long stride, const float *B, int panels, bool half, F f) {
  const int whole = panels - (half && panels);
  const long size = (long)K * PANEL;
  for (int first = 0; first < whole; first += 2) {
    const int last = first + 2 < whole ? first + 2 : whole;
    in_tiles<ROWS>(0, M, [&](auto rows, int i) __attribute__((always_inline)) {
      constexpr int R = decltype(rows)::value;
      in_panels(first, last, 1, [&](auto panels, int p) __attribute__((always_inline)) {
        constexpr int V = decltype(panels)::value;
        v16 acc[R][V] = {};
        multiply_tile<R, COLUMNS>(K, A + i * (COLUMNS ? 1 : stride), stride, B + p * size, PANEL, acc, size);
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
#pragma GCC unroll 12
          for (int r = 0; r < R; r++) f(p + v, i + r, low_half(acc[r][v]), high_half(acc[r][v]));
      });
    });
  }
  if (whole < panels)
    in_tiles<12>(0, M, [&](auto rows, int i) __attribute__((always_inline)) {
      constexpr int R = decltype(rows)::value;
      v8 acc[R][1] = {};
      multiply_tile<R, COLUMNS>(K, A + i * (COLUMNS ? 1 : stride), stride, B + whole * size, PANEL, acc);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) f(whole, i + r, acc[r][0], fill(0.0f));
    });
}

// A product whose second factor is token-major: adds to C (M, N) the sum over a panel's tokens of A[m][t] B[t][n].
// Rows of B and C are at least N rounded up to 16 long.
INLINE void multiply_tokens(int M, int N, int tokens, const float *A, const float *B, long b_stride, float *C,
                            long c_stride) {
  in_panels(0, N, PANEL, [&](auto panels, int j) __attribute__((always_inline)) {
    in_tiles<ROWS>(0, M, [&](auto rows, int i) __attribute__((always_inline)) {
      constexpr int V = decltype(panels)::value, R = decltype(rows)::value;
      v16 acc[R][V] = {};
      multiply_tile<R, false>(tokens, A + (long)i * PANEL, PANEL, B + j, b_stride, acc, PANEL);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
          add2(C + (i + r) * c_stride + j + v * PANEL, low_half(acc[r][v]), high_half(acc[r][v]));
    });
  });
}

INLINE void transpose(v8 (&x)[8]) {
  v8 y[8];
  for (int i = 0; i < 8; i += 2) {
    y[i] = SHUFFLE(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    y[i + 1] = SHUFFLE(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int g = 0; g < 8; g += 4)
    for (int i = 0; i < 2; i++) {
      x[g + 2 * i] = SHUFFLE(y[g + i], y[g + 2 + i], 0, 1, 8, 9, 4, 5, 12, 13);
      x[g + 2 * i + 1] = SHUFFLE(y[g + i], y[g + 2 + i], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int i = 0; i < 4; i++) {
    y[i] = SHUFFLE(x[i], x[4 + i], 0, 1, 2, 3, 8, 9, 10, 11);
    y[4 + i] = SHUFFLE(x[i], x[4 + i], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int i = 0; i < 8; i++) x[i] = y[i];
}

// [rows][16] to token-major (16, rows)
INLINE void to_tokens(const float *from, int rows, float *to, long to_stride) {
  int r = 0;
  for (; r + 8 <= rows; r += 8)
    for (int t = 0; t < PANEL; t += 8) {
      v8 x[8];
      for (int i = 0; i < 8; i++) x[i] = load(from + (r + i) * PANEL + t);
      transpose(x);
      for (int i = 0; i < 8; i++) store(to + (t + i) * to_stride + r, x[i]);
    }
  for (; r < rows; r++)
    for (int t = 0; t < PANEL; t++) to[t * to_stride + r] = from[r * PANEL + t];
}

// token-major (16, rows) to [rows][16]; of fewer than 16 tokens, the others are 0
INLINE void from_tokens(const float *from, long from_stride, int tokens, int rows, float *to) {
  int r = 0;
  if (tokens == PANEL)
    for (; r + 8 <= rows; r += 8)
      for (int t = 0; t < PANEL; t += 8) {
        v8 x[8];
        for (int i = 0; i < 8; i++) x[i] = load(from + (t + i) * from_stride + r);
        transpose(x);
        for (int i = 0; i < 8; i++) store(to + (r + i) * PANEL + t, x[i]);
      }
  for (; r < rows; r++)
    for (int t = 0; t < PANEL; t++) to[r * PANEL + t] = t < tokens ? from[t * from_stride + r] : 0.0f;
}

// y = W x, of M rows and K columns, rows `stride` apart. Eight rows at a time, each in eight sums of its own.
INLINE void multiply_vector(int M, int K, const float *W, long stride, const float *x, float *y) {
  const int whole = K & ~7, tail = K - whole;
  // the last columns: eight numbers that end with the row, those that were counted already times 0
  v8 x_tail = fill(0.0f);
  const bool overlap = K >= 8;
  for (int i = 0; i < tail; i++) x_tail[overlap ? 8 - tail + i : i] = x[whole + i];
  auto load_tail = [&](const float *row) __attribute__((always_inline)) {
    if (overlap) return load(row + K - 8);
    v8 w = fill(0.0f);
    for (int i = 0; i < tail; i++) w[i] = row[i];
    return w;
  };
  int i = 0;
  for (; i + 8 <= M; i += 8) {
    v8 a[8] = {};
    const float *w = W + i * stride;
    for (int k = 0; k < whole; k += 8) {
      const v8 xk = load(x + k);
#pragma GCC unroll 8
      for (int r = 0; r < 8; r++) a[r] += load(w + r * stride + k) * xk;
    }
    if (tail)
      for (int r = 0; r < 8; r++) a[r] += load_tail(w + r * stride) * x_tail;
    v8 b[4], c[2];  // the sums of all eight, in the order of `sum`
    for (int r = 0; r < 4; r++)
      b[r] = SHUFFLE(a[2 * r], a[2 * r + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
             SHUFFLE(a[2 * r], a[2 * r + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    for (int r = 0; r < 2; r++)
      c[r] = SHUFFLE(b[2 * r], b[2 * r + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
             SHUFFLE(b[2 * r], b[2 * r + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    store(y + i, SHUFFLE(c[0], c[1], 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(c[0], c[1], 4, 5, 6, 7, 12, 13, 14, 15));
  }
  for (; i < M; i++) {
    v8 a = fill(0.0f);
    const float *w = W + i * stride;
    for (int k = 0; k < whole; k += 8) a += load(w + k) * load(x + k);
    if (tail) a += load_tail(w) * x_tail;
    y[i] = sum(a);
  }
}

// The sum of x * y, in eight sums and then those.
INLINE float dot(int n, const float *x, const float *y) {
  v8 a = fill(0.0f);
  int i = 0;
  for (; i + 8 <= n; i += 8) a += load(x + i) * load(y + i);
  float s = sum(a);
  for (; i < n; i++) s += x[i] * y[i];
  return s;
}

// Layer norm of a panel [D][16]: `hat` before weight and bias, `out` behind them
INLINE void layer_norm(int D, const float *x, const float *weight, const float *bias, float *hat, float *out,
                       float *inverse_std) {
  for (int t = 0; t < PANEL; t += 8) {
    v8 total = fill(0.0f), squares = fill(0.0f);
    for (int d = 0; d < D; d++) total += load(x + d * PANEL + t);
    const v8 mean = total / (float)D;
    for (int d = 0; d < D; d++) {
      const v8 y = load(x + d * PANEL + t) - mean;
      squares += y * y;
    }
    const v8 r = inverse_root(squares / (float)D + 1e-5f);
    store(inverse_std + t, r);
    for (int d = 0; d < D; d++) {
      const v8 y = (load(x + d * PANEL + t) - mean) * r;
      store(hat + d * PANEL + t, y);
      store(out + d * PANEL + t, y * weight[d] + bias[d]);
    }
  }
}

// Its gradient: adds to d_x, and to those of weight and bias
INLINE void layer_norm_backward(int D, const float *d_out, const float *hat, const float *weight,
                                const float *inverse_std, float *d_x, float *d_weight, float *d_bias) {
  for (int d = 0; d < D; d++) {
    const v8 g0 = load(d_out + d * PANEL), g1 = load(d_out + d * PANEL + 8);
    d_weight[d] += sum(g0 * load(hat + d * PANEL) + g1 * load(hat + d * PANEL + 8));
    d_bias[d] += sum(g0 + g1);
  }
  for (int t = 0; t < PANEL; t += 8) {
    v8 mean = fill(0.0f), along = fill(0.0f);
    for (int d = 0; d < D; d++) {
      const v8 g = load(d_out + d * PANEL + t) * weight[d];
      mean += g;
      along += g * load(hat + d * PANEL + t);
    }
    mean /= (float)D, along /= (float)D;
    const v8 r = load(inverse_std + t);
    for (int d = 0; d < D; d++) {
      const v8 g = load(d_out + d * PANEL + t) * weight[d];
      float *to = d_x + d * PANEL + t;
      store(to, load(to) + r * (g - mean - load(hat + d * PANEL + t) * along));
    }
  }
}

// Layer norm of one token (D)
INLINE void layer_norm_one(int D, const float *x, const float *weight, const float *bias, float *out) {
  v8 total = fill(0.0f), squares = fill(0.0f);
  int d = 0;
  for (; d + 8 <= D; d += 8) total += load(x + d);
  float s = sum(total), q;
  for (; d < D; d++) s += x[d];
  const float mean = s / D;
  for (d = 0; d + 8 <= D; d += 8) {
    const v8 y = load(x + d) - mean;
    squares += y * y;
  }
  for (q = sum(squares); d < D; d++) q += (x[d] - mean) * (x[d] - mean);
  const float r = 1.0f / __builtin_sqrtf(q / D + 1e-5f);
  for (d = 0; d < D; d++) out[d] = (x[d] - mean) * r * weight[d] + bias[d];
}

}  // namespace prequential
