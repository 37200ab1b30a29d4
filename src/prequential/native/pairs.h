// The tokens x_1 y_1 x_2 y_2 ... of the 2-token transformer, from and to panels of examples: 16 of these are two panels of
// tokens, of which the second may be missing.
#pragma once
#include "blocks.h"

namespace prequential {

// Eight examples to 16 tokens, and back
INLINE void interleave(v8 x, v8 y, float *tokens) {
  store2(tokens, SHUFFLE(x, y, 0, 8, 1, 9, 2, 10, 3, 11), SHUFFLE(x, y, 4, 12, 5, 13, 6, 14, 7, 15));
}
INLINE v8 x_tokens_of(const float *tokens) {
  return SHUFFLE(load(tokens), load(tokens + 8), 0, 2, 4, 6, 8, 10, 12, 14);
}
INLINE v8 y_tokens_of(const float *tokens) {
  return SHUFFLE(load(tokens), load(tokens + 8), 1, 3, 5, 7, 9, 11, 13, 15);
}

// f(feature, examples of a panel, tokens) for each feature of each group of eight examples: where in [panel][D][16] of
// examples it is, and where its 16 tokens begin. `missing` is given where there are no such tokens.
template <class F, class M> INLINE void for_each_pair(const Pass &pass, const Share &share, F f, M missing) {
  const int D = pass.net.D;
  for (int p = share.first_examples; p < share.last_examples; p++)
    for (int i = 0; i < 2; i++) {
      const int panel = 2 * p + i;
      for (int d = 0; d < D; d++) {
        const long at = ((long)p * D + d) * PANEL + 8 * i;
        if (panel < pass.plan.tokens.count)
          f(p, d, at, ((long)panel * D + d) * PANEL);
        else
          missing(p, d, at);
      }
    }
}

// The input of the first block where labels are tokens: the embedding of x with that of its type, and that of y.
static void embed_tokens(Pass &pass, const Share &share) {
  const Net &net = pass.net;
  const Stream &s = pass.stream;
  const int D = net.D, S = pass.plan.examples.n;
  const float *labels = net.value(net.label_embedding), *type = net.value(net.token_type);
  if (!pass.plan.in_pairs) {
    for (int p = share.first; p < share.last; p++)
      for (int d = 0; d < D; d++) add2(pass.h + ((long)p * D + d) * PANEL, fill(type[d]), fill(type[d]));
    return;
  }
  for_each_pair(
      pass, share,
      [&](int p, int d, long at, long tokens) {
        const int first = p * PANEL + (int)(at % PANEL);
        v8 y = fill(0.0f);
        for (int t = 0; t < 8 && first + t < S; t++) y[t] = labels[s.y[first + t] * D + d];
        interleave(load(pass.embedded + at) + type[d], y + type[D + d], pass.h + tokens);
      },
      [](int, int, long) {});
}

// What the heads read, which is at the x tokens alone ...
static void take_x_tokens(Pass &pass, const Share &share) {
  for_each_pair(
      pass, share, [&](int, int, long at, long tokens) { store(pass.trunk + at, x_tokens_of(pass.h + tokens)); },
      [&](int, int, long at) { store(pass.trunk + at, fill(0.0f)); });
}

// ... and its gradient
static void put_x_tokens(Pass &pass, const Share &share) {
  for_each_pair(
      pass, share,
      [&](int, int, long at, long tokens) { interleave(load(pass.d_trunk + at), fill(0.0f), pass.d_h + tokens); },
      [](int, int, long) {});
}

// The gradient d_h before the blocks, of x and of y.
static void split_gradient(Pass &pass, const Share &share) {
  const int D = pass.net.D;
  auto put = [&](int p, int d, long at, v8 of_x, v8 of_y) {
    float *to = pass.d_pairs + ((long)p * 2 * D + d) * PANEL + at % PANEL;
    store(to, of_x), store(to + (long)D * PANEL, of_y);
    if (pass.d_embedded) store(pass.d_embedded + at, load(pass.d_embedded + at) + of_x);
  };
  for_each_pair(
      pass, share,
      [&](int p, int d, long at, long tokens) {
        put(p, d, at, x_tokens_of(pass.d_h + tokens), y_tokens_of(pass.d_h + tokens));
      },
      [&](int p, int d, long at) { put(p, d, at, fill(0.0f), fill(0.0f)); });
  for (int p = share.first_examples; p < share.last_examples; p++)
    to_tokens(pass.d_pairs + ((long)p * 2 + 1) * D * PANEL, D, pass.d_y_tokens + (long)p * PANEL * pass.D16, pass.D16);
}

}  // namespace prequential
