// One stream in a pass: the memory that it needs, and how threads share it.
#pragma once
#include "model.h"
#include "team.h"

namespace prequential {

// What the backward pass needs of a block's forward pass, and what the sums of the gradients need of both.
struct BlockWork {
  float *hat, *inverse_std;    // [panel][D][16], [panel][16] of the norm
  float *normed_tokens;        // (tokens, D rounded up) what goes into in_proj
  float *slope;                // [panel][HID][16] of gelu
  float *joined;               // [panel][J][16] what goes into out_proj
  float *joined_tokens;        // (tokens, J rounded up) the same
  float *q;                    // [panel][D][16] queries, rotated and scaled
  float *keys, *values;        // (columns, K) keys rotated
  float *weight, *inverse_sum;  // [panel][head][column][16] before they are divided by their sum, [panel][head][16]
  float *d_in, *d_out;         // [panel][I][16], [panel][D][16] gradients behind in_proj and out_proj
  float *d_keys, *d_values;    // (S, K rounded up) of columns with a label
  float *d_norm;               // [strip](2, D) of the norm's weight and bias
};

// Some panels of a pass, which one thread computes. What is summed over tokens is summed in each strip and then over
// the strips, so that it does not depend on how many threads share them.
struct Strip {
  int first, last;                                   // panels
  float *q_tokens, *d_attended_tokens, *new_weight;  // of the panel at work: (16, D + 16) each, [column][16]
  float *hat, *normed, *logits, *exponentials;       // of the softmax head: [D][16] each, [NC][16] each
  float *copy_weight, *by_label, *log_tokens;        // of a copy head: [column][16], [NC][16], (16, NC)
  double loss = 0;                                   // weighted sum over tokens and heads
};
constexpr int MOST_STRIPS = 8;

// What one thread of several has to do of a pass.
struct Share {
  Barrier &barrier;
  int first, last;              // panels
  int first_strip, last_strip;  // the same in strips
  int part, parts;
};

// One stream in a pass.
struct Pass {
  const Net &net;
  const Stream &stream;
  Arena &arena;
  Plan plan;
  bool train;
  float loss_weight = 0;  // of one token's loss
  int D16, J16, K16, F16, columns;  // rows rounded up to 16; all columns of the blocks
  std::vector<int> weight_row;      // where a panel's weights begin, in rows of 16
  std::vector<Strip> strips;
  std::vector<BlockWork> blocks;
  float *cosine, *sine;                           // [panel][K/2][16] of the new tokens
  float *x_panel, *x_tokens;                      // [panel][F][16], (tokens, F rounded up)
  float *h, *embedded;                            // [panel][D][16]
  float *in, *normed, *k_tokens, *v_tokens;       // of the block at work
  float *d_h, *d_embedded, *d_joined, *d_normed;  // [panel][D or J][16]
  float *d_columns[2];                            // [strip][keys, values](new columns, K16) of every other block
  // of the heads
  float *readout_tokens, *d_logits, *d_readout_norm;      // (tokens, D16), [panel][NC][16], [strip](2, D)
  float *projected, *trunk_tokens, *d_projected;          // [panel][W_deep][16], (tokens, D16), as the first
  float *copy_key[2], *copy_query[2], *copy_norm[2];      // of both copy heads: [panel][W][16] and [panel][16]
  float *copy_key_tokens[2], *copy_query_tokens[2];       // (tokens, W16)
  float *d_copy_query[2], *d_copy_keys[2], *d_copy[2];    // [panel][W][16], [strip](tokens, W16), [strip](3) scalars

  Pass(const Net &n, const Stream &s, Arena &a, bool trains) : net(n), stream(s), arena(a), train(trains) {}

  int tokens() const { return plan.panels * PANEL; }
  int new_columns() const { return columns - plan.P; }
  double loss() const {
    double total = 0;
    for (const Strip &strip : strips) total += strip.loss;
    return total;
  }
  Share share(int part, int parts, Barrier &barrier) const {
    const int n = (int)strips.size(), first = n * part / parts, last = n * (part + 1) / parts;
    const int end = plan.panels;
    const int first_panel = first < n ? strips[first].first : end, last_panel = last < n ? strips[last].first : end;
    return {barrier, first_panel, last_panel, first, last, part, parts};
  }

