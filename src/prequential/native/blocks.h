// The blocks, forward and backward, on one stream in panels of 16 tokens.
//
// h + out_proj [gelu(u + mlp_bias), attention(q, k, v)] with (q, k, v, u) = in_proj norm(h); one key head serves all
// query heads. In the pi-transformer, the label of a token is added to its key and value, except where others see it
// without. In the 2-token transformer it is the token behind it.
#pragma once
#include "pass.h"

namespace prequential {

// Rotates pairs of neighboring numbers of one key by its position; backwards by the opposite angle.
INLINE void rotate_row(const float *table, int K, const float *from, float *to, float direction = 1) {
  for (int k = 0; k < K; k += 2) {
    const float re = from[k], im = from[k + 1], c = table[k], s = table[k + 1] * direction;
    to[k] = re * c - im * s;
    to[k + 1] = re * s + im * c;
  }
}

// n keys next to each other, at consecutive positions of which the first is `at`
INLINE void rotate_rows(const float *rotary, int K, int at, long n, const float *from, float *to) {
  const float *table = rotary + (long)at * K;
  const v8 sign = {-1, 1, -1, 1, -1, 1, -1, 1};
  long i = 0;
  for (; i + 8 <= n * K; i += 8) {
    const v8 x = load(from + i), angle = load(table + i);
    const v8 cosine = SHUFFLE(angle, angle, 0, 0, 2, 2, 4, 4, 6, 6);
    const v8 sine = SHUFFLE(angle, angle, 1, 1, 3, 3, 5, 5, 7, 7);
    store(to + i, x * cosine + SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6) * (sine * sign));
  }
  rotate_row(table + i, n * K - i, from + i, to + i);
}

// embed(x) of the examples, or the constant: the input of the first block, unless labels are tokens.
static void embed(Pass &pass, const Share &share) {
  const Net &net = pass.net;
  const Panels &examples = pass.plan.examples;
  const int D = net.D, F = net.F, F16 = pass.F16;
  for (int p = share.first_examples; p < share.last_examples; p++) {
    float *h = (pass.plan.in_pairs ? pass.embedded : pass.h) + (long)p * D * PANEL;
    if (!net.model.use_input) {
      const float *constant = net.value(0);
      for (int d = 0; d < D; d++) store2(h + d * PANEL, fill(constant[d]), fill(constant[d]));
    } else {
      const float *weight = net.value(0), *bias = net.value(1);
      const int n = examples.in(p);
      const float *x = pass.stream.x + (long)p * PANEL * F;
      float *panel = pass.x_panel + (long)p * F * PANEL;
      from_tokens(x, F, n, F, panel);
      multiply<false>(D, F, weight, F, panel, examples.half(p),
                      [&](int d, v8 a, v8 b) { store2(h + d * PANEL, a + bias[d], b + bias[d]); });
      if (pass.train) {
        float *to = pass.x_tokens + (long)p * PANEL * F16;
        for (int t = 0; t < PANEL; t++)
          for (int f = 0; f < F16; f++) to[t * F16 + f] = t < n && f < F ? x[t * F + f] : 0.0f;
      }
    }
    if (pass.embedded && !pass.plan.in_pairs)
      std::memcpy(pass.embedded + (long)p * D * PANEL, h, sizeof(float) * D * PANEL);
  }
}

static void fill_rotations(Pass &pass, const Share &share) {
  const int K = pass.net.K;
  for (int t = share.first * PANEL; t < share.last * PANEL; t++) {
    const float *table = pass.net.model.rotary + (long)pass.plan.at(t) * K;
    for (int i = 0; i < K / 2; i++) {
      const long to = ((long)(t / PANEL) * (K / 2) + i) * PANEL + t % PANEL;
      pass.cosine[to] = table[2 * i], pass.sine[to] = table[2 * i + 1];
    }
  }
}

