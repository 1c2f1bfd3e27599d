// Weight rows in blocks of 32 values, for every way of storing them.
//
// Blocks. 32 codes of b bits are exactly b aligned words, whatever b is, so no byte is read twice
// and none alone. A lane takes one block of each of several neighbouring rows. Lanes that have
// blocks of one group share the reading of its scale and bias: one lane reads each, and they swap.
//
// Codes become floats without conversions, and with one shift a word. A window is up to 23 bits of
// a word under the exponent of 2^23: a float whose mantissa is several codes side by side. Masking
// all but the code at bit o leaves 2^23 + 2^o · code, so an AND and a subtraction make 2^o · code
// of it, exactly. The factor 2^-o goes into x, which all rows share; powers of two change no bit of
// the products. A code that goes on in the next word is put together from two such floats.
//
// A format F has
//   Rows               a lane's view of the matrix, from one row on
//   Block, Scale       what one block stores: its values, and the scales of its groups
//   Digits, open       the block made ready for digit()
//   load, scale        read them from block `step` of the lane in row r; zeros unless `on`.
//                      `ragged`: K is not a multiple of 32, the last block has fewer values
//   digit(d, s, j)     value j of the block, up to finish() and factor(j)
//   factor(j)          what x's value j is multiplied with
//   finish(s, dot, x_sum, sum)
//                      sum + Σ value · x, with dot = Σ digit · factor · x and x_sum = Σ x
#pragma once

#include <metal_stdlib>

#include "elements.h"

using namespace metal;

constant constexpr short kBlock = 32;  // values
constant constexpr short kLanes = 16;  // that share a row: half a SIMD group

// The arrays of a weight [N, K].
struct Matrix {
  const device uchar* w;
  const device uchar* scales;
  const device uchar* biases;
};

// Where a lane begins: its first row, and its column of blocks, which is its number among kLanes.
// Block `step` of the lane is block kLanes · step + column of the row.
struct Place {
  uint row;
  ushort lane, column;

  METAL_FUNC Place(uint row, ushort lane) : row(row), lane(lane), column(lane % kLanes) {}
};

// n words, read in as few pieces as their alignment allows.
template <short n>
struct alignas(n % 4 == 0   ? 16
               : n % 2 == 0 ? 8
                            : 4) Words {
  uint w[n];
};

template <typename T>
METAL_FUNC T load_if(bool on, const device T* p) {
  T value = {};
  if (on) {
    value = *p;
  }
  return value;
}

// ---- affine: value = scale · code + bias --------------------------------------------------------

template <short bits, short group, typename S>
struct Affine {
  using Block = Words<bits>;
  struct Digits {
    uint low[bits], high[bits];
  };
  struct Scale {
    float scale, bias;
  };

  struct Rows {
    const device Block* codes;
    const device S* scales;
    const device S* biases;
    uint blocks, groups;  // of a row
    ushort lane, share;   // share: the lane's number among those of its group

    METAL_FUNC Rows(Matrix m, Place at, uint K) : blocks(K / kBlock), groups(K / group) {
      codes = (const device Block*)m.w + size_t(at.row) * blocks + at.column;
      const size_t first = size_t(at.row) * groups + at.column / kSharing;
      scales = (const device S*)m.scales + first;
      biases = (const device S*)m.biases + first;
      lane = at.lane;
      share = at.column % kSharing;
    }
  };

  template <bool ragged>
  static METAL_FUNC Block load(thread const Rows& rows, short r, uint step, bool on) {
    return load_if(on, rows.codes + (r * rows.blocks + step * kLanes));
  }

  static METAL_FUNC Scale scale(thread const Rows& rows, short r, uint step, bool on) {
    const uint at = r * rows.groups + step * (kLanes / kSharing);
    if (kSharing == 1) {
      return {to_float(load_if(on, rows.scales + at)), to_float(load_if(on, rows.biases + at))};
    }
    const device S* own = rows.share == 0 ? rows.scales : rows.biases;
    const float value = to_float(load_if(on && rows.share < 2, own + at));
    const ushort first = rows.lane - rows.share;
    return {simd_shuffle(value, first), simd_shuffle(value, ushort(first + 1))};
  }

  // The windows are made here, once, lest a compiler make them anew for each code.
  static METAL_FUNC Digits open(thread const Block& block) {
    Digits digits;
    UNROLL for (short i = 0; i < bits; ++i) {
      digits.low[i] = (block.w[i] & ((1u << kWindow) - 1)) | kExponent;
      digits.high[i] = block.w[i] >> high_start(i) | kExponent;
    }
    return digits;
  }

