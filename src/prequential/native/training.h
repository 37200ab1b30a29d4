// Gradient steps: the sums of the gradients that passes have left, AdamW, and the EMA.
//
// A step has three phases. (1) Each stream runs forward and backward alone; it leaves the gradient behind every product
// and what went into it. (2) The gradient of each parameter is summed over all streams in their order. (3) If all of it
// is finite, AdamW moves the parameters. Threads share the streams in phase 1, or the strips of one stream after the
// other, and rows of parameters in 2 and 3, so that no sum depends on how many there are.
#pragma once
#include "pass.h"

namespace prequential {
namespace {

// The gradient of one parameter (rows, cols): how it comes about from what each stream left.
struct Gradient {
  enum Kind {
    PRODUCT,   // sum over tokens or examples of left [panel][rows][16] times right (tokens or examples, stride)
    ROW_SUMS,  // sum over tokens or examples of left [panel][rows][16]
    SUMS,      // sum over strips of left [strip](rows)
    BY_LABEL,  // row y of each example gets left (examples, cols rounded up to 16); the sum has rows of their labels only
  } kind;
  int rows, cols;
  long stride;        // between rows of the sum
  bool of_examples;   // whether left and right are panels of examples
  long panel_stride;  // between panels or strips of `left`, or its rows where it is summed by label
  std::vector<std::pair<const float *, const float *>> of_streams;
  float *sum = nullptr;
};

// A part of the way from a to b, as torch.lerp goes it
void lerp(float *__restrict a, const float *__restrict b, int64_t n, float part) {
  if (part < 0.5f)
    for (int64_t i = 0; i < n; i++) a[i] += part * (b[i] - a[i]);
  else
    for (int64_t i = 0; i < n; i++) a[i] = b[i] - (b[i] - a[i]) * (1 - part);
}

// AdamW on some numbers of one parameter.
struct AdamW {
  const Step &step;
  float size, root, keep;  // step size and square root of the bias correction, and what weight decay leaves

  void move(const Parameter &q, int64_t at, const float *__restrict g, int64_t n) const {
    float *__restrict p = q.value + at, *__restrict m = q.exp_avg + at, *__restrict v = q.exp_avg_sq + at;
    const float rate1 = (float)(1 - step.beta1), beta2 = (float)step.beta2, rate2 = (float)(1 - step.beta2);
    const float eps = (float)step.eps;
    for (int64_t i = 0; i < n; i++) {
      const float first = m[i] + (g[i] - m[i]) * rate1, second = v[i] * beta2 + g[i] * g[i] * rate2;
      m[i] = first;
      v[i] = second;
      p[i] = p[i] * keep - size * first / (__builtin_sqrtf(second) * root + eps);
    }
  }
  // The same where the gradient is 0. A label that was never there has moments 0, and stays as it is.
  void move_without_gradient(const Parameter &q, int64_t at, int64_t n) const {
    const float zeros[64] = {};
    for (int64_t end = at + n; at < end; at += 64) {
      const int64_t count = std::min<int64_t>(64, end - at);
      if (keep != 1.0f || !all_zero(q.exp_avg + at, count) || !all_zero(q.exp_avg_sq + at, count))
        move(q, at, zeros, count);
    }
  }

 private:
  static bool all_zero(const float *x, int64_t n) {
    int32_t bits = 0, each;
    for (int64_t i = 0; i < n; i++) std::memcpy(&each, x + i, sizeof each), bits |= each;
    return bits == 0;
  }
};

class Trainer {
 public:
  Trainer(const Net &net, const std::vector<std::unique_ptr<Pass>> &passes, const Step &step, Arena &arena)
      : net_(net), passes_(passes), step_(step), gradients_(net.count) {
    arena.restart();
    find_sources();
    for (const auto &pass : passes)
      for (int t = 0; (net.label_tables ? net.L > 0 : net.label_tokens) && t < pass->plan.examples.n; t++)
        labels_.push_back((int32_t)pass->stream.y[t]);
    std::sort(labels_.begin(), labels_.end());
    labels_.erase(std::unique(labels_.begin(), labels_.end()), labels_.end());
    for (int i = 0; i < net.count; i++) {
      Gradient &g = gradients_[i];
      net.shape(i, g.rows, g.cols);
      g.stride = g.kind == Gradient::PRODUCT ? ceil_to(g.cols, 16) : g.cols;
      g.sum = arena.floats((g.kind == Gradient::BY_LABEL ? labels_.size() : (size_t)g.rows) * g.stride);
    }
  }