// Queries of a panel, rotated by their positions and scaled, from [D][16] to [D][16]; or their gradient back
static void rotate_queries(const Pass &pass, int p, const float *from, float *to, bool backward) {
  const Net &net = pass.net;
  const float scale = 1.0f / std::sqrt((float)net.K);
  if (!net.rotates()) {
    for (int i = 0; i < net.D * PANEL; i += 8) store(to + i, load(from + i) * scale);
    return;
  }
  const float turn = backward ? -1.0f : 1.0f;
  for (int row = 0; row < net.D; row += 2)
    for (int t = 0; t < PANEL; t += 8) {
      const long angle = ((long)p * (net.K / 2) + row % net.K / 2) * PANEL + t;
      const v8 c = load(pass.cosine + angle) * scale, s = load(pass.sine + angle) * (scale * turn);
      const v8 re = load(from + row * PANEL + t), im = load(from + (row + 1) * PANEL + t);
      store(to + row * PANEL + t, re * c - im * s);
      store(to + (row + 1) * PANEL + t, re * s + im * c);
    }
}

// Keys and values of all columns that are seen, keys rotated; and those of the new tokens for the caller.
static void gather_columns(Pass &pass, int l, const Share &share) {
  const Net &net = pass.net;
  const Stream &s = pass.stream;
  const Plan &plan = pass.plan;
  BlockWork &b = pass.blocks[l];
  const int K = net.K, T = plan.tokens.n, P = plan.P;
  for (int p = share.first; p < share.last; p++) {
    const float *in = pass.in + (long)p * net.I * PANEL;
    to_tokens(in + net.D * PANEL, K, pass.k_tokens + (long)p * PANEL * K, K);
    to_tokens(in + (net.D + K) * PANEL, K, pass.v_tokens + (long)p * PANEL * K, K);
  }
  int from = P, to = 0;  // of the past: what somebody sees, and of that, the part of this thread
  for (const Sight &sight : plan.labeled)
    if (sight.count()) from = std::min(from, sight.first), to = std::max(to, std::min(P, sight.last));
  const int64_t seen = std::max(0, to - from);
  to = from + (int)(seen * (share.part + 1) / share.parts), from += (int)(seen * share.part / share.parts);
  if (from < to) {
    const long start = l * s.block_stride + (long)from * K, count = to - from;
    if (net.rotates())
      rotate_rows(net.model.rotary, K, from - plan.origin, count, s.keys + start, b.keys + (long)from * K);
    else
      std::memcpy(b.keys + (long)from * K, s.keys + start, sizeof(float) * count * K);
    std::memcpy(b.values + (long)from * K, s.values + start, sizeof(float) * count * K);
  }
  const bool adds_labels = s.y && net.label_tables;
  const float *key_labels = adds_labels ? net.block(l, KEY_LABELS) : nullptr;
  const float *value_labels = adds_labels ? net.block(l, VALUE_LABELS) : nullptr;
  auto place = [&](int t, int column) {
    float *key = b.keys + (long)column * K;
    const float *k = pass.k_tokens + (long)t * K;
    if (net.rotates())
      rotate_row(net.model.rotary + (long)plan.at(t) * K, K, k, key);
    else
      std::memcpy(key, k, sizeof(float) * K);
    std::memcpy(b.values + (long)column * K, pass.v_tokens + (long)t * K, sizeof(float) * K);
  };
  const int first = share.first * PANEL, last = std::min(T, share.last * PANEL);
  for (int t = first; t < last; t++) {
    if (plan.any_unlabeled) place(t, P + T + t);
    if (adds_labels) {
      float *k = pass.k_tokens + (long)t * K, *v = pass.v_tokens + (long)t * K;
      for (int i = 0; i < K; i++) k[i] += key_labels[s.y[t] * K + i], v[i] += value_labels[s.y[t] * K + i];
    }
    if (s.y) place(t, P + t);
  }
  if (s.new_keys && first < last) {
    const long at = (long)l * s.new_block_stride + (long)first * K;
    std::memcpy(s.new_keys + at, pass.k_tokens + (long)first * K, sizeof(float) * (last - first) * K);
    std::memcpy(s.new_values + at, pass.v_tokens + (long)first * K, sizeof(float) * (last - first) * K);
  }
}

