// What a pass is given: the model's own parameters, streams with their past, and what each token may see.
//
// The structures up to `Step` are the interface to transformer.py, which declares them field by field. All tensors are
// torch's own memory, float32 and row-major; labels are int64.
//
// Letters: L blocks, S new examples of a stream, T their tokens, P past tokens in its KV cache, PE past examples, D width,
// H query heads, K key width, HID width of the MLP's hidden layer, F features, NC class ids, C window in tokens, W width
// of the example keys of copy heads. In the pi-transformer an example is one token; in the 2-token transformer it is
// x_t and then y_t, and to predict it, x_t alone.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#include "kernels.h"

namespace prequential {

struct Parameter {
  float *value, *exp_avg, *exp_avg_sq, *step;  // the last three are null where nothing is trained
  int64_t size;
  double weight_decay;
};

// The parameters come in this order: embed.weight and embed.bias, or constant; of the 2-token transformer label_embedding
// and token_type; of each block those of BlockRole (the label tables only with attention, and not in the 2-token
// transformer); of the softmax head norm.weight, norm.bias, readout.weight, readout.bias; of each copy head
// log_temperature, recency_slope, null_logit; of the deep one also key_proj.weight.
enum BlockRole { MLP_BIAS, NORM_WEIGHT, NORM_BIAS, IN_PROJ, OUT_PROJ, KEY_LABELS, VALUE_LABELS };

struct Model {
  const Parameter *parameters;
  const float *rotary;          // (rotary_length, K / 2, 2) cosine and sine of each position; null: no positions
  const float *rotary_columns;  // (K / 2, 2, rotary_columns_length) the same, and at least 16 more of each
  int32_t num_parameters, rotary_length, rotary_columns_length;
  int32_t features, width, num_heads, mlp_width, depth, num_classes, window;
  int32_t use_input, has_softmax, has_copy, has_deep_copy;
  int32_t tokens_per_example;  // 1: the pi-transformer; 2: the 2-token transformer
};

// What a new token of the pi-transformer sees, counted from the end of the past: -1 is the newest past token, 0 the first
// new one. It sees [begin, end) with their labels, and of the new ones [unlabeled_begin, unlabeled_end) as they are
// without. Where there is one new token alone, these may also be past ones, counted in the same way, if the model has a
// copy head: their labels are then those of the examples. The 2-token transformer is not given such ranges.
struct Visible {
  int32_t begin, end, unlabeled_begin, unlabeled_end, position;
};

// One stream: new tokens, what they look back on, and where results go.
struct Stream {
  const float *x;           // (S, F); null where the model does not use its input
  const int64_t *y;         // (S) their labels; null: they are to be predicted
  const int64_t *num_seen;  // (S) how many labels had been seen before each; null: all
  const Visible *visible;   // (S); null: each sees the C tokens before it, or where there is no y, each is the next
  const float *keys, *values;     // (L, P, K) of the past, rows next to each other, blocks `block_stride` apart
  const float *example_keys;      // (P, W)
  const int64_t *example_labels;  // (P)
  float *log_probs;               // (heads, S, NC); null: not needed
  float *new_keys, *new_values;   // (L, T, K), blocks `new_block_stride` apart; null: not needed
  float *new_example_keys;        // (S, W)
  int64_t *new_example_labels;    // (S) where a step copies y to; null: not needed
  int64_t block_stride, new_block_stride;
  int32_t length, past, past_examples, padding;
};

struct Step {
  double learning_rate, beta1, beta2, eps;
};

enum Error {
  OK = 0,
  BAD_MODEL,
  BAD_STREAM,
  BAD_LABEL,
  BAD_VISIBLE,
  TOO_LONG,
  NO_MEMORY,
};

constexpr float PRIOR_SHARE = 0.02f, EPSILON = 1e-2f, SPEEDUP = 10.0f;  // as in models/heads/copy.py
constexpr int DEEP_WIDTH = 32;
constexpr float NEVER = -1e30f;  // the score of what is not seen

// The sizes of a model, and where among its parameters each one is.
struct Net {
  const Model &model;
  int F, D, H, K, HID, L, NC, C;
  int C_examples;  // the window in examples
  int I, J;        // rows of in_proj, columns of out_proj
  int W, W_deep;   // width of all example keys, and of those of the deep copy head
  int num_heads_out;
  bool attention;
  bool label_tokens;  // labels are tokens of their own, and each token sees itself; else they are added to keys and values
  bool label_tables;  // the latter, by tables in each block
  int label_embedding, token_type, blocks, softmax, copy, deep_copy;  // of the first parameter of each
  int per_block, count;