  // What part `part` of `parts` does in phase 2: whether all of its sums are finite.
  bool sum_gradients(int part, int parts) {
    bool finite = true;
    for (Gradient &g : gradients_) {
      const int begin = (int)((int64_t)g.rows * part / parts), end = (int)((int64_t)g.rows * (part + 1) / parts);
      switch (g.kind) {
        case Gradient::PRODUCT: finite &= sum_products(g, begin, end); break;
        case Gradient::ROW_SUMS: sum_rows(g, begin, end); break;
        case Gradient::SUMS: sum_streams(g, begin, end); break;
        case Gradient::BY_LABEL: finite &= sum_by_label(g, begin, end); break;
      }
      if (g.kind != Gradient::BY_LABEL && (g.kind != Gradient::PRODUCT || g.stride != g.cols))
        for (int r = begin; r < end; r++) finite &= all_finite(g.sum + r * g.stride, g.cols);
    }
    return finite;
  }

  // ... and in phase 3
  void move(int part, int parts) {
    for (int i = 0; i < net_.count; i++) {
      const Gradient &g = gradients_[i];
      const Parameter &p = net_.model.parameters[i];
      const int begin = (int)((int64_t)g.rows * part / parts), end = (int)((int64_t)g.rows * (part + 1) / parts);
      const double t = (double)p.step[0] + 1;
      const float size = (float)(step_.learning_rate / (1 - std::pow(step_.beta1, t)));
      const float root = (float)(1 / std::sqrt(1 - std::pow(step_.beta2, t)));
      const float keep = (float)(1 - step_.learning_rate * p.weight_decay);
      const AdamW adamw = {step_, size, root, keep};
      if (g.kind == Gradient::BY_LABEL)
        move_by_label(p, g, begin, end, adamw);
      else if (g.stride == g.cols)
        adamw.move(p, (int64_t)begin * g.cols, g.sum + (int64_t)begin * g.cols, (int64_t)(end - begin) * g.cols);
      else
        for (int r = begin; r < end; r++) adamw.move(p, (int64_t)r * g.cols, g.sum + (int64_t)r * g.stride, g.cols);
    }
  }

  // ... and then where an average follows the parameters
  void follow(const Net &average, float way, int part, int parts) {
    for (int i = 0; i < net_.count; i++) {
      const int64_t rows = gradients_[i].rows, cols = gradients_[i].cols;
      const int64_t begin = rows * part / parts * cols, end = rows * (part + 1) / parts * cols;
      lerp(average.model.parameters[i].value + begin, net_.value(i) + begin, end - begin, way);
    }
  }

  void count_step() {
    for (int i = 0; i < net_.count; i++) net_.model.parameters[i].step[0] += 1;
  }

 private:
  const Net &net_;
  const std::vector<std::unique_ptr<Pass>> &passes_;
  const Step &step_;
  std::vector<Gradient> gradients_;
  std::vector<int32_t> labels_;  // those of all examples, in order, where there are embeddings of labels