  // Takes all memory that the pass needs.
  void prepare() {
    arena.restart();
    const Net &n = net;
    const int T = tokens(), num_strips = std::min(plan.panels, MOST_STRIPS);
    const size_t wide = (size_t)T * n.D;
    D16 = ceil_to(n.D, 16), J16 = ceil_to(n.J, 16), K16 = ceil_to(n.K, 16), F16 = ceil_to(n.F, 16);
    columns = plan.P + plan.S * (plan.any_unlabeled ? 2 : 1);
    weight_row.assign(plan.panels + 1, 0);
    for (int p = 0; p < plan.panels; p++)
      weight_row[p + 1] = weight_row[p] + plan.labeled[p].count() + plan.unlabeled[p].count();
    h = arena.floats(wide), embedded = n.model.has_copy ? arena.floats(wide) : nullptr;
    x_panel = arena.floats((size_t)T * n.F), x_tokens = train ? arena.floats((size_t)T * F16) : nullptr;
    in = arena.floats((size_t)T * n.I), normed = arena.floats(wide);
    k_tokens = arena.floats((size_t)T * n.K), v_tokens = arena.floats((size_t)T * n.K);
    cosine = arena.floats((size_t)T * n.K), sine = arena.floats((size_t)T * n.K);
    blocks.resize(n.L);
    for (int l = 0; l < n.L; l++) prepare_block(l, num_strips);
    if (train) {
      d_h = arena.floats(wide), d_normed = arena.floats(wide), d_joined = arena.floats((size_t)T * n.J);
      d_embedded = n.model.has_copy ? arena.floats(wide) : nullptr;
      for (int i = 0; i < 2 && n.attention && n.L; i++)
        d_columns[i] = arena.floats((size_t)num_strips * 2 * new_columns() * K16);
    }
    prepare_heads(num_strips);
    strips.resize(num_strips);
    for (int i = 0; i < num_strips; i++) prepare_strip(i, num_strips);
  }

 private:
  void prepare_block(int l, int num_strips) {
    const Net &n = net;
    const int T = tokens();
    const size_t wide = (size_t)T * n.D;
    BlockWork &b = blocks[l];
    if (l > 1 && !train) {  // nothing is needed later; two, as some threads may be a block ahead of others
      b = blocks[l % 2];
      return;
    }
    b.hat = arena.floats(wide), b.inverse_std = arena.floats(T), b.slope = arena.floats((size_t)T * n.HID);
    b.joined = arena.floats((size_t)T * n.J);
    if (n.attention) {
      b.q = arena.floats(wide), b.inverse_sum = arena.floats((size_t)T * n.H);
      b.keys = arena.floats((size_t)columns * n.K), b.values = arena.floats((size_t)columns * n.K);
      b.weight = arena.floats((size_t)weight_row.back() * n.H * PANEL);
    }
    if (!train) return;
    b.normed_tokens = arena.floats((size_t)T * D16), b.joined_tokens = arena.floats((size_t)T * J16);
    b.d_in = arena.floats((size_t)T * n.I), b.d_out = arena.floats(wide);
    b.d_norm = arena.floats((size_t)num_strips * 2 * n.D);
    if (n.attention) b.d_keys = arena.floats((size_t)plan.S * K16), b.d_values = arena.floats((size_t)plan.S * K16);
  }

  void prepare_heads(int num_strips) {
    const Net &n = net;
    const int T = tokens();
    if (train && n.model.has_softmax) {
      d_logits = arena.floats((size_t)T * n.NC), readout_tokens = arena.floats((size_t)T * D16);
      d_readout_norm = arena.floats((size_t)num_strips * 2 * n.D);
    }
    if (n.model.has_deep_copy) {
      projected = arena.floats((size_t)T * n.W_deep);
      if (train) d_projected = arena.floats((size_t)T * n.W_deep), trunk_tokens = arena.floats((size_t)T * D16);
    }
    for (int i = 0; i < 2; i++) {
      if (!(i ? n.model.has_deep_copy : n.model.has_copy)) continue;
      const size_t W = i ? n.W_deep : n.D, W16 = ceil_to(W, 16);
      copy_key[i] = arena.floats(T * W), copy_query[i] = arena.floats(T * W), copy_norm[i] = arena.floats(T);
      copy_key_tokens[i] = arena.floats(T * W16), copy_query_tokens[i] = arena.floats(T * W16);
      if (!train) continue;
      d_copy_query[i] = arena.floats(T * W), d_copy_keys[i] = arena.floats(num_strips * T * W16);
      d_copy[i] = arena.floats(num_strips * 3);
    }
  }

  void prepare_strip(int i, int num_strips) {
    const Net &n = net;
    Strip &strip = strips[i];
    strip.first = plan.panels * i / num_strips, strip.last = plan.panels * (i + 1) / num_strips;
    if (train) {
      strip.q_tokens = arena.floats((size_t)PANEL * (n.D + PANEL));
      strip.d_attended_tokens = arena.floats((size_t)PANEL * (n.D + PANEL));
      strip.new_weight = arena.floats((size_t)new_columns() * PANEL);
    }
    const size_t classes = (size_t)n.NC * PANEL;
    if (n.model.has_softmax) {
      strip.hat = arena.floats((size_t)n.D * PANEL), strip.normed = arena.floats((size_t)n.D * PANEL);
      strip.logits = stream.log_probs ? arena.floats(classes) : nullptr;
      strip.exponentials = train ? nullptr : arena.floats(classes);
    }
    if (stream.log_probs) strip.log_tokens = arena.floats(classes);
    if (!n.W) return;
    int most = 0;
    for (int p = strip.first; p < strip.last; p++) most = std::max(most, plan.examples[p].count());
    strip.copy_weight = arena.floats((size_t)most * PANEL);
    if (stream.log_probs) strip.by_label = arena.floats(classes);
  }
};

}  // namespace prequential
