// The output heads on one stream in panels of 16 examples: log-probabilities, and when training, their gradients.
//
// Every head has its own loss. A copy head adds up attention weights by label as it goes over the columns; only where
// log-probabilities are asked for is there anything of the size of all classes, and never classes times window.
#pragma once
#include "pairs.h"

namespace prequential {

// The prior of labels not seen yet (labels.log_class_prior) for the examples of a panel: 0 for labels seen; all others
// together weigh as much as one of these.
struct Prior {
  int32_t seen[PANEL];
  float log_free[PANEL];                  // log weight of a label that was not seen
  float of_seen[PANEL], of_free[PANEL];  // normalized: of one that was, and of one that was not
  bool flat = true;

  Prior(const Net &net, const Stream &s, int first, int n) {
    for (int t = 0; t < PANEL; t++) {
      const int64_t given = s.num_seen ? s.num_seen[first + std::min(t, n - 1)] : net.NC;
      seen[t] = (int32_t)std::min<int64_t>(given, net.NC);
      const int free = net.NC - seen[t];
      log_free[t] = free ? -std::log((float)free) : 0.0f;
      of_seen[t] = 1.0f / (seen[t] + (free > 0));
      of_free[t] = free ? of_seen[t] / free : of_seen[t];
      flat &= free == 0;
    }
  }
  inline __attribute__((always_inline)) v8 log_weight(int k, int t) const {
    return select(of(k) < load(seen + t), fill(0.0f), load(log_free + t));
  }
  inline __attribute__((always_inline)) v8 weight(int k, int t) const {
    return select(of(k) < load(seen + t), load(of_seen + t), load(of_free + t));
  }
  float weight_one(int k, int t) const { return k < seen[t] ? of_seen[t] : of_free[t]; }