  void find_sources() {
    const int D = net_.D, I = net_.I, u_row = (net_.I - net_.HID) * PANEL;
    bool of_examples = true;
    auto set = [&](int i, Gradient::Kind kind, long panel_stride, auto left, auto right) {
      gradients_[i].kind = kind, gradients_[i].panel_stride = panel_stride, gradients_[i].of_examples = of_examples;
      for (const auto &pass : passes_) gradients_[i].of_streams.push_back({left(*pass), right(*pass)});
    };
    auto none = [](Pass &) { return (const float *)nullptr; };
    const long wide = (long)D * PANEL;
    const bool pairs = net_.label_tokens, in_pairs = pairs && !net_.model.has_copy;
    auto d_x = [=](Pass &p) { return in_pairs ? p.d_pairs : pairs ? p.d_embedded : p.d_h; };
    const long x_stride = in_pairs ? 2 * wide : wide;
    if (net_.model.use_input) {
      set(0, Gradient::PRODUCT, x_stride, d_x, [](Pass &p) { return p.x_tokens; });
      set(1, Gradient::ROW_SUMS, x_stride, d_x, none);
    } else {
      set(0, Gradient::ROW_SUMS, x_stride, d_x, none);
    }
    if (pairs) {
      set(net_.label_embedding, Gradient::BY_LABEL, ceil_to(D, 16), [](Pass &p) { return p.d_y_tokens; }, none);
      set(net_.token_type, Gradient::ROW_SUMS, 2 * wide, [](Pass &p) { return p.d_pairs; }, none);
    }
    of_examples = false;
    for (int l = 0; l < net_.L; l++) {
      const long in_stride = (long)I * PANEL;
      auto role = [&](BlockRole r) { return net_.of_block(l, r); };
      auto d_in = [l](Pass &p) { return p.blocks[l].d_in; };
      set(role(MLP_BIAS), Gradient::ROW_SUMS, in_stride, [=](Pass &p) { return p.blocks[l].d_in + u_row; }, none);
      set(role(NORM_WEIGHT), Gradient::SUMS, 2 * D, [l](Pass &p) { return p.blocks[l].d_norm; }, none);
      set(role(NORM_BIAS), Gradient::SUMS, 2 * D, [=](Pass &p) { return p.blocks[l].d_norm + D; }, none);
      set(role(IN_PROJ), Gradient::PRODUCT, in_stride, d_in, [l](Pass &p) { return p.blocks[l].normed_tokens; });
      set(role(OUT_PROJ), Gradient::PRODUCT, wide, [l](Pass &p) { return p.blocks[l].d_out; },
          [l](Pass &p) { return p.blocks[l].joined_tokens; });
      if (!net_.label_tables) continue;
      const long K16 = ceil_to(net_.K, 16);
      set(role(KEY_LABELS), Gradient::BY_LABEL, K16, [l](Pass &p) { return p.blocks[l].d_keys; }, none);
      set(role(VALUE_LABELS), Gradient::BY_LABEL, K16, [l](Pass &p) { return p.blocks[l].d_values; }, none);
    }
    of_examples = true;
    if (net_.model.has_softmax) {
      const long logits = (long)net_.NC * PANEL;
      auto d_logits = [](Pass &p) { return p.d_logits; };
      set(net_.softmax, Gradient::SUMS, 2 * D, [](Pass &p) { return p.d_readout_norm; }, none);
      set(net_.softmax + 1, Gradient::SUMS, 2 * D, [=](Pass &p) { return p.d_readout_norm + D; }, none);
      set(net_.softmax + 2, Gradient::PRODUCT, logits, d_logits, [](Pass &p) { return p.readout_tokens; });
      set(net_.softmax + 3, Gradient::ROW_SUMS, logits, d_logits, none);
    }
    for (int i = 0; i < 3; i++) {
      if (net_.model.has_copy)
        set(net_.copy + i, Gradient::SUMS, 3, [i](Pass &p) { return p.d_copy[0] + i; }, none);
      if (net_.model.has_deep_copy)
        set(net_.deep_copy + i, Gradient::SUMS, 3, [i](Pass &p) { return p.d_copy[1] + i; }, none);
    }
    if (net_.model.has_deep_copy)
      set(net_.deep_copy + 3, Gradient::PRODUCT, (long)net_.W_deep * PANEL, [](Pass &p) { return p.d_projected; },
          [](Pass &p) { return p.trunk_tokens; });
  }