  explicit Net(const Model &m)
      : model(m), F(m.features), D(m.width), H(m.num_heads), K(H > 0 ? D / H : 0), HID(m.mlp_width), L(m.depth),
        NC(m.num_classes), C(m.window), C_examples(m.tokens_per_example == 2 ? C / 2 : C), attention(C > 0),
        label_tokens(m.tokens_per_example == 2), label_tables(attention && !label_tokens) {
    I = HID + (attention ? D + 2 * K : 0);
    J = HID + (attention ? D : 0);
    W_deep = m.has_deep_copy ? std::min(D, DEEP_WIDTH) : 0;
    W = (m.has_copy ? D : 0) + W_deep;
    num_heads_out = !!m.has_softmax + !!m.has_copy + !!m.has_deep_copy;
    label_embedding = m.use_input ? 2 : 1, token_type = label_embedding + 1;
    blocks = label_embedding + (label_tokens ? 2 : 0);
    per_block = label_tables ? 7 : 5;
    softmax = blocks + L * per_block;
    copy = softmax + (m.has_softmax ? 4 : 0);
    deep_copy = copy + (m.has_copy ? 3 : 0);
    count = deep_copy + (m.has_deep_copy ? 4 : 0);
  }
  const float *value(int i) const { return model.parameters[i].value; }
  int of_block(int l, BlockRole role) const { return blocks + l * per_block + role; }
  const float *block(int l, BlockRole role) const { return value(of_block(l, role)); }
  bool rotates() const { return model.rotary && attention && L > 0; }

  // The sizes that each parameter must have: rows and columns, of vectors one column.
  void shape(int i, int &rows, int &cols) const {
    cols = 1;
    if (i < label_embedding) {
      rows = D;
      if (model.use_input && i == 0) cols = F;
    } else if (i < blocks) {
      rows = i == label_embedding ? NC : 2 * D;  // both types as one vector, as their gradients are summed
      if (i == label_embedding) cols = D;
    } else if (i < softmax) {
      const int role = (i - blocks) % per_block;
      rows = role == MLP_BIAS ? HID : role == IN_PROJ ? I : role == KEY_LABELS || role == VALUE_LABELS ? NC : D;
      cols = role == IN_PROJ ? D : role == OUT_PROJ ? J : role == KEY_LABELS || role == VALUE_LABELS ? K : 1;
    } else if (i < copy) {
      rows = i - softmax >= 2 ? NC : D;
      if (i - softmax == 2) cols = D;
    } else {
      const bool projection = model.has_deep_copy && i == deep_copy + 3;
      rows = projection ? W_deep : 1;
      if (projection) cols = D;
    }
  }

  Error check(bool trained) const {
    const Model &m = model;
    constexpr int most = 1 << 24;
    for (int size : {F, D, H, HID, L, NC, C})
      if (size < 0 || size > most) return BAD_MODEL;
    if (m.tokens_per_example != 1 && m.tokens_per_example != 2) return BAD_MODEL;
    if (D < 1 || H < 1 || D % H || NC < 1 || (m.use_input && F < 1) || (L && HID < 1)) return BAD_MODEL;
    if (m.rotary && attention && (K % 2 || m.rotary_length < 1)) return BAD_MODEL;
    if (m.rotary && (!m.rotary_columns || m.rotary_columns_length < m.rotary_length + PANEL)) return BAD_MODEL;
    if (!num_heads_out || ((m.has_copy || m.has_deep_copy) && !C_examples)) return BAD_MODEL;
    if (!m.parameters || m.num_parameters != count) return BAD_MODEL;
    for (int i = 0; i < count; i++) {
      const Parameter &p = m.parameters[i];
      int rows, cols;
      shape(i, rows, cols);
      if (p.size != (int64_t)rows * cols || !p.value) return BAD_MODEL;
      if (trained && (!p.exp_avg || !p.exp_avg_sq || !p.step)) return BAD_MODEL;
    }
    return OK;
  }
};

// Memory for one pass, which is kept for the next one. What it gives is 64-byte aligned and has room for 16 more.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;
  ~Arena() { release(); }

  // All that was given is free again. Where several pieces were needed, the next pass gets all of it in one.
  void restart() {
    if (pieces_.size() > 1 || total_ > KEPT) {
      const size_t total = total_;
      release();
      if (total <= KEPT && !CHECKED) add(total);
    }
    used_ = 0;
  }

  float *floats(size_t n) {
    const size_t need = ceil_to(n + PANEL, 16);
    if (CHECKED || pieces_.empty() || used_ + need > pieces_.back().size) {
      add(CHECKED ? need : std::max(need, (size_t)1 << 16));
      used_ = 0;
    }
    float *given = pieces_.back().start + used_;
    used_ += need;
    return given;
  }
  int32_t *ints(size_t n) { return reinterpret_cast<int32_t *>(floats(n)); }