 private:
  static inline __attribute__((always_inline)) i8 of(int k) { return i8{k, k, k, k, k, k, k, k}; }
};

// Log-probabilities of a panel, [NC][16], to the caller's (S, NC)
static void write_log_probs(const Pass &pass, int head, int p, const float *panel, float *tokens) {
  const int NC = pass.net.NC, S = pass.plan.examples.n, n = pass.plan.examples.in(p);
  to_tokens(panel, NC, tokens, NC);
  std::memcpy(pass.stream.log_probs + ((long)head * S + p * PANEL) * NC, tokens, sizeof(float) * n * NC);
}

// softmax(readout norm(h)), as the head with this number, on a strip. Adds to the gradient of the trunk.
static void softmax_head(Pass &pass, int head, int number_of_strip) {
  const Net &net = pass.net;
  const Stream &s = pass.stream;
  Strip &strip = pass.strips[number_of_strip];
  const Panels &examples = pass.plan.examples;
  const int D = net.D, NC = net.NC;
  const float *weight = net.value(net.softmax), *norm_bias = net.value(net.softmax + 1);
  const float *readout = net.value(net.softmax + 2), *bias = net.value(net.softmax + 3);
  float inverse_std[PANEL], *d_norm = pass.train ? pass.d_readout_norm + (long)number_of_strip * 2 * D : nullptr;
  if (pass.train) std::memset(d_norm, 0, sizeof(float) * 2 * D);
  for (int p = strip.first_examples; p < strip.last_examples; p++) {
    const int n = examples.in(p);
    layer_norm(D, pass.trunk + (long)p * D * PANEL, weight, norm_bias, strip.hat, strip.normed, inverse_std);
    float *z = pass.train ? pass.d_logits + (long)p * NC * PANEL : strip.exponentials;
    const Prior prior(net, s, p * PANEL, n);
    v8 m0 = fill(-FLT_MAX), m1 = m0, sum0 = fill(0.0f), sum1 = sum0;
    const bool half = examples.half(p);
    multiply<false>(NC, D, readout, D, strip.normed, half, [&](int k, v8 x, v8 y) {
      x += bias[k], y += bias[k];
      if (!prior.flat) x += prior.log_weight(k, 0), y += prior.log_weight(k, 8);
      m0 = larger(m0, x), m1 = larger(m1, y);
      store2(z + (long)k * PANEL, x, y);
    });
    float own[PANEL] = {};  // the logits of the tokens' own labels
    for (int t = 0; pass.train && t < n; t++) own[t] = z[s.y[p * PANEL + t] * PANEL + t];
    float *logits = s.log_probs ? strip.logits : nullptr;
    for (int k = 0; k < NC; k++) {  // exponentials take the place of the logits
      float *at = z + (long)k * PANEL;
      const v8 x = load(at), y = load(at + 8), e0 = exp8(x - m0), e1 = exp8(y - m1);
      sum0 += e0, sum1 += e1;
      if (logits) store2(logits + (long)k * PANEL, x, y);
      store2(at, e0, e1);
    }
    const v8 total0 = m0 + log8(sum0), total1 = m1 + log8(sum1);
    if (logits) {
      for (int k = 0; k < NC; k++) {
        float *at = logits + (long)k * PANEL;
        store2(at, load(at) - total0, load(at + 8) - total1);
      }
      write_log_probs(pass, head, p, logits, strip.log_tokens);
    }
    if (!pass.train) continue;
    float of_token[PANEL], total[PANEL];
    store2(total, total0, total1);
    for (int t = 0; t < n; t++) strip.loss -= pass.loss_weight * (own[t] - total[t]);
    for (int t = 0; t < PANEL; t++) of_token[t] = t < n ? pass.loss_weight : 0.0f;
    const v8 share0 = load(of_token) / sum0, share1 = load(of_token + 8) / sum1;
    for (int k = 0; k < NC; k++) {
      float *at = z + (long)k * PANEL;
      store2(at, load(at) * share0, load(at + 8) * share1);
    }
    for (int t = 0; t < n; t++) z[s.y[p * PANEL + t] * PANEL + t] -= pass.loss_weight;
    to_tokens(strip.normed, D, pass.readout_tokens + (long)p * PANEL * pass.D16, pass.D16);
    multiply_long_columns(D, NC, readout, D, z, half, strip.d_normed);
    layer_norm_backward(D, strip.d_normed, strip.hat, weight, inverse_std, pass.d_trunk + (long)p * D * PANEL, d_norm,
                        d_norm + D);
  }
}

// A copy head: `number` 0 compares by the embedding, 1 by a linear map of the trunk. `from` [panel][W][16] is what
// examples are compared by; its gradient is added to d_from. Its keys are columns `offset` to `offset` + W of the
// example keys.
struct CopyHead {
  Pass &pass;
  const Net &net;
  const int number, W, W16, offset, parameter;
  const float *from;
  float *d_from;
  const float temperature, slope, null_logit;
  float *key, *query, *key_tokens, *query_tokens, *inverse_norm, *d_query;

  CopyHead(Pass &p, int which, const float *given, float *d_given)
      : pass(p), net(p.net), number(which), W(number ? net.W_deep : net.D), W16(ceil_to(W, 16)),
        offset(number && net.model.has_copy ? net.D : 0), parameter(number ? net.deep_copy : net.copy), from(given),
        d_from(d_given), temperature(std::exp(SPEEDUP * net.value(parameter)[0])),
        slope(SPEEDUP * net.value(parameter + 1)[0]), null_logit(SPEEDUP * net.value(parameter + 2)[0]),
        key(p.copy_key[number]), query(p.copy_query[number]), key_tokens(p.copy_key_tokens[number]),
        query_tokens(p.copy_query_tokens[number]), inverse_norm(p.copy_norm[number]), d_query(p.d_copy_query[number]) {}