// Attention of all heads of a panel over what it sees and the null key (score 0, value 0), into `joined`.
static void attend(Pass &pass, int l, int p) {
  const Net &net = pass.net;
  BlockWork &b = pass.blocks[l];
  const int K = net.K;
  const bool half = pass.plan.tokens.half(p);
  const Sight *sights[2] = {&pass.plan.labeled[p], &pass.plan.unlabeled[p]};
  const int rows = pass.weight_row[p + 1] - pass.weight_row[p];
  for (int head = 0; head < net.H; head++) {
    float *weight = b.weight + ((long)pass.weight_row[p] * net.H + (long)head * rows) * PANEL;
    const float *q = b.q + ((long)p * net.D + head * K) * PANEL;
    v8 m0 = fill(0.0f), m1 = fill(0.0f);
    float *to = weight;
    for (const Sight *sight : sights) {
      multiply<false>(sight->count(), K, b.keys + (long)sight->first * K, K, q, half, [&](int i, v8 x, v8 y) {
        sight->mask(sight->first + i, x, y);
        m0 = larger(m0, x), m1 = larger(m1, y);
        store2(to + i * PANEL, x, y);
      });
      to += (long)sight->count() * PANEL;
    }
    v8 sum0 = exp8(-m0), sum1 = exp8(-m1);
    if (half)
      for (int i = 0; i < rows; i++) {
        const v8 x = exp8(load(weight + i * PANEL) - m0);
        sum0 += x;
        store(weight + i * PANEL, x);
      }
    else
      for (int i = 0; i < rows; i++) {
        const v8 x = exp8(load(weight + i * PANEL) - m0), y = exp8(load(weight + i * PANEL + 8) - m1);
        sum0 += x, sum1 += y;
        store2(weight + i * PANEL, x, y);
      }
    const v8 inverse0 = 1.0f / sum0, inverse1 = 1.0f / sum1;
    store2(b.inverse_sum + ((long)p * net.H + head) * PANEL, inverse0, inverse1);
    float *attended = b.joined + ((long)p * net.J + net.HID + head * K) * PANEL;
    const Sight &seen = *sights[0];
    multiply<true>(K, seen.count(), b.values + (long)seen.first * K, K, weight, half,
                   [&](int i, v8 x, v8 y) { store2(attended + i * PANEL, x * inverse0, y * inverse1); });
    if (sights[1]->count())
      multiply<true>(K, sights[1]->count(), b.values + (long)sights[1]->first * K, K,
                     weight + (long)seen.count() * PANEL, half,
                     [&](int i, v8 x, v8 y) { add2(attended + i * PANEL, x * inverse0, y * inverse1); });
  }
}

static void block_forward(Pass &pass, int l, const Share &share) {
  const Net &net = pass.net;
  BlockWork &b = pass.blocks[l];
  const int D = net.D, I = net.I, J = net.J, HID = net.HID, first = share.first, panels = share.last - share.first;
  const int u_row = I - HID;
  const bool half = panels && pass.plan.tokens.half(share.last - 1);
  for (int p = first; p < share.last; p++) {
    const long at = (long)p * D * PANEL;
    layer_norm(D, pass.h + at, net.block(l, NORM_WEIGHT), net.block(l, NORM_BIAS), b.hat + at, pass.normed + at,
               b.inverse_std + p * PANEL);
    if (pass.train) to_tokens(pass.normed + at, D, b.normed_tokens + (long)p * PANEL * pass.D16, pass.D16);
  }
  multiply_panels<false>(I, D, net.block(l, IN_PROJ), D, pass.normed + (long)first * D * PANEL, panels, half,
                         [&](int p, int i, v8 x, v8 y) {
                           store2(pass.in + ((long)(first + p) * I + i) * PANEL, x, y);
                         });
  if (net.attention) gather_columns(pass, l, share);
  const float *bias = net.block(l, MLP_BIAS);
  for (int p = first; p < share.last; p++) {
    const float *u = pass.in + ((long)p * I + u_row) * PANEL;
    float *joined = b.joined + (long)p * J * PANEL, *slope = b.slope + (long)p * HID * PANEL;
    for (int i = 0; i < HID; i++)
      for (int t = 0; t < PANEL; t += 8) {
        v8 y, of_y;
        gelu8(load(u + i * PANEL + t) + bias[i], y, of_y);
        store(joined + i * PANEL + t, y);
        store(slope + i * PANEL + t, of_y);
      }
  }
  if (net.attention) {
    share.barrier.wait();  // all columns are there
    for (int p = first; p < share.last; p++) {
      rotate_queries(pass, p, pass.in + (long)p * I * PANEL, b.q + (long)p * D * PANEL, false);
      attend(pass, l, p);
    }
  }
  if (pass.train)
    for (int p = first; p < share.last; p++)
      to_tokens(b.joined + (long)p * J * PANEL, J, b.joined_tokens + (long)p * PANEL * pass.J16, pass.J16);
  multiply_panels<false>(D, J, net.block(l, OUT_PROJ), J, b.joined + (long)first * J * PANEL, panels, half,
                         [&](int p, int i, v8 x, v8 y) { add2(pass.h + ((long)(first + p) * D + i) * PANEL, x, y); });
}