 private:
  static constexpr size_t KEPT = (size_t)16 << 20;  // floats; more than that is given back after each pass
#ifdef __SANITIZE_ADDRESS__
  static constexpr bool CHECKED = true;  // everything lies alone, so that an access beside it is found
#else
  static constexpr bool CHECKED = false;
#endif
  struct Piece {
    void *memory;
    float *start;
    size_t size;
  };
  std::vector<Piece> pieces_;
  size_t used_ = 0, total_ = 0;

  void add(size_t n) {
    n = ceil_to(n, 16);
    pieces_.reserve(pieces_.size() + 1);
    void *memory = std::calloc(n + 16, sizeof(float));  // not every system has aligned_alloc
    if (!memory) throw std::bad_alloc();
    float *start = reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64);
    pieces_.push_back({memory, start, n});
    total_ += n;
  }
  void release() {
    for (Piece &piece : pieces_) std::free(piece.memory);
    pieces_.clear();
    total_ = used_ = 0;
  }
};

// Which columns the tokens of a panel see, [begin[t], end[t]) each, and what they have in common.
struct Sight {
  int32_t begin[PANEL], end[PANEL];
  int first, last;        // all that some token sees is in [first, last)
  int shared, shared_end;  // and what all of them see is [shared, shared_end)

  int count() const { return last - first; }
  // Tokens from `n` on see what the one before them does: there are none, and so they need no mask.
  void finish(int n) {
    first = INT32_MAX, last = 0, shared = 0, shared_end = INT32_MAX;
    for (int t = 0; t < PANEL; t++) {
      if (t >= n) begin[t] = begin[n - 1], end[t] = end[n - 1];
      if (end[t] <= begin[t]) {
        begin[t] = end[t] = 0;
        shared_end = 0;
        continue;
      }
      first = std::min(first, (int)begin[t]), last = std::max(last, (int)end[t]);
      shared = std::max(shared, (int)begin[t]), shared_end = std::min(shared_end, (int)end[t]);
    }
    if (last == 0) first = 0;
  }
  // hides column n from those tokens that do not see it
  inline __attribute__((always_inline)) void mask(int n, v8 &a, v8 &b) const {
    if (__builtin_expect(n >= shared && n < shared_end, 1)) return;
    const i8 column = {n, n, n, n, n, n, n, n};
    a = select((column >= load(begin)) & (column < load(end)), a, fill(NEVER));
    b = select((column >= load(begin + 8)) & (column < load(end + 8)), b, fill(NEVER));
  }
};

// Tokens or examples in panels of 16.
struct Panels {
  int n = 0, count = 0;

  void of(int number) { n = number, count = (n + PANEL - 1) / PANEL; }
  int padded() const { return count * PANEL; }
  int in(int p) const { return std::min(PANEL, n - p * PANEL); }  // of panel p
  // Whether a panel has so few that its second half is left out of products, and how many are computed.
  bool half(int p) const { return n - p * PANEL <= PANEL / 2; }
  int width(int p) const { return half(p) ? PANEL / 2 : PANEL; }
};

// What all tokens of a stream see, and where they stand. Columns are past tokens, then new ones with their labels, then
// the new ones again as they are without. Of the 2-token transformer, the last are the x tokens of examples to predict,
// each of which sees itself and none of the others.
struct Plan {
  Panels tokens, examples;  // the same where an example is one token
  bool in_pairs;            // an example is two tokens, x and y
  int P, PE;
  std::vector<Sight> labeled, unlabeled, in_heads;  // of each panel; those of heads are of examples
  std::vector<int32_t> position, example_position;  // of each, as those of columns: column n is at n - origin
  int origin = 0, example_origin = 0;
  bool any_unlabeled = false;
  int first_waiting = 0, waiting = 0;  // past columns that one new token alone sees without their labels

  Error make(const Net &net, const Stream &s) {
    const int S = s.length;
    P = s.past, PE = s.past_examples;
    if (S < 1 || P < 0 || PE < 0 || S > 1 << 24 || P > 1 << 24 || PE > 1 << 24) return BAD_STREAM;
    in_pairs = net.label_tokens && s.y;
    examples.of(S), tokens.of(in_pairs ? 2 * S : S);
    if (Error error = check(net, s)) return error;
    labeled.resize(tokens.count), unlabeled.resize(tokens.count), in_heads.resize(examples.count);
    position.assign(tokens.padded(), 0), example_position.assign(examples.padded(), 0);
    any_unlabeled = false, first_waiting = waiting = 0;
    if (net.label_tokens) {
      if (s.visible) return BAD_VISIBLE;
      for (int t = 0; t < tokens.n; t++) {
        if (s.y)  // itself and those before it, of which x_t's label, the next token, is none
          see(t, {t - net.C, t + 1, 0, 0, t});
        else
          see(t, {-net.C, 0, t, t + 1, 0});
      }
      for (int t = 0; t < S; t++) {
        const int at = s.y ? t : 0;
        see_examples(t, {at - net.C_examples, at, 0, 0, at});
      }
    } else {
      for (int t = 0; t < S; t++) {
        Visible v = {s.y ? t - net.C : -net.C, s.y ? t : 0, 0, 0, s.y ? t : 0};
        if (s.visible)
          if (Error error = check_visible(net, s, t, v = s.visible[t])) return error;
        see(t, v), see_examples(t, v);
      }
    }
    return finish(net);
  }
  int at(int t) const { return P + position[std::min(t, tokens.n - 1)] - origin; }  // of a new token in the rotary table
  int example_at(int t) const { return PE + example_position[std::min(t, examples.n - 1)] - example_origin; }