  void run(int head, const Share &share) {
    for (int p = share.first_examples; p < share.last_examples; p++) normalize(p);
    if (pass.stream.new_example_keys)
      for (int t = share.first_examples * PANEL; t < std::min(pass.plan.examples.n, share.last_examples * PANEL); t++)
        std::memcpy(pass.stream.new_example_keys + (long)t * net.W + offset, key_tokens + (long)t * W16,
                    sizeof(float) * W);
    share.barrier.wait();  // all keys are there
    const long size = (long)pass.plan.examples.padded() * W16;
    for (int i = share.first_strip; i < share.last_strip; i++) {
      float *d_keys = nullptr, *d_scalars = nullptr;
      if (pass.train) {
        d_keys = pass.d_copy_keys[number] + i * size, d_scalars = pass.d_copy[number] + 3 * i;
        std::memset(d_keys, 0, sizeof(float) * size);
        std::memset(d_scalars, 0, sizeof(float) * 3);
      }
      for (int p = pass.strips[i].first_examples; p < pass.strips[i].last_examples; p++)
        compare(head, p, pass.strips[i], d_keys, d_scalars);
      for (int j = 0; pass.train && j < 3; j++) d_scalars[j] *= SPEEDUP;
    }
    if (!pass.train) return;
    share.barrier.wait();  // all strips have added what they found
    for (int p = share.first_examples; p < share.last_examples; p++) normalize_backward(p);
  }

 private:
  // keys of length about 1, and queries
  void normalize(int p) {
    const long at = (long)p * W * PANEL;
    for (int t = 0; t < PANEL; t += 8) {
      v8 square = fill(EPSILON);
      for (int w = 0; w < W; w++) square += load(from + at + w * PANEL + t) * load(from + at + w * PANEL + t);
      const v8 inverse = inverse_root(square);
      store(inverse_norm + p * PANEL + t, inverse);
      for (int w = 0; w < W; w++) {
        const v8 x = load(from + at + w * PANEL + t) * inverse;
        store(key + at + w * PANEL + t, x);
        store(query + at + w * PANEL + t, x * temperature);
      }
    }
    to_tokens(key + at, W, key_tokens + (long)p * PANEL * W16, W16);
    to_tokens(query + at, W, query_tokens + (long)p * PANEL * W16, W16);
  }

  int64_t label(int column) const {
    return column < pass.plan.PE ? pass.stream.example_labels[column] : pass.stream.y[column - pass.plan.PE];
  }
  float column_at(int column) const { return (column - pass.plan.example_origin) / (float)net.C_examples; }