  static METAL_FUNC float digit(thread const Digits& d, Scale, short j) {
    const short word = j * bits / 32, start = j * bits % 32;
    if (start + bits <= 32) {
      return digit(d, word, start, bits);
    }
    const short here = 32 - start;  // bits; the others begin the next word
    return fma(digit(d, word + 1, 0, bits - here), float(1 << (offset(word, start) + here)),
               digit(d, word, start, here));
  }

  static METAL_FUNC float factor(short j) {
    return as_type<float>(uint(127 - offset(j * bits / 32, j * bits % 32)) << 23);
  }

  static METAL_FUNC float finish(Scale s, float dot, float x_sum, float sum) {
    return fma(s.scale, dot, fma(s.bias, x_sum, sum));
  }

 private:
  static constexpr constant short kSharing = group / kBlock;  // lanes
  static constexpr constant short kWindow = 23;               // bits
  static constexpr constant uint kExponent = 0x4b000000;      // as a float 2^23

  // A word has two windows: the codes that end within its first 23 bits, and the rest, from here:
  static METAL_FUNC short high_start(short word) {
    const short first = (bits - word * 32 % bits) % bits;  // the first code that begins in the word
    return first + ((kWindow - bits - first) / bits + 1) * bits;
  }

  static METAL_FUNC short offset(short word, short start) {
    return start < high_start(word) ? start : start - high_start(word);
  }

  // The `count` bits of a word from `start` on, times 2^offset.
  static METAL_FUNC float digit(thread const Digits& d, short word, short start, short count) {
    const uint window = start < high_start(word) ? d.low[word] : d.high[word];
    const uint mask = ((1u << count) - 1) << offset(word, start);
    return as_type<float>(window & (mask | 0xff800000)) - as_type<float>(kExponent);
  }
};

// ---- floats of four and eight bits --------------------------------------------------------------
// E2M1 and E4M3 are half floats with a shorter exponent and mantissa: with their fields where those
// of a half float are, they are too small by 2^14 and 2^8. A word makes two halves at a time.

METAL_FUNC float e2m1_digit(uint word, short j) {  // j of the word's eight
  const uint placed = j % 4 == 3 ? word : word << (12 - j % 4 * 4);
  const half2 pair = as_type<half2>((placed & 0x80008000) | (placed >> 3 & 0x0e000e00));
  return float(j < 4 ? pair.x : pair.y);
}

METAL_FUNC float e4m3_digit(uint word, short j) {  // j of the word's four
  const uint placed = j % 2 == 1 ? word : word << 8;
  const half2 pair = as_type<half2>((placed & 0x80008000) | (placed >> 1 & 0x3f803f80));
  return float(j < 2 ? pair.x : pair.y);
}

METAL_FUNC float from_e4m3(uchar code) {
  return 256.0f * e4m3_digit(code, 0);
}

// An exponent alone; 0 stands for 2^-127.
METAL_FUNC float from_e8m0(uchar code) {
  return as_type<float>(code == 0 ? 0x00400000u : uint(code) << 23);
}

// MXFP4 and MXFP8: one E8M0 scale a block.
template <short bits>
struct Mxfp {
  using Block = Words<bits>;
  using Digits = Block;
  using Scale = float;

  struct Rows {
    const device Block* codes;
    const device uchar* scales;
    uint blocks;  // of a row

    METAL_FUNC Rows(Matrix m, Place at, uint K) : blocks(K / kBlock) {
      const size_t first = size_t(at.row) * blocks + at.column;
      codes = (const device Block*)m.w + first;
      scales = m.scales + first;
    }
  };

  template <bool ragged>
  static METAL_FUNC Block load(thread const Rows& rows, short r, uint step, bool on) {
    return load_if(on, rows.codes + (r * rows.blocks + step * kLanes));
  }

  static METAL_FUNC Scale scale(thread const Rows& rows, short r, uint step, bool on) {
    return from_e8m0(load_if(on, rows.scales + (r * rows.blocks + step * kLanes)));
  }

  static METAL_FUNC Digits open(thread const Block& block) { return block; }
  static METAL_FUNC float digit(thread const Digits& d, Scale, short j) {
    return bits == 4 ? e2m1_digit(d.w[j / 8], j % 8) : e4m3_digit(d.w[j / 4], j % 4);
  }

