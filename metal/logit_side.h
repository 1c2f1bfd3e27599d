// What one of two models says of a row, over a span of the vocabulary whose logits come a few at a
// time. csrc/cpu/kernels.h's LogitTile names the figures.
//
// Sums are relative to the largest logit so far and rescaled when a larger one comes. A few
// exponentials are summed at once and then added to a pair of floats, so that a long span rounds no
// more than a short one.
#pragma once

#include <metal_stdlib>

#include "elements.h"
#include "params.h"

using namespace metal;

// high + low, with |low| below the rounding of high. Needs sums computed as they are written.
struct LongSum {
  float high, low;

  METAL_FUNC void add(float v) {
    const float sum = high + v, rest = sum - high;
    low += (high - (sum - rest)) + (v - rest);
    high = sum;
  }
  METAL_FUNC void scale(float factor) {
    high *= factor;
    low *= factor;
  }
  METAL_FUNC float value() const { return high + low; }
};

struct LogitSide {
  float largest;
  LongSum sum, cost;
  float target;      // logit of the row's target, once it has come by
  bool is_infinite;  // the cost: the other side rules out a token that this one does not
  float top[kTopLogits];
  float top_tokens[kTopLogits];

  static METAL_FUNC LogitSide nothing() {
    LogitSide side;
    side.largest = -INFINITY;
    side.sum = side.cost = {0.0f, 0.0f};
    side.target = 0.0f;
    side.is_infinite = false;
    UNROLL for (short i = 0; i < kTopLogits; ++i) {
      side.top[i] = -INFINITY;
      side.top_tokens[i] = -1.0f;
    }
    return side;
  }

  // Logits of tokens first, first + 1, … of this side and the other.
  METAL_FUNC void add(const threadgroup float* own, const threadgroup float* other, short count,
                      uint first, uint target_token) {
    float new_largest = largest;
    for (short c = 0; c < count; ++c) {
      new_largest = own[c] > new_largest ? own[c] : new_largest;  // passes over NaN
    }
    if (new_largest > largest) {
      const float factor = exp(largest - new_largest);
      sum.scale(factor);
      cost.scale(factor);
      largest = new_largest;
    }
    float weights = 0.0f, costs = 0.0f;
    for (short c = 0; c < count; ++c) {
      const float x = own[c], y = other[c];
      if (first + c == target_token) {
        target = x;
      }
      if (x == -INFINITY) {
        continue;
      }
      const float weight = exp(x - largest);
      weights += weight;
      if (y == -INFINITY) {
        is_infinite = true;
      } else {
        costs += weight * (x - y);
      }
      rank(x, first + c);
    }
    sum.add(weights);
    cost.add(costs);
  }

  METAL_FUNC float total_cost() const { return is_infinite ? INFINITY : cost.value(); }

 private:
  // Of equal logits the first token stays first.
  METAL_FUNC void rank(float x, uint token) {
    if (!(x > top[kTopLogits - 1])) {
      return;
    }
    float value = x, name = token;
    UNROLL for (short i = 0; i < kTopLogits; ++i) {
      if (x > top[i]) {
        const float passed = top[i], passed_name = top_tokens[i];
        top[i] = value;
        top_tokens[i] = name;
        value = passed;
        name = passed_name;
      }
    }
  }
};