// From the gradient of what a panel found (in d_joined) to those of its queries (in d_in) and of new keys and values.
static void attend_backward(Pass &pass, int l, int p, const Strip &strip, float *d_keys, float *d_values) {
  const Net &net = pass.net;
  BlockWork &b = pass.blocks[l];
  const int K = net.K, D = net.D, P = pass.plan.P, K16 = pass.K16, width = pass.plan.tokens.width(p);
  const bool half = pass.plan.tokens.half(p);
  const long stride = D + PANEL;
  const Sight *sights[2] = {&pass.plan.labeled[p], &pass.plan.unlabeled[p]};
  const int rows = pass.weight_row[p + 1] - pass.weight_row[p];
  to_tokens(b.q + (long)p * D * PANEL, D, strip.q_tokens, stride);
  to_tokens(pass.d_joined + ((long)p * net.J + net.HID) * PANEL, D, strip.d_attended_tokens, stride);
  float *d_q = b.d_in + (long)p * net.I * PANEL;
  for (int head = 0; head < net.H; head++) {
    float *weight = b.weight + ((long)pass.weight_row[p] * net.H + (long)head * rows) * PANEL;
    const long at = ((long)p * net.J + net.HID + head * K) * PANEL;
    const float *d_attended = pass.d_joined + at, *attended = b.joined + at;
    const float *inverse = b.inverse_sum + ((long)p * net.H + head) * PANEL;
    const v8 inverse0 = load(inverse), inverse1 = load(inverse + 8);
    v8 mean0 = fill(0.0f), mean1 = fill(0.0f);
    for (int k = 0; k < K; k++) {
      mean0 += load(d_attended + k * PANEL) * load(attended + k * PANEL);
      mean1 += load(d_attended + k * PANEL + 8) * load(attended + k * PANEL + 8);
    }
    bool first = true;
    for (const Sight *sight : sights) {
      const int count = sight->count();
      if (!count && !first) continue;
      const int fresh = std::max(sight->first, P), num_fresh = std::max(0, sight->last - fresh);
      float *of_fresh = weight + (long)(fresh - sight->first) * PANEL;
      const long to = (long)(fresh - P) * K16;
      for (int i = 0; i < num_fresh; i++)
        store2(strip.new_weight + i * PANEL, load(of_fresh + i * PANEL) * inverse0,
               load(of_fresh + i * PANEL + 8) * inverse1);
      multiply_tokens(num_fresh, K, width, strip.new_weight, strip.d_attended_tokens + head * K, stride, d_values + to,
                      K16);
      // the gradient of the scores takes the place of the weights
      multiply<false>(count, K, b.values + (long)sight->first * K, K, d_attended, half, [&](int i, v8 x, v8 y) {
        float *score = weight + i * PANEL;
        store2(score, load(score) * inverse0 * (x - mean0), load(score + 8) * inverse1 * (y - mean1));
      });
      multiply<true>(K, count, b.keys + (long)sight->first * K, K, weight, half, [&](int i, v8 x, v8 y) {
        float *to_q = d_q + (head * K + i) * PANEL;
        first ? store2(to_q, x, y) : add2(to_q, x, y);
      });
      multiply_tokens(num_fresh, K, width, of_fresh, strip.q_tokens + head * K, stride, d_keys + to, K16);
      weight += (long)count * PANEL;
      first = false;
    }
  }
  rotate_queries(pass, p, d_q, d_q, true);
}

