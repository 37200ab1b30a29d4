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
  float *d_keys, *d_values;    // (T, K rounded up) of columns with a label
  float *d_norm;               // [strip](2, D) of the norm's weight and bias
};

// Some panels of a pass, which one thread computes. What is summed over tokens is summed in each strip and then over
// the strips, so that it does not depend on how many threads share them.
struct Strip {
  int first, last;                                   // panels of tokens
  int first_examples, last_examples;                 // panels of the examples that these tokens are
  float *q_tokens, *d_attended_tokens, *new_weight;  // of the panel at work: (16, D + 16) each, [column][16]
  float *hat, *normed, *d_normed;                    // of the softmax head: [D][16] each
  float *logits, *exponentials;                      // the same: [NC][16] each
  float *copy_weight, *by_label, *log_tokens;        // of a copy head: [column][16], [NC][16], (16, NC)
  double loss = 0;                                   // weighted sum over tokens and heads
};
constexpr int MOST_STRIPS = 8;

// What one thread of several has to do of a pass.
struct Share {
  Barrier &barrier;
  int first, last;                    // panels of tokens
  int first_examples, last_examples;  // panels of examples
  int first_strip, last_strip;        // the same in strips
  int part, parts;
};

// One stream in a pass. Blocks work on panels of tokens, what is before and behind them on panels of examples.
struct Pass {
  const Net &net;
  const Stream &stream;
  Arena &arena;
  Plan plan;
  bool train;
  float loss_weight = 0;  // of one example's loss
  int D16, J16, K16, F16, columns;  // rows rounded up to 16; all columns of the blocks
  std::vector<int> weight_row;      // where a panel's weights begin, in rows of 16
  std::vector<Strip> strips;
  std::vector<BlockWork> blocks;
  float *cosine, *sine;                           // [panel][K/2][16] of the new tokens
  float *x_panel, *x_tokens;                      // [panel][F][16], (examples, F rounded up)
  float *embedded;                                // [panel][D][16] of examples, where copy heads or pairs need it
  float *h;                                       // [panel][D][16] of tokens
  float *trunk, *d_trunk;                         // the same of examples behind the blocks: where these are tokens, h
  float *in, *normed, *k_tokens, *v_tokens;       // of the block at work
  float *d_h, *d_embedded, *d_joined, *d_normed;  // [panel][D or J][16]; of d_embedded, what does not go through blocks
  float *d_pairs, *d_y_tokens;                    // [panel][x D, y D][16] of examples that are pairs, (examples, D16) of y
  float *d_columns[2];                            // [strip][keys, values](new columns, K16) of every other block
  // of the heads
  float *readout_tokens, *d_logits, *d_readout_norm;      // (examples, D16), [panel][NC][16], [strip](2, D)
  float *projected, *trunk_tokens, *d_projected;          // [panel][W_deep][16], (examples, D16), as the first
  float *copy_key[2], *copy_query[2], *copy_norm[2];      // of both copy heads: [panel][W][16] and [panel][16]
  float *copy_key_tokens[2], *copy_query_tokens[2];       // (examples, W16)
  float *d_copy_query[2], *d_copy_keys[2], *d_copy[2];    // [panel][W][16], [strip](examples, W16), [strip](3) scalars

  Pass(const Net &n, const Stream &s, Arena &a, bool trains) : net(n), stream(s), arena(a), train(trains) {}

  int new_columns() const { return columns - plan.P; }
  double loss() const {
    double total = 0;
    for (const Strip &strip : strips) total += strip.loss;
    return total;
  }
  Share share(int part, int parts, Barrier &barrier) const {
    const int n = (int)strips.size(), first = n * part / parts, last = n * (part + 1) / parts;
    auto panel = [&](int strip) { return strip < n ? strips[strip].first : plan.tokens.count; };
    auto of_examples = [&](int strip) { return strip < n ? strips[strip].first_examples : plan.examples.count; };
    return {barrier, panel(first), panel(last), of_examples(first), of_examples(last), first, last, part, parts};
  }