  void compare(int head, int p, Strip &strip, float *d_keys, float *d_scalars) {
    float *weight = strip.copy_weight, *by_label = strip.by_label;
    const Stream &s = pass.stream;
    const Plan &plan = pass.plan;
    const Sight &sight = plan.in_heads[p];
    const bool half = plan.examples.half(p);
    const int PE = plan.PE, n = plan.examples.in(p), first = sight.first, last = sight.last;
    const int past = std::max(0, std::min(last, PE) - first);
    const int fresh = std::max(first, PE), num_fresh = std::max(0, last - fresh);
    const float *q = query + (long)p * W * PANEL;
    float null_score[PANEL], position[PANEL];
    for (int t = 0; t < PANEL; t++) {
      position[t] = plan.example_at(p * PANEL + t) / (float)net.C_examples;
      null_score[t] = position[t] * slope + null_logit;
    }
    v8 m0 = load(null_score), m1 = load(null_score + 8);
    auto keep = [&](int column, v8 x, v8 y) __attribute__((always_inline)) {
      const float of_age = column_at(column) * slope;
      x += of_age, y += of_age;
      sight.mask(column, x, y);
      m0 = larger(m0, x), m1 = larger(m1, y);
      store2(weight + (long)(column - first) * PANEL, x, y);
    };
    multiply<false>(past, W, s.example_keys + (long)first * net.W + offset, net.W, q, half,
                    [&](int i, v8 x, v8 y) { keep(first + i, x, y); });
    multiply<false>(num_fresh, W, key_tokens + (long)(fresh - PE) * W16, W16, q, half,
                    [&](int i, v8 x, v8 y) { keep(fresh + i, x, y); });
    v8 null0 = exp8(load(null_score) - m0), null1 = exp8(load(null_score + 8) - m1), sum0 = fill(0.0f), sum1 = sum0;
    int32_t own[PANEL];  // labels, of which -1 is none
    for (int t = 0; t < PANEL; t++) own[t] = s.y && t < n ? (int32_t)s.y[p * PANEL + t] : -1;
    const i8 own0 = load(own), own1 = load(own + 8);
    v8 right0 = fill(0.0f), right1 = right0;
    const bool wide = s.log_probs != nullptr;
    if (wide) std::memset(by_label, 0, sizeof(float) * net.NC * PANEL);
    for (int column = first; column < last; column++) {
      float *at = weight + (long)(column - first) * PANEL;
      const v8 x = exp8(load(at) - m0), y = exp8(load(at + 8) - m1);
      store2(at, x, y);
      sum0 += x, sum1 += y;
      const int32_t of = (int32_t)label(column);
      const i8 label8 = {of, of, of, of, of, of, of, of};
      right0 += (v8)((i8)x & (label8 == own0)), right1 += (v8)((i8)y & (label8 == own1));
      if (wide) add2(by_label + (long)of * PANEL, x, y);
    }
    const v8 inverse0 = 1.0f / (sum0 + null0), inverse1 = 1.0f / (sum1 + null1);
    const Prior prior(net, s, p * PANEL, n);
    const float kept = 1.0f - PRIOR_SHARE;
    const v8 rest0 = PRIOR_SHARE + kept * (null0 * inverse0), rest1 = PRIOR_SHARE + kept * (null1 * inverse1);
    if (wide) {
      for (int k = 0; k < net.NC; k++) {
        float *at = by_label + (long)k * PANEL;
        store2(at, log8(kept * (load(at) * inverse0) + rest0 * prior.weight(k, 0)),
               log8(kept * (load(at + 8) * inverse1) + rest1 * prior.weight(k, 8)));
      }
      write_log_probs(pass, head, p, by_label, strip.log_tokens);
    }
    if (!pass.train) return;
    // with p the probability of an example's own label, the loss changes with a column's weight by
    // c ((whether it has that label) - prior), where c = -(1 - PRIOR_SHARE) / p
    float right[PANEL], rest[PANEL], own_prior[PANEL], c[PANEL], mean[PANEL], seen[PANEL], null_weight[PANEL];
    store2(right, right0 * inverse0, right1 * inverse1), store2(rest, rest0, rest1);
    store2(seen, sum0 * inverse0, sum1 * inverse1), store2(null_weight, null0 * inverse0, null1 * inverse1);
    for (int t = 0; t < PANEL; t++) {
      own_prior[t] = own[t] >= 0 ? prior.weight_one(own[t], t) : 0.0f;
      const float probability = kept * right[t] + rest[t] * own_prior[t];
      c[t] = t < n ? -pass.loss_weight * kept / probability : 0.0f;
      if (t < n) strip.loss -= (double)pass.loss_weight * std::log(probability);
      mean[t] = c[t] * (right[t] - own_prior[t] * seen[t]);
    }
    const v8 on0 = (load(c) * (1.0f - load(own_prior)) - load(mean)) * inverse0;
    const v8 on1 = (load(c + 8) * (1.0f - load(own_prior + 8)) - load(mean + 8)) * inverse1;
    const v8 off0 = (-load(c) * load(own_prior) - load(mean)) * inverse0;
    const v8 off1 = (-load(c + 8) * load(own_prior + 8) - load(mean + 8)) * inverse1;
    v8 of_slope = fill(0.0f);
    for (int column = first; column < last; column++) {  // the gradient of the scores takes the place of the weights
      float *at = weight + (long)(column - first) * PANEL;
      const int32_t of = (int32_t)label(column);
      const i8 label8 = {of, of, of, of, of, of, of, of};
      const v8 x = load(at) * select(label8 == own0, on0, off0), y = load(at + 8) * select(label8 == own1, on1, off1);
      store2(at, x, y);
      of_slope += (x + y) * column_at(column);
    }
    float &d_temperature = d_scalars[0], &d_slope = d_scalars[1], &d_null = d_scalars[2];
    d_slope += sum(of_slope);
    for (int t = 0; t < PANEL; t++) {
      const float of_null = -null_weight[t] * mean[t];
      d_null += of_null, d_slope += of_null * position[t];
    }
    float *d_q = d_query + (long)p * W * PANEL;
    multiply<true>(W, past, s.example_keys + (long)first * net.W + offset, net.W, weight, half,
                   [&](int i, v8 x, v8 y) { store2(d_q + i * PANEL, x, y); });
    float *of_fresh = weight + (long)(fresh - first) * PANEL;
    if (num_fresh) {
      const long at = (long)(fresh - PE) * W16;
      multiply<true>(W, num_fresh, key_tokens + at, W16, of_fresh, half,
                     [&](int i, v8 x, v8 y) { add2(d_q + i * PANEL, x, y); });
      multiply_tokens(num_fresh, W, plan.examples.width(p), of_fresh, query_tokens + (long)p * PANEL * W16, W16, d_keys + at,
                      W16);
    }
    v8 along = fill(0.0f);
    for (int i = 0; i < W * PANEL; i += 8) along += load(d_q + i) * load(q + i);
    d_temperature += sum(along);
  }

