// The CPU kernels behind the primitives: plain functions over raw pointers, one table of them per
// instruction set. This is the only header that both the scheduling code and the kernels include.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/elements.h"
#include "delta_net_layout.h"

namespace mixbit::cpu {

// How a weight matrix [N, K] is stored. Packed rows are one contiguous little-endian bit stream, as
// MLX writes them; 32 codes always fill exactly `bits` 32-bit words.
enum class WeightKind {
  dense,   // elements of type `element`
  affine,  // value = scale · code + bias, scale and bias of type `element`, one pair a group
  mxfp4,   // E2M1 codes, one E8M0 scale per 32
  mxfp8,   // E4M3 codes, one E8M0 scale per 32
  nvfp4,   // E2M1 codes, one E4M3 scale per 16
};

struct Weights {
  WeightKind kind;
  int bits;         // packed kinds
  int group_size;   // packed kinds
  Element element;  // of a dense weight, or of affine scales and biases
  const void* data;
  const void* scales;
  const void* biases;
};

// Rows of fp32 activations that the matmul kernels read are padded with zeros to this many values,
// so that the K loop has no tail on their side.
constexpr int kBlock = 32;

static constexpr int round_up(int v, int to) {
  return (v + to - 1) / to * to;
}

// y[m, n] = Σ_k x[m, k] · value(w)[n, k] + bias[n] + residual[m, n], accumulated in fp32 and
// rounded once.
struct Matmul {
  int M, N, K;
  const float* x;  // [M, x_stride], zero from K to round_up(K, kBlock)
  size_t x_stride;
  // For matmul_integers instead of x, as quantize_rows writes them: [M, integer_columns] integers,
  // and per row and group of w their scale and the scaled sum of the integers.
  int x_bits;  // of an integer: 16, or for weights of at most 6 bits 8
  const void* x_codes;
  const float* x_scales;
  const float* x_sums;
  Weights w;
  const void* bias;  // [N] or null
  Element bias_element;
  const void* residual;  // as y lies, or null
  Element residual_element;
  void* y;  // row m, column n is written to y[row(m) · y_stride + n − y_column],
  Element y_element;
  const int* y_rows;  // row(m) = y_rows[m], or m − y_row without it
  size_t y_stride;
  int y_row, y_column;
};

// Rows up to which weights are decoded in registers; above it a block of them is decoded to fp32
// once and reused. Both sum over k in the same order, so a row's bits do not depend on the choice.
constexpr int kDirectRows = 4;

// The same for integer products: above it a panel of codes is unpacked once, for 16 bits of x only.
constexpr int kIntegerDirectRows = 20;

// The integer kernel unpacks 64 codes at a time (two groups of 32, one of 64, half a group of 128)
// and finishes four groups together. Its rows of x are padded to this many values.
constexpr int kUnit = 64;
constexpr int kQuad = 4;
static constexpr int integer_columns(int K, int group) {
  return round_up(K, kQuad * group);
}

// Tile of the reusing kernel: 12 columns x 512 values of fp32 weights are 24 KB, which leaves room
// for four rows of x in a 32 KB L1 cache. 128 rows share one decoding (about 3 % of the work).
constexpr int kPanelColumns = 12;
constexpr int kPanelDepth = 512;
constexpr int kPanelRows = 128;
constexpr int kMaxLanes = 16;  // the most fp32 values of a vector: partial sums of one output
constexpr size_t kPanelScratch =
    size_t(kPanelColumns) * kPanelDepth + size_t(kPanelRows) * kPanelColumns * kMaxLanes;  // floats

// The gated delta rule over T steps, for one value head and rows [row_begin, row_end) of its state:
//   S <- g S;  S <- S + beta (v - S k) kᵀ;  y = S q
struct GatedDelta {
  int B, T, Hk, Hv, Dk, Dv;
  const float* q;         // [B, Hk, T, Dk]
  const float* k;         // [B, Hk, T, Dk]
  const float* v;         // [B, Hv, T, Dv]
  const float* g;         // [B, T, Hv]
  const float* beta;      // [B, T, Hv]
  const bool* mask;       // [B, T] or null; a false step leaves the state alone and writes y = 0
  const float* state_in;  // [B, Hv, Dv, Dk] or null for zeros
  float* state_out;       // same shape; may be state_in unless keep_steps
  bool keep_steps;        // state_out is [B, T, Hv, Dv, Dk], the state after every step
  void* y;                // [B, T, Hv, Dv], or with y_by_head [B, Hv, T, Dv]
  Element y_element;
  bool y_by_head;
};

// Rows of the state that a task walks through all T steps: 32 rows of 128 floats leave half of an
// L1 cache to the keys, which every task of a head reads anew.
constexpr int kStateRows = 32;

constexpr int kMaxTaps = 16;  // of GatedDeltaNet's convolution; the models have 4

// What GatedDeltaNet does around the gated delta rule. Before: a causal depthwise convolution over
// the C = 2 Hk Dk + Hv Dv channels q | k | v, SiLU, and for q and k each head divided by
// √(Σ² + 1e-6), q also by √Dk.
// After: y = RMSNorm(o) · norm_weight · SiLU(z).
struct DeltaNet {
  int B, T, Hk, Hv, Dk, Dv, taps;
  Element element;           // of qkv, conv_state, z and y
  DeltaNetLayout layout;     // of qkv and z
  const void* qkv;           // [B, T, layout.qkv_step]
  const void* conv_state;    // [B, taps − 1, C], the steps before, or null for zeros
  const float* taps_first;   // convolution weight [taps, C]
  const bool* mask;          // [B, T] or null; a false step is zero to the convolution
  float* q;                  // [B, Hk, T, Dk]
  float* k;                  // [B, Hk, T, Dk]
  float* v;                  // [B, Hv, T, Dv]
  const float* o;            // [B, Hv, T, Dv]
  const void* z;             // [B, T, layout.z_step]
  const float* norm_weight;  // [Dv]
  float eps;
  void* y;  // [B, T, Hv, Dv]
};

// Attention input [B, heads, steps, D] with any strides, counted in elements.
struct AttentionInput {
  const void* data;
  int64_t batch_stride, head_stride, step_stride, value_stride;
};

// y[b, t, h] = Σ_s softmax_s(scale q[b, h, t] · k[b, h', s] + mask) v[b, h', s],  h' = h / (H /
// Hk), times the sigmoid of a gate where there is one
struct Attention {
  int B, H, Hk, T, S, D;
  AttentionInput q, k, v;
  AttentionInput gate;  // data null without one
  Element element;      // of q, k, v, gate and y
  float scale;
  bool causal;       // step t sees keys up to t + S − T
  const void* mask;  // broadcast to [B, H, T, S] by its strides, or null
  bool mask_is_bool;
  Element mask_element;
  int64_t mask_strides[4];
  void* y;  // [B, T, H, D], row-contiguous
};

// Keys whose scores are held at a time, and the most query rows of a task: at D = 256 the fp32
// copies of both are 64 KB each, which L2 holds.
constexpr int kKeyBlock = 64;
constexpr int kQueryRows = 64;

// Floats of scratch for a task of `rows` query rows.
static constexpr size_t attention_scratch(int rows, int D) {
  const size_t padded = round_up(D, 2 * kMaxLanes);
  return 2 * (rows + kKeyBlock) * padded + size_t(rows) * (kKeyBlock + 3);
}

// Width of a vocabulary tile: whole panels, and the logits of kPanelRows rows of both models fit
// L2.
constexpr int kVocabularyTile = 32 * kPanelColumns;
constexpr int kTop = 5;  // largest logits that are told of each model

static constexpr int vocabulary_tiles(int vocabulary) {
  return (vocabulary + kVocabularyTile - 1) / kVocabularyTile;
}

// What two rows of logits, p and q, have over one tile of the vocabulary. Sums are over tokens i:
struct LogitTile {
  double max_p, sum_p;  // largest logit; Σ exp(p_i − max_p)
  double max_q, sum_q;
  double forward;                          // Σ exp(p_i − max_p) (p_i − q_i)
  double reverse;                          // Σ exp(q_i − max_q) (q_i − p_i)
  double target_p, target_q;               // logits of the row's target; 0 if it is in another tile
  double top_p[kTop], top_p_tokens[kTop];  // largest first; −∞ and −1 where there are fewer
  double top_q[kTop], top_q_tokens[kTop];
};

constexpr int kLogitFields = sizeof(LogitTile) / sizeof(double);

struct Kernels {
  const char* name;
  // dst[i] = src[i] in fp32, for rows of `count` values written `dst_stride` apart, zero-padded.
  void (*to_float)(const void* src, Element e, int rows, int count, float* dst, int dst_stride);
  // Rows of x become x · weight / √(mean x² + eps), in place. The same bits on every instruction
  // set.
  void (*rms_norm)(float* x, size_t x_stride, int rows, int K, const void* weight, Element e,
                   float eps);
  // Columns [n0, n1) for at most kDirectRows rows starting at m0.
  void (*matmul_direct)(const Matmul&, int m0, int m1, int n0, int n1);
  // The same for up to kPanelRows rows and kPanelColumns columns; scratch of kPanelScratch floats.
  void (*matmul_panel)(const Matmul&, int m0, int m1, int n0, int n1, float* scratch);
  // Rows of x in integers of x_bits for weights of one width and group size, ordered as
  // matmul_integers unpacks them and padded with zeros to integer_columns values and scales.
  void (*quantize_rows)(const float* x, size_t x_stride, int rows, int K, int group, int bits,
                        int x_bits, void* codes, float* scales, float* sums);
  // Any rows and columns of a product with affine weights, from x in integers.
  void (*matmul_integers)(const Matmul&, int m0, int m1, int n0, int n1);
  // The same bits, from integers of 16 bits, for up to kPanelRows rows, which share the decoding of
  // weights; scratch of kPanelScratch floats.
  void (*matmul_int16_panel)(const Matmul&, int m0, int m1, int n0, int n1, float* scratch);
  void (*gated_delta)(const GatedDelta&, int b, int hv, int row_begin, int row_end);
  // Steps [t0, t1) of one head of the convolution's channels: heads are counted q, k, v.
  void (*delta_net_mix)(const DeltaNet&, int b, int head, int t0, int t1);
  // Steps [t0, t1) of the gated norm, over b · T + t.
  void (*delta_net_norm)(const DeltaNet&, int t0, int t1);
  // y[m, n] = SiLU(gate[m, n]) up[m, n], rows of n values; y in rows of y_stride.
  void (*swiglu)(const float* gate, const float* up, int rows, int count, void* y, Element e,
                 size_t y_offset, size_t y_stride);
  // Query steps [step0, step0 + steps) of the heads that share kv_head.
  void (*attention)(const Attention&, int b, int kv_head, int step0, int steps, float* scratch);
  // `count` tokens from `first` on: p's logits and q's, or with `is_difference` p less q.
  void (*logit_tile)(const float* p, const float* second, bool is_difference, int count, int first,
                     int target, LogitTile& out);
};

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels, avx512_kernels;
const Kernels& avx512vnni_kernels();
#elif defined(__aarch64__)
extern const Kernels neon_kernels;
const Kernels& neon_dotprod_kernels();
const Kernels& neon_i8mm_kernels();
#endif

// The table for this processor, chosen once. MIXBIT_ISA names another one (for tests); a name that
// does not exist or cannot run here throws std::invalid_argument.
const Kernels& kernels();

}  // namespace mixbit::cpu
