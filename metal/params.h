// Parameters of the kernels, one plain struct a kernel family, as C++ (csrc/gpu) writes them and
// MSL reads them: 32-bit members only, so that both lay them out alike.
#pragma once

#ifndef __METAL_VERSION__
#include <cstdint>
#endif

#include "delta_net_layout.h"

// What an optional buffer holds, where the kernel finds out at run time.
enum MixbitElement { kAbsent = 0, kFloat = 1, kHalf = 2, kBfloat = 3 };

#define MIXBIT_MAX_PARTS 5

// ---- matvec.metal, qmm.metal --------------------------------------------------------------------

enum {
  kMatvecRows = 4,       // rows of weights that one lane works on
  kMatvecTile = 8,       // rows of x that one decoding of the weights serves, at most
  kMatvecGroups = 2,     // SIMD groups of a threadgroup where x is one row,
  kMatvecTileGroups = 4  // and where it is a tile of several
};

enum {
  kTileRows = 64,     // of x that a threadgroup of qmm works on,
  kTileColumns = 64,  // and of weights, which swiglu splits between gate and up
  kTileThreads = 128
};

struct MatvecPart {
  uint32_t N;
  uint32_t first;   // its threadgroups begin here: along x (matvec), along y (qmm)
  uint32_t format;  // index among the kernel's weight formats
  uint32_t bias;    // MixbitElement
  uint32_t y;       // MixbitElement
};

struct MatvecParams {
  uint32_t K, M;
  uint32_t num_parts;
  uint32_t residual;  // MixbitElement
  float eps;          // of the RMSNorm
  MatvecPart parts[MIXBIT_MAX_PARTS];
};

// ---- experts.metal, gather_qmm.metal, gather_matvec.metal ---------------------------------------

struct RouteParams {
  uint32_t experts, slots;
  uint32_t normalise;
};

struct SortRowsParams {
  uint32_t blocks, M;  // blocks of M rows
  uint32_t experts;
};

// Rows of one expert: order[first …], at most kTileRows. Expert number `experts` has those whose
// index is out of range.
struct RowTile {
  uint32_t expert, first, count;
};

struct GatherParams {
  uint32_t N, K, experts;
  uint32_t slots;     // of a token, each a block of M rows
  uint32_t M, share;  // `share` blocks one after the other have one block of x
  uint32_t y;         // MixbitElement
};

struct MixParams {
  uint32_t values;  // of y for a token
  uint32_t slots;
  uint32_t y;  // MixbitElement
};

// ---- kl_divergence.metal ------------------------------------------------------------------------

enum {
  kVocabularySpan = 1024,  // columns that a threadgroup makes figures of
  kTopLogits = 5,
  kLogitStatistics = 8 + 4 * kTopLogits  // csrc/cpu/kernels.h's LogitTile, in floats
};

struct KlDivergenceHead {
  uint32_t K;
  uint32_t bias;  // MixbitElement
};

struct KlDivergenceParams {
  uint32_t M, vocabulary;
  KlDivergenceHead heads[2];
};

// ---- delta_net.metal, delta_net_chunks.metal ----------------------------------------------------

enum {
  kDeltaThreads = 1024,  // that share the rows of a head's state
  kDeltaSteps = 8,       // that they take in one go, at most
  kKeyRun = 4,           // whose q or k one SIMD group makes
  kKeyGroups = 4,        // SIMD groups of such a threadgroup
  kChunk = 16            // steps that go through the matrix units together
};

// Which optional inputs there are.
enum DeltaNetPresent { kConvState = 1, kRecurrentState = 2, kMask = 4, kLengths = 8 };

struct DeltaNetParams {
  uint32_t T, Hk, Hv, Dk, Dv;
  uint32_t share;                        // Hv / Hk
  uint32_t present;                      // DeltaNetPresent
  uint32_t A_log, dt_bias, norm_weight;  // MixbitElement
  float eps;                             // of the norm
  DeltaNetLayout layout;                 // of qkv, z, a and b
};

// What the steps of a chunk do to each other in one value head: see delta_net_chunks.metal. 16 x 16
// matrices are blocks 00, 10 and 11 of 8 x 8; block 01 is zero.
struct ChunkFactors {
  float T[3][64], P[3][64];
  float start[kChunk];  // decay from the chunk's start through each step
  float end[kChunk];    // and from after it to the chunk's end
  float decay;          // of the whole chunk, less one
  float unused[3];      // keeps it to 16 bytes
};