  void normalize_backward(int p) {
    const long at = (long)p * W * PANEL;
    float *d_key = query + at;  // queries are not needed any more
    float *sum_tokens = query_tokens + (long)p * PANEL * W16;  // nor these
    const float *d_keys = pass.d_copy_keys[number] + (long)p * PANEL * W16;
    for (int i = 0; i < PANEL * W16; i += 8) store(sum_tokens + i, load(d_keys + i));
    for (size_t strip = 1; strip < pass.strips.size(); strip++) {
      d_keys += (long)pass.plan.examples.padded() * W16;
      for (int i = 0; i < PANEL * W16; i += 8) store(sum_tokens + i, load(sum_tokens + i) + load(d_keys + i));
    }
    from_tokens(sum_tokens, W16, PANEL, W, d_key);
    for (int t = 0; t < PANEL; t += 8) {
      v8 along = fill(0.0f);
      for (int w = 0; w < W; w++) {
        const long i = w * PANEL + t;
        const v8 x = load(d_query + at + i) * temperature + load(d_key + i);
        store(d_key + i, x);
        along += x * load(key + at + i);
      }
      for (int w = 0; w < W; w++) {
        const long i = w * PANEL + t;
        float *to = d_from + at + i;
        store(to, load(to) + (load(d_key + i) - load(key + at + i) * along) * load(inverse_norm + p * PANEL + t));
      }
    }
  }
};

// All heads of the model, in the order of its predictions. Leaves the gradient of the trunk in d_trunk, and that of the
// embedding that does not go through the blocks in d_embedded.
static void heads(Pass &pass, const Share &share) {
  const Net &net = pass.net;
  const int D = net.D, W = net.W_deep, first = share.first_examples, panels = share.last_examples - first;
  const long wide = (long)first * D * PANEL, deep = (long)first * W * PANEL;
  if (pass.train) {
    std::memset(pass.d_trunk + wide, 0, sizeof(float) * panels * D * PANEL);
    if (pass.d_embedded) std::memset(pass.d_embedded + wide, 0, sizeof(float) * panels * D * PANEL);
  }
  const bool half = panels && pass.plan.examples.half(share.last_examples - 1);
  int head = 0;
  if (net.model.has_softmax) {
    for (int i = share.first_strip; i < share.last_strip; i++) softmax_head(pass, head, i);
    head++;
  }
  if (net.model.has_copy) CopyHead(pass, 0, pass.embedded, pass.d_embedded).run(head++, share);
  if (!net.model.has_deep_copy) return;
  const float *projection = net.value(net.deep_copy + 3);
  multiply_panels<false>(W, D, projection, D, pass.trunk + wide, panels, half,
                         [&](int p, int i, v8 x, v8 y) { store2(pass.projected + deep + (p * W + i) * PANEL, x, y); });
  if (pass.train) {
    std::memset(pass.d_projected + deep, 0, sizeof(float) * panels * W * PANEL);
    for (int p = first; p < share.last_examples; p++)
      to_tokens(pass.trunk + (long)p * D * PANEL, D, pass.trunk_tokens + (long)p * PANEL * pass.D16, pass.D16);
  }
  CopyHead(pass, 1, pass.projected, pass.d_projected).run(head, share);
  if (pass.train)
    multiply_panels<true>(D, W, projection, D, pass.d_projected + deep, panels, half, [&](int p, int i, v8 x, v8 y) {
      add2(pass.d_trunk + wide + ((long)p * D + i) * PANEL, x, y);
    });
}

}  // namespace prequential