 private:
  Error check(const Net &net, const Stream &s) const {
    const int S = examples.n;
    if ((net.model.use_input && !s.x) || (s.new_keys == nullptr) != (s.new_values == nullptr)) return BAD_STREAM;
    if (s.new_keys && net.L > 1 && s.new_block_stride < (int64_t)tokens.n * net.K) return BAD_STREAM;
    if (s.new_example_labels && !s.y) return BAD_STREAM;
    if (net.attention && net.L && P && (!s.keys || !s.values || s.block_stride < (int64_t)P * net.K)) return BAD_STREAM;
    if (net.W && PE && (!s.example_keys || !s.example_labels)) return BAD_STREAM;
    if (s.y)
      for (int t = 0; t < S; t++)
        if (s.y[t] < 0 || s.y[t] >= net.NC) return BAD_LABEL;
    if (s.num_seen)
      for (int t = 0; t < S; t++)
        if (s.num_seen[t] < 0) return BAD_LABEL;
    if (net.W)
      for (int n = 0; n < PE; n++)
        if (s.example_labels[n] < 0 || s.example_labels[n] >= net.NC) return BAD_LABEL;
    return OK;
  }

  // Checks what one example of the pi-transformer is said to see. Past ones that it sees without labels are kept apart.
  Error check_visible(const Net &net, const Stream &s, int t, Visible &v) {
    if (examples.n == 1 && v.unlabeled_begin < 0) {
      if (v.unlabeled_end > 0 || !net.W || !net.attention || P + v.unlabeled_begin < 0 || PE + v.unlabeled_begin < 0)
        return BAD_VISIBLE;
      first_waiting = P + v.unlabeled_begin, waiting = std::max(0, v.unlabeled_end - v.unlabeled_begin);
      v.unlabeled_begin = v.unlabeled_end = 0;
    }
    // no token sees itself or a later one
    if (v.end > (s.y ? t : 0) || v.unlabeled_begin < 0 || v.unlabeled_end > t) return BAD_VISIBLE;
    if (v.position < -(1 << 24) || v.position > 1 << 24 || v.begin < -(1 << 24)) return BAD_VISIBLE;
    return OK;
  }

  void see(int t, const Visible &v) {
    const int p = t / PANEL, i = t % PANEL, again = P + tokens.n;
    labeled[p].begin[i] = std::max(0, P + v.begin), labeled[p].end[i] = P + v.end;
    const bool some = v.unlabeled_end > v.unlabeled_begin;
    unlabeled[p].begin[i] = some ? again + v.unlabeled_begin : 0;
    unlabeled[p].end[i] = some ? again + v.unlabeled_end : 0;
    any_unlabeled |= some;
    position[t] = v.position;
  }
  void see_examples(int t, const Visible &v) {
    Sight &sight = in_heads[t / PANEL];
    sight.begin[t % PANEL] = std::max(0, PE + v.begin), sight.end[t % PANEL] = PE + v.end;
    example_position[t] = v.position;
  }

  // What panels have in common, and where positions begin.
  Error finish(const Net &net) {
    int first = waiting ? first_waiting : P, first_example = PE, last = waiting ? first_waiting + waiting : 0;
    for (int p = 0; p < tokens.count; p++) {
      labeled[p].finish(tokens.in(p)), unlabeled[p].finish(tokens.in(p));
      if (labeled[p].count()) first = std::min(first, labeled[p].first);
      last = std::max(last, std::min(P, labeled[p].last));
    }
    for (int p = 0; p < examples.count; p++) {
      in_heads[p].finish(examples.in(p));
      if (in_heads[p].count()) first_example = std::min(first_example, in_heads[p].first);
    }
    const auto [nearest, furthest] = std::minmax_element(position.begin(), position.begin() + tokens.n);
    origin = std::min(first, P + *nearest);
    example_origin =
        std::min(first_example, PE + *std::min_element(example_position.begin(), example_position.begin() + examples.n));
    if (net.rotates() && std::max(P + *furthest, last - 1) - origin >= net.model.rotary_length) return TOO_LONG;
    return OK;
  }
};

}  // namespace prequential