// The gradients of new keys and values, summed over strips, go to in_proj; those with a label to its tables, too.
static void keys_backward(Pass &pass, BlockWork &b, const float *d_columns, const Share &share) {
  const Net &net = pass.net;
  const Plan &plan = pass.plan;
  const int K = net.K, T = plan.tokens.n, K16 = pass.K16;
  const long size = (long)pass.new_columns() * K16;  // of one strip's keys, and of its values
  auto sum_strips = [&](int column, float *key, float *value) {
    for (int i = 0; i < K; i++) key[i] = value[i] = 0;
    const float *from = d_columns + (long)column * K16;
    for (size_t strip = 0; strip < pass.strips.size(); strip++, from += 2 * size)
      for (int i = 0; i < K; i++) key[i] += from[i], value[i] += from[size + i];
  };
  for (int t = share.first * PANEL; t < share.last * PANEL; t++) {
    float *k = pass.k_tokens + (long)t * K, *v = pass.v_tokens + (long)t * K;
    if (t < T && plan.any_unlabeled)
      sum_strips(T + t, k, v);
    else
      for (int i = 0; i < K; i++) k[i] = v[i] = 0;
    if (t >= T) continue;
    float *key = b.d_keys + (long)t * K16, *value = b.d_values + (long)t * K16;
    sum_strips(t, key, value);
    if (net.rotates()) {
      const float *table = net.model.rotary + (long)plan.at(t) * K;
      rotate_row(table, K, key, key, -1);
      if (plan.any_unlabeled) rotate_row(table, K, k, k, -1);
    }
    for (int i = 0; i < K; i++) k[i] += key[i], v[i] += value[i];
  }
  for (int p = share.first; p < share.last; p++) {
    float *d_in = b.d_in + ((long)p * net.I + net.D) * PANEL;
    from_tokens(pass.k_tokens + (long)p * PANEL * K, K, PANEL, K, d_in);
    from_tokens(pass.v_tokens + (long)p * PANEL * K, K, PANEL, K, d_in + K * PANEL);
  }
}

// From the gradient d_h behind a block to that before it
static void block_backward(Pass &pass, int l, const Share &share) {
  const Net &net = pass.net;
  BlockWork &b = pass.blocks[l];
  const int D = net.D, I = net.I, J = net.J, HID = net.HID, first = share.first, panels = share.last - share.first;
  const int u_row = I - HID;
  const bool half = panels && pass.plan.tokens.half(share.last - 1);
  const long wide = (long)first * D * PANEL;
  std::memcpy(b.d_out + wide, pass.d_h + wide, sizeof(float) * panels * D * PANEL);
  multiply_panels<true>(J, D, net.block(l, OUT_PROJ), J, pass.d_h + wide, panels, half, [&](int p, int i, v8 x, v8 y) {
    store2(pass.d_joined + ((long)(first + p) * J + i) * PANEL, x, y);
  });
  for (int p = first; p < share.last; p++) {
    const float *d_joined = pass.d_joined + (long)p * J * PANEL, *slope = b.slope + (long)p * HID * PANEL;
    float *d_u = b.d_in + ((long)p * I + u_row) * PANEL;
    for (int i = 0; i < HID * PANEL; i += 8) store(d_u + i, load(d_joined + i) * load(slope + i));
  }
  if (net.attention) {
    const long size = (long)pass.new_columns() * pass.K16;
    float *d_columns = pass.d_columns[l % 2];  // some threads may still read those of the block before
    for (int i = share.first_strip; i < share.last_strip; i++) {
      float *d_keys = d_columns + i * 2 * size;
      std::memset(d_keys, 0, sizeof(float) * 2 * size);
      const Strip &strip = pass.strips[i];
      for (int p = strip.first; p < strip.last; p++) attend_backward(pass, l, p, strip, d_keys, d_keys + size);
    }
    share.barrier.wait();  // all strips have added what they found
    keys_backward(pass, b, d_columns, share);
  }
  multiply_panels<true>(D, I, net.block(l, IN_PROJ), D, b.d_in + (long)first * I * PANEL, panels, half,
                        [&](int p, int i, v8 x, v8 y) {
                          store2(pass.d_normed + ((long)(first + p) * D + i) * PANEL, x, y);
                        });
  for (int i = share.first_strip; i < share.last_strip; i++) {
    float *d_norm = b.d_norm + (long)i * 2 * D;
    std::memset(d_norm, 0, sizeof(float) * 2 * D);
    for (int p = pass.strips[i].first; p < pass.strips[i].last; p++) {
      const long at = (long)p * D * PANEL;
      layer_norm_backward(D, pass.d_normed + at, b.hat + at, net.block(l, NORM_WEIGHT), b.inverse_std + p * PANEL,
                          pass.d_h + at, d_norm, d_norm + D);
    }
  }
}

}  // namespace prequential