  // Whether what is multiplied by 0 stays 0, as only finite numbers do.
  static bool all_finite(const float *x, int64_t n) {
    v8 probe = fill(0.0f);
    float last = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) probe += load(x + i) * 0.0f;
    for (; i < n; i++) last += x[i] * 0.0f;
    return sum(probe) + last == 0.0f;
  }

  const Panels &panels(const Gradient &g, size_t stream) const {
    const Plan &plan = passes_[stream]->plan;
    return g.of_examples ? plan.examples : plan.tokens;
  }
  // Also gives whether it is finite, where there is no padding that would count, too.
  bool sum_products(Gradient &g, int begin, int end) {
    v8 probe = fill(0.0f);
    in_panels(0, g.cols, PANEL, [&](auto wide, int j) __attribute__((always_inline)) {
      in_tiles<ROWS>(begin, end, [&](auto rows, int i) __attribute__((always_inline)) {
        constexpr int V = decltype(wide)::value, R = decltype(rows)::value;
        v16 acc[R][V] = {};
        for (size_t s = 0; s < passes_.size(); s++) {
          const float *left = g.of_streams[s].first + (long)i * PANEL, *right = g.of_streams[s].second + j;
          for (int p = 0; p < panels(g, s).count; p++)
            multiply_tile<R, false>(panels(g, s).width(p), left + p * g.panel_stride, PANEL,
                                    right + (long)p * PANEL * g.stride, g.stride, acc, PANEL);
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
          for (int v = 0; v < V; v++) {
            store(g.sum + (i + r) * g.stride + j + v * PANEL, acc[r][v]);
            probe += low_half(acc[r][v]) * 0.0f, probe += high_half(acc[r][v]) * 0.0f;
          }
      });
    });
    return g.stride != g.cols || sum(probe) == 0.0f;
  }
  void sum_rows(Gradient &g, int begin, int end) {
    for (int r = begin; r < end; r++) {
      v8 total = fill(0.0f);
      for (size_t s = 0; s < passes_.size(); s++)
        for (int p = 0; p < panels(g, s).count; p++) {
          const float *left = g.of_streams[s].first + p * g.panel_stride + (long)r * PANEL;
          total += load(left) + load(left + 8);
        }
      g.sum[r] = sum(total);
    }
  }
  void sum_streams(Gradient &g, int begin, int end) {
    for (int r = begin; r < end; r++) {
      g.sum[r] = 0;
      for (size_t s = 0; s < passes_.size(); s++)
        for (size_t strip = 0; strip < passes_[s]->strips.size(); strip++)
          g.sum[r] += g.of_streams[s].first[strip * g.panel_stride + r];
    }
  }
  size_t label_row(int64_t y) const { return std::lower_bound(labels_.begin(), labels_.end(), y) - labels_.begin(); }
  bool sum_by_label(Gradient &g, int begin, int end) {
    const size_t first = label_row(begin), last = label_row(end);
    float *sum = g.sum + first * g.stride;
    std::memset(sum, 0, sizeof(float) * (last - first) * g.stride);
    for (size_t s = 0; s < passes_.size(); s++) {
      const Pass &pass = *passes_[s];
      for (int t = 0; t < pass.plan.examples.n; t++) {
        const int64_t y = pass.stream.y[t];
        if (y < begin || y >= end) continue;
        const float *from = g.of_streams[s].first + t * g.panel_stride;
        float *to = g.sum + label_row(y) * g.stride;
        for (int c = 0; c < g.cols; c++) to[c] += from[c];
      }
    }
    return all_finite(sum, (last - first) * g.stride);
  }
  void move_by_label(const Parameter &p, const Gradient &g, int begin, int end, const AdamW &adamw) {
    for (size_t row = label_row(begin), last = label_row(end); begin < end; row++) {
      const int next = row < last ? labels_[row] : end;
      adamw.move_without_gradient(p, (int64_t)begin * g.cols, (int64_t)(next - begin) * g.cols);
      if (row < last) adamw.move(p, (int64_t)next * g.cols, g.sum + row * g.stride, g.cols);
      begin = next + 1;
    }
  }
};

}  // namespace
}  // namespace prequential