  static METAL_FUNC float factor(short) { return 1.0f; }

  static METAL_FUNC float finish(Scale s, float dot, float, float sum) {
    return fma(s, dot * (bits == 4 ? 16384.0f : 256.0f), sum);
  }
};
using Mxfp4 = Mxfp<4>;
using Mxfp8 = Mxfp<8>;

// NVFP4: one E4M3 scale for 16 values, so the last block of a row may be half of one.
struct Nvfp4 {
  using Half = Words<2>;
  struct Block {
    Half halves[2];
  };
  using Digits = Block;
  struct Scale {
    float halves[2];
  };

  struct Rows {
    const device Half* codes;
    const device uchar* scales;
    uint halves;  // of a row
    uint column;  // the first of the lane's

    METAL_FUNC Rows(Matrix m, Place at, uint K) : halves(K / 16), column(2 * at.column) {
      const size_t first = size_t(at.row) * halves + column;
      codes = (const device Half*)m.w + first;
      scales = m.scales + first;
    }
  };

  template <bool ragged>
  static METAL_FUNC Block load(thread const Rows& rows, short r, uint step, bool on) {
    const device Half* p = rows.codes + (r * rows.halves + step * 2 * kLanes);
    return {load_if(on, p), load_if(on && has_second(rows, step), p + 1)};
  }

  static METAL_FUNC Scale scale(thread const Rows& rows, short r, uint step, bool on) {
    const device uchar* p = rows.scales + (r * rows.halves + step * 2 * kLanes);
    return {from_e4m3(load_if(on, p)), from_e4m3(load_if(on && has_second(rows, step), p + 1))};
  }

  static METAL_FUNC Digits open(thread const Block& block) { return block; }
  static METAL_FUNC float digit(thread const Digits& d, Scale s, short j) {
    return s.halves[j / 16] * e2m1_digit(d.halves[j / 16].w[j % 16 / 8], j % 8);
  }

  static METAL_FUNC float factor(short) { return 1.0f; }

  static METAL_FUNC float finish(Scale, float dot, float, float sum) {
    return fma(16384.0f, dot, sum);
  }

 private:
  static METAL_FUNC bool has_second(thread const Rows& rows, uint step) {
    return rows.column + step * 2 * kLanes + 1 < rows.halves;
  }
};

// ---- floats as they are -------------------------------------------------------------------------

template <typename T>
struct Values {
  vec<T, 4> v[kBlock / 4];

  METAL_FUNC float operator[](short j) const { return to_float(v[j / 4][j % 4]); }
};

// The values from p on, `left` of which the row has; zeros follow.
template <bool ragged, typename T>
METAL_FUNC Values<T> load_values(const device T* p, uint left, bool on) {
  Values<T> values;
  UNROLL for (short i = 0; i < kBlock / 4; ++i) {
    if (!ragged) {
      values.v[i] = load_if(on, (const device vec<T, 4>*)p + i);
    } else {
      UNROLL for (short j = 0; j < 4; ++j) {
        values.v[i][j] = load_if(on && uint(4 * i + j) < left, p + (4 * i + j));
      }
    }
  }
  return values;
}

template <typename D>
struct Dense {
  using Block = Values<D>;
  using Digits = Block;
  struct Scale {};

  struct Rows {
    const device D* values;
    uint K, left;  // left: values from `values` to the end of the row

    METAL_FUNC Rows(Matrix m, Place at, uint K) : K(K), left(K - at.column * kBlock) {
      values = (const device D*)m.w + (size_t(at.row) * K + at.column * kBlock);
    }
  };

  template <bool ragged>
  static METAL_FUNC Block load(thread const Rows& rows, short r, uint step, bool on) {
    const uint passed = step * (kLanes * kBlock);
    return load_values<ragged>(rows.values + (r * rows.K + passed), rows.left - passed, on);
  }

  static METAL_FUNC Scale scale(thread const Rows&, short, uint, bool) { return {}; }
  static METAL_FUNC Digits open(thread const Block& block) { return block; }
  static METAL_FUNC float digit(thread const Digits& d, Scale, short j) { return d[j]; }
  static METAL_FUNC float factor(short) { return 1.0f; }
  static METAL_FUNC float finish(Scale, float dot, float, float sum) { return sum + dot; }
};
