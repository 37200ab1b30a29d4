// A prediction of one example, without gradients: vectors in place of panels, so that nothing is computed 16 times.
//
// An example that is predicted and one that is added with its label both go this way, so that they have the same bits.
#pragma once
#include "heads.h"

namespace prequential {

// Scores of all query heads with some keys, which begin at this place of the rotary table, into scores [head][stride].
// q (H, K) is rotated and scaled; `panel` has room for [K][16].
static void score_one(const Net &net, const float *keys, int count, int place, const float *q, float *scores, long stride,
                      float *panel) {
  const int K = net.K;
  const long length = net.model.rotary_columns_length;
  for (int m = 0; m < count; m += PANEL) {
    from_tokens(keys + (long)m * K, K, std::min(PANEL, count - m), K, panel);
    if (net.rotates())
      for (int i = 0; i < K; i += 2)
        for (int t = 0; t < PANEL; t += 8) {
          const float *angle = net.model.rotary_columns + i * length + place + m + t;
          const v8 c = load(angle), s = load(angle + length);
          float *at = panel + i * PANEL + t;
          const v8 re = load(at), im = load(at + PANEL);
          store(at, re * c - im * s), store(at + PANEL, re * s + im * c);
        }
    multiply<false>(net.H, K, q, K, panel, false,
                    [&](int head, v8 x, v8 y) { store2(scores + head * stride + m, x, y); });
  }
}

// The softmax of scores [head][stride] with the null key; gives the inverse of the sum of each head's. From `known` on up
// to `from` there are none.
static void softmax_scores_one(const Net &net, float *scores, long stride, int known, int from, int count,
                               float *inverse_sum) {
  for (int head = 0; head < net.H; head++) {
    float *s = scores + head * stride;
    for (int i = known; i < from; i++) s[i] = NEVER;
    for (int i = count; i < ceil_to(count, 8); i++) s[i] = NEVER;
    v8 total = fill(0.0f), all = total;  // the null key's score is 0
    for (int i = 0; i < count; i += 8) all = larger(all, load(s + i));
    const float most = largest(all);
    for (int i = 0; i < count; i += 8) {
      const v8 e = exp8(load(s + i) - most);
      total += e;
      store(s + i, e);
    }
    inverse_sum[head] = 1.0f / (exp8(fill(-most))[0] + sum(total));
  }
}

// The values weighted by [head][stride] scores: found (H, K)
static void mix_values_one(const Net &net, const float *values, int count, const float *scores, long stride,
                           const float *inverse_sum, float *found) {
  const int K = net.K;
  for (int head = 0; head < net.H; head += 2) {
    const int second = head + 1 < net.H ? 1 : 0;  // the last of an odd number is computed twice
    const float *s0 = scores + head * stride, *s1 = s0 + second * stride;
    float *to0 = found + head * K, *to1 = to0 + second * K;
    int k = 0;
    auto columns = [&](auto wide) __attribute__((always_inline)) {
      constexpr int N = decltype(wide)::value;
      for (; k + 8 * N <= K; k += 8 * N) {
        v8 a[2][N] = {};
        const float *v = values + k;
        for (int m = 0; m < count; m++, v += K)
#pragma GCC unroll 4
          for (int i = 0; i < N; i++) {
            const v8 x = load(v + 8 * i);
            a[0][i] += s0[m] * x, a[1][i] += s1[m] * x;
          }
        for (int i = 0; i < N; i++) {
          store(to0 + k + 8 * i, a[0][i] * inverse_sum[head]);
          store(to1 + k + 8 * i, a[1][i] * inverse_sum[head + second]);
        }
      }
    };
    columns(Rows<4>());
    columns(Rows<1>());
    for (; k < K; k++) {
      float a0 = 0, a1 = 0;
      for (int m = 0; m < count; m++) a0 += s0[m] * values[(long)m * K + k], a1 += s1[m] * values[(long)m * K + k];
      to0[k] = a0 * inverse_sum[head], to1[k] = a1 * inverse_sum[head + second];
    }
  }
}

// A copy head on what one example is compared by, from (W). Its parameters begin at `parameter`.
static void copy_one(Pass &pass, int parameter, int W, int offset, const float *from, float *log_probs) {
  const Net &net = pass.net;
  const Stream &s = pass.stream;
  const Plan &plan = pass.plan;
  const Sight &sight = plan.in_heads[0];
  const float temperature = std::exp(SPEEDUP * net.value(parameter)[0]), slope = SPEEDUP * net.value(parameter + 1)[0];
  const int first = sight.first, count = sight.count(), NC = net.NC;
  float *query = pass.arena.floats(W), *score = pass.arena.floats(count + 8), *by_label = pass.arena.floats(NC + 8);
  const float inverse = 1.0f / __builtin_sqrtf(EPSILON + dot(W, from, from));
  for (int w = 0; w < W; w++) query[w] = from[w] * inverse;
  if (s.new_example_keys) std::memcpy(s.new_example_keys + offset, query, sizeof(float) * W);
  if (!log_probs) return;
  for (int w = 0; w < W; w++) query[w] *= temperature;
  const float null_score = plan.example_at(0) / (float)net.C_examples * slope + SPEEDUP * net.value(parameter + 2)[0];
  multiply_vector(count, W, s.example_keys + (long)first * net.W + offset, net.W, query, score);
  for (int i = count; i < ceil_to(count, 8); i++) score[i] = NEVER;
  const i8 eight = {0, 1, 2, 3, 4, 5, 6, 7};
  v8 all = fill(null_score);
  for (int i = 0; i < count; i += 8) {
    const v8 position = __builtin_convertvector(eight + (first + i - plan.example_origin), v8) / (float)net.C_examples;
    const v8 x = load(score + i) + position * slope;
    all = larger(all, x);
    store(score + i, x);
  }
  const float most = largest(all);
  std::memset(by_label, 0, sizeof(float) * NC);
  v8 total = fill(0.0f);
  for (int i = 0; i < count; i += 8) {
    const v8 e = exp8(load(score + i) - most);
    total += e;
    store(score + i, e);
  }
  const float seen = sum(total);
  for (int i = 0; i < count; i++) by_label[s.example_labels[first + i]] += score[i];
  const float of_null = exp8(fill(null_score - most))[0], kept = 1.0f - PRIOR_SHARE;
  const float inverse_sum = 1.0f / (seen + of_null), rest = PRIOR_SHARE + kept * (of_null * inverse_sum);
  const Prior prior(net, s, 0, 1);
  for (int k = 0; k < NC; k += 8) {
    const i8 class_id = eight + k;
    const v8 share = select(class_id < prior.seen[0], fill(prior.of_seen[0]), fill(prior.of_free[0]));
    store(by_label + k, log8(kept * (load(by_label + k) * inverse_sum) + rest * share));
  }
  std::memcpy(log_probs, by_label, sizeof(float) * NC);
}

static void softmax_one(Pass &pass, const float *h, float *normed, float *log_probs) {
  const Net &net = pass.net;
  const int NC = net.NC;
  layer_norm_one(net.D, h, net.value(net.softmax), net.value(net.softmax + 1), normed);
  float *z = pass.arena.floats(NC + 8);
  multiply_vector(NC, net.D, net.value(net.softmax + 2), net.D, normed, z);
  const float *bias = net.value(net.softmax + 3);
  const Prior prior(net, pass.stream, 0, 1);
  for (int k = 0; k < NC; k++) z[k] += bias[k] + (k < prior.seen[0] ? 0.0f : prior.log_free[0]);
  for (int k = NC; k < ceil_to(NC, 8); k++) z[k] = NEVER;
  v8 total = fill(0.0f), largest_of = fill(-FLT_MAX);
  for (int k = 0; k < NC; k += 8) largest_of = larger(largest_of, load(z + k));
  const float most = largest(largest_of);
  for (int k = 0; k < NC; k += 8) total += exp8(load(z + k) - most);
  const float all = most + log8(fill(sum(total)))[0];
  for (int k = 0; k < NC; k++) log_probs[k] = z[k] - all;
}

// One token in the blocks: what it sees, and where all of it stands in the rotary table.
struct OneToken {
  const float *keys, *values;  // of the past that it sees, of the first block; the others' are `block_stride` further on
  int64_t block_stride;
  int count, place;               // how many these are, and where the first stands
  int more_count = 0, more_place = 0;  // the same of columns beside the past
  int at = 0;                     // where it stands itself
};

// The blocks on one token h (D). Of each block l with (q, k, v, u) in `in`: `more`(l, in, keys, values) writes the columns
// beside the past (more_count, K), and `keep`(l, in) is given the new key and value. Without `to_heads`, h behind the
// last block is not needed.
template <class More, class Keep>
static void blocks_one(const Net &net, Arena &arena, const OneToken &token, float *h, bool to_heads, More more, Keep keep) {
  const int D = net.D, H = net.H, K = net.K, HID = net.HID, u_row = net.I - HID;
  const int count = token.count, beside = token.more_count;
  const int from = beside ? ceil_to(count, PANEL) : count;  // where columns beside the past are among the scores
  const long stride = ceil_to(from + beside, PANEL);
  float *more_keys = arena.floats((size_t)beside * K), *more_values = arena.floats((size_t)beside * K);
  float *more_found = arena.floats(beside ? D : 0);
  float *normed = arena.floats(D), *in = arena.floats(net.I), *joined = arena.floats(net.J);
  float *q = arena.floats(D), *scores = arena.floats(H * stride), *panel = arena.floats((size_t)K * PANEL);
  float *inverse_sum = arena.floats(H), *out = arena.floats(D);
  const float scale = 1.0f / std::sqrt((float)K);
  for (int l = 0; l < net.L; l++) {
    layer_norm_one(D, h, net.block(l, NORM_WEIGHT), net.block(l, NORM_BIAS), normed);
    multiply_vector(net.I, D, net.block(l, IN_PROJ), D, normed, in);
    if (net.attention) keep(l, in);
    if (l == net.L - 1 && !to_heads) return;
    const float *bias = net.block(l, MLP_BIAS), *u = in + u_row;
    int i = 0;
    v8 y, slope;
    for (; i + 8 <= HID; i += 8) {
      gelu8(load(u + i) + load(bias + i), y, slope);
      store(joined + i, y);
    }
    for (; i < HID; i++) {
      gelu8(fill(u[i] + bias[i]), y, slope);
      joined[i] = y[0];
    }
    if (net.attention) {
      for (int head = 0; head < H; head++) {
        float *to = q + head * K;
        for (int k = 0; k < K; k++) to[k] = in[head * K + k] * scale;
        if (net.rotates()) rotate_row(net.model.rotary + (long)token.at * K, K, to, to);
      }
      const float *keys = token.keys + l * token.block_stride, *values = token.values + l * token.block_stride;
      score_one(net, keys, count, token.place, q, scores, stride, panel);
      if (beside) {
        more(l, in, more_keys, more_values);
        score_one(net, more_keys, beside, token.more_place, q, scores + from, stride, panel);
      }
      softmax_scores_one(net, scores, stride, count, from, from + beside, inverse_sum);
      mix_values_one(net, values, count, scores, stride, inverse_sum, joined + HID);
      if (beside) {
        mix_values_one(net, more_values, beside, scores + from, stride, inverse_sum, more_found);
        for (int d = 0; d < H * K; d++) joined[HID + d] += more_found[d];
      }
    }
    multiply_vector(D, net.J, net.block(l, OUT_PROJ), net.J, joined, out);
    for (int d = 0; d < D; d++) h[d] += out[d];
  }
}

// The token of a label y in the 2-token transformer, behind that of its x, whose keys and values (L, K) are given:
// writes its own to `to_keys` and `to_values`. `keys` and `values` are the so many tokens before both.
static void label_token_one(const Net &net, Arena &arena, int64_t y, const float *keys, const float *values,
                            int64_t block_stride, int past, const float *x_keys, const float *x_values, int64_t x_stride,
                            float *to_keys, float *to_values, int64_t to_stride) {
  if (!net.attention) return;
  const int D = net.D, K = net.K, count = std::min(past, net.C - 1), origin = std::max(0, past - net.C);
  const long first = (long)(past - count) * K;
  OneToken token = {keys + first, values + first, block_stride, count, past - count - origin};
  token.more_count = 2, token.more_place = past - origin, token.at = token.more_place + 1;  // that of x, and itself
  arena.restart();
  float *h = arena.floats(D);
  const float *label = net.value(net.label_embedding) + y * D, *type = net.value(net.token_type) + D;
  for (int d = 0; d < D; d++) h[d] = label[d] + type[d];
  blocks_one(
      net, arena, token, h, false,
      [&](int l, const float *in, float *more_keys, float *more_values) {
        std::memcpy(more_keys, x_keys + l * x_stride, sizeof(float) * K);
        std::memcpy(more_values, x_values + l * x_stride, sizeof(float) * K);
        std::memcpy(more_keys + K, in + D, sizeof(float) * K);
        std::memcpy(more_values + K, in + D + K, sizeof(float) * K);
      },
      [&](int l, const float *in) {
        std::memcpy(to_keys + l * to_stride, in + D, sizeof(float) * K);
        std::memcpy(to_values + l * to_stride, in + D + K, sizeof(float) * K);
      });
}

static void forward_one(Pass &pass) {
  const Net &net = pass.net;
  const Stream &s = pass.stream;
  const Plan &plan = pass.plan;
  Arena &arena = pass.arena;
  arena.restart();
  const int D = net.D, K = net.K;
  const int first = plan.labeled[0].begin[0], count = std::min(plan.P, plan.labeled[0].end[0]) - first;
  const bool sees_itself = net.label_tokens && net.attention;
  OneToken token = {s.keys + (long)first * K, s.values + (long)first * K, s.block_stride, count, first - plan.origin};
  token.at = plan.at(0);
  token.more_count = sees_itself ? 1 : plan.waiting;
  token.more_place = sees_itself ? token.at : plan.first_waiting - plan.origin;
  float *h = arena.floats(D), *normed = arena.floats(D), *out = arena.floats(D);
  if (net.model.use_input) {
    multiply_vector(D, net.F, net.value(0), net.F, s.x, h);
    for (int d = 0; d < D; d++) h[d] += net.value(1)[d];
  } else {
    std::memcpy(h, net.value(0), sizeof(float) * D);
  }
  const int num_softmax = net.model.has_softmax ? 1 : 0;
  float *of_copy = s.log_probs ? s.log_probs + (long)num_softmax * net.NC : nullptr;
  if (net.model.has_copy) copy_one(pass, net.copy, D, 0, h, of_copy);
  for (int d = 0; net.label_tokens && d < D; d++) h[d] += net.value(net.token_type)[d];
  blocks_one(
      net, arena, token, h, true,
      [&](int l, const float *in, float *keys, float *values) {
        if (sees_itself) {
          std::memcpy(keys, in + D, sizeof(float) * K);
          std::memcpy(values, in + D + K, sizeof(float) * K);
          return;
        }
        for (int m = 0; m < plan.waiting; m++) {  // what labels have added is taken away again
          const int64_t label = s.example_labels[plan.PE - plan.P + plan.first_waiting + m];
          const long at = l * s.block_stride + (long)(plan.first_waiting + m) * K, to = (long)m * K;
          for (int k = 0; k < K; k++) {
            keys[to + k] = s.keys[at + k] - net.block(l, KEY_LABELS)[label * K + k];
            values[to + k] = s.values[at + k] - net.block(l, VALUE_LABELS)[label * K + k];
          }
        }
      },
      [&](int l, const float *in) {
        if (!s.new_keys) return;
        const bool adds_label = s.y && net.label_tables;
        const float *key_label = adds_label ? net.block(l, KEY_LABELS) + s.y[0] * K : nullptr;
        const float *value_label = adds_label ? net.block(l, VALUE_LABELS) + s.y[0] * K : nullptr;
        for (int k = 0; k < K; k++) {
          s.new_keys[l * s.new_block_stride + k] = in[D + k] + (adds_label ? key_label[k] : 0.0f);
          s.new_values[l * s.new_block_stride + k] = in[D + K + k] + (adds_label ? value_label[k] : 0.0f);
        }
      });
  if (num_softmax && s.log_probs) softmax_one(pass, h, normed, s.log_probs);
  if (net.model.has_deep_copy) {
    multiply_vector(net.W_deep, D, net.value(net.deep_copy + 3), D, h, out);
    float *to = of_copy ? of_copy + (net.model.has_copy ? (long)net.NC : 0) : nullptr;
    copy_one(pass, net.deep_copy, net.W_deep, net.model.has_copy ? D : 0, out, to);
  }
  if (net.label_tokens && s.y && s.new_keys)
    label_token_one(net, arena, s.y[0], s.keys, s.values, s.block_stride, plan.P, s.new_keys, s.new_values,
                    s.new_block_stride, s.new_keys + K, s.new_values + K, s.new_block_stride);
}

}  // namespace prequential