  // Takes all memory that the pass needs.
  void prepare() {
    arena.restart();
    const Net &n = net;
    const int T = plan.tokens.padded(), S = plan.examples.padded();
    const int num_strips = std::min(plan.examples.count, MOST_STRIPS);
    const size_t wide = (size_t)T * n.D, of_examples = (size_t)S * n.D;
    const bool pairs = plan.in_pairs;
    D16 = ceil_to(n.D, 16), J16 = ceil_to(n.J, 16), K16 = ceil_to(n.K, 16), F16 = ceil_to(n.F, 16);
    columns = plan.P + plan.tokens.n * (plan.any_unlabeled ? 2 : 1);
    weight_row.assign(plan.tokens.count + 1, 0);
    for (int p = 0; p < plan.tokens.count; p++)
      weight_row[p + 1] = weight_row[p] + plan.labeled[p].count() + plan.unlabeled[p].count();
    h = arena.floats(wide), embedded = n.model.has_copy || pairs ? arena.floats(of_examples) : nullptr;
    trunk = pairs ? arena.floats(of_examples) : h;
    x_panel = arena.floats((size_t)S * n.F), x_tokens = train ? arena.floats((size_t)S * F16) : nullptr;
    in = arena.floats((size_t)T * n.I), normed = arena.floats(wide);
    k_tokens = arena.floats((size_t)T * n.K), v_tokens = arena.floats((size_t)T * n.K);
    cosine = arena.floats((size_t)T * n.K), sine = arena.floats((size_t)T * n.K);
    blocks.resize(n.L);
    for (int l = 0; l < n.L; l++) prepare_block(l, num_strips);
    if (train) {
      d_h = arena.floats(wide), d_normed = arena.floats(wide), d_joined = arena.floats((size_t)T * n.J);
      d_trunk = pairs ? arena.floats(of_examples) : d_h;
      d_embedded = n.model.has_copy ? arena.floats(of_examples) : nullptr;
      d_pairs = pairs ? arena.floats(2 * of_examples) : nullptr;
      d_y_tokens = pairs ? arena.floats((size_t)S * D16) : nullptr;
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
    const int T = plan.tokens.padded();
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
    if (n.attention) b.d_keys = arena.floats((size_t)T * K16), b.d_values = arena.floats((size_t)T * K16);
  }

  void prepare_heads(int num_strips) {
    const Net &n = net;
    const int S = plan.examples.padded();
    if (train && n.model.has_softmax) {
      d_logits = arena.floats((size_t)S * n.NC), readout_tokens = arena.floats((size_t)S * D16);
      d_readout_norm = arena.floats((size_t)num_strips * 2 * n.D);
    }
    if (n.model.has_deep_copy) {
      projected = arena.floats((size_t)S * n.W_deep);
      if (train) d_projected = arena.floats((size_t)S * n.W_deep), trunk_tokens = arena.floats((size_t)S * D16);
    }
    for (int i = 0; i < 2; i++) {
      if (!(i ? n.model.has_deep_copy : n.model.has_copy)) continue;
      const size_t W = i ? n.W_deep : n.D, W16 = ceil_to(W, 16);
      copy_key[i] = arena.floats(S * W), copy_query[i] = arena.floats(S * W), copy_norm[i] = arena.floats(S);
      copy_key_tokens[i] = arena.floats(S * W16), copy_query_tokens[i] = arena.floats(S * W16);
      if (!train) continue;
      d_copy_query[i] = arena.floats(S * W), d_copy_keys[i] = arena.floats(num_strips * S * W16);
      d_copy[i] = arena.floats(num_strips * 3);
    }
  }

  void prepare_strip(int i, int num_strips) {
    const Net &n = net;
    Strip &strip = strips[i];
    const int panels = plan.examples.count, of_tokens = plan.in_pairs ? 2 : 1;
    strip.first_examples = panels * i / num_strips, strip.last_examples = panels * (i + 1) / num_strips;
    strip.first = of_tokens * strip.first_examples;
    strip.last = std::min(plan.tokens.count, of_tokens * strip.last_examples);
    if (train) {
      strip.q_tokens = arena.floats((size_t)PANEL * (n.D + PANEL));
      strip.d_attended_tokens = arena.floats((size_t)PANEL * (n.D + PANEL));
      strip.new_weight = arena.floats((size_t)new_columns() * PANEL);
    }
    const size_t classes = (size_t)n.NC * PANEL;
    if (n.model.has_softmax) {
      strip.hat = arena.floats((size_t)n.D * PANEL), strip.normed = arena.floats((size_t)n.D * PANEL);
      strip.d_normed = train ? arena.floats((size_t)n.D * PANEL) : nullptr;
      strip.logits = stream.log_probs ? arena.floats(classes) : nullptr;
      strip.exponentials = train ? nullptr : arena.floats(classes);
    }
    if (stream.log_probs) strip.log_tokens = arena.floats(classes);
    if (!n.W) return;
    int most = 0;
    for (int p = strip.first_examples; p < strip.last_examples; p++) most = std::max(most, plan.in_heads[p].count());
    strip.copy_weight = arena.floats((size_t)most * PANEL);
    if (stream.log_probs) strip.by_label = arena.floats(classes);
  }
};

}  // namespace prequential
