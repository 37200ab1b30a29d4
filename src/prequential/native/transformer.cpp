// The transformers of models/pi.py and models/two_token.py for vectors on a CPU in float32: predictions, passes, gradient
// steps and the EMA, all of it in place on torch's own tensors.
//
// kernels.h has products and elementwise functions, model.h what a pass is given, blocks.h, pairs.h and heads.h the pass
// over panels of 16 tokens, one_example.h the pass over one token. This file adds up the gradients, takes the step, and has
// the functions that transformer.py calls.
//
// A step has three phases. (1) Each stream runs forward and backward alone; it leaves the gradient behind every product
// and what went into it. (2) The gradient of each parameter is summed over all streams in their order. (3) If all of it
// is finite, AdamW moves the parameters. Threads share the streams in phase 1, or the strips of one stream after the
// other, and rows of parameters in 2 and 3, so that no sum depends on how many there are.
#include "one_example.h"

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
    for (int j = 0; j < g.cols; j += PANEL)
      in_tiles<6>(begin, end, [&](auto rows, int i) __attribute__((always_inline)) {
        constexpr int R = decltype(rows)::value;
        v8 acc[R][2] = {};
        for (size_t s = 0; s < passes_.size(); s++) {
          const float *left = g.of_streams[s].first + (long)i * PANEL, *right = g.of_streams[s].second + j;
          for (int p = 0; p < panels(g, s).count; p++)
            multiply_tile<R, false>(panels(g, s).width(p), left + p * g.panel_stride, PANEL,
                                    right + (long)p * PANEL * g.stride, g.stride, acc);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
          store2(g.sum + (i + r) * g.stride + j, acc[r][0], acc[r][1]);
          probe += acc[r][0] * 0.0f, probe += acc[r][1] * 0.0f;
        }
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

// What one of several threads does of a pass that is prepared.
void forward_backward(Pass &pass, const Share &share) {
  const bool pairs = pass.plan.in_pairs;
  embed(pass, share);
  if (pass.net.label_tokens) embed_tokens(pass, share);
  if (pass.net.rotates()) fill_rotations(pass, share);
  for (int l = 0; l < pass.net.L; l++) block_forward(pass, l, share);
  if (pairs) take_x_tokens(pass, share);
  heads(pass, share);
  if (!pass.train) return;
  if (pairs) put_x_tokens(pass, share);
  for (int l = pass.net.L - 1; l >= 0; l--) block_backward(pass, l, share);
  if (pairs) {
    split_gradient(pass, share);
  } else if (pass.d_embedded) {
    const long wide = (long)pass.net.D * PANEL;
    for (long i = share.first * wide; i < share.last * wide; i += 8)
      store(pass.d_h + i, load(pass.d_h + i) + load(pass.d_embedded + i));
  }
}

// Memory of the calling thread, for passes without gradients.
Arena &arena_of_thread() {
  static thread_local Arena mine;
  return mine;
}

// Memory for a training call, which is kept for the next one, in whatever thread that is.
class Lease {
 public:
  explicit Lease(size_t count) {
    {
      std::unique_lock<std::mutex> lock(mutex());
      for (auto &kept = pool(); mine_.size() < count && !kept.empty(); kept.pop_back())
        mine_.push_back(std::move(kept.back()));
    }
    while (mine_.size() < count) mine_.push_back(std::make_unique<Arena>());
  }
  ~Lease() {
    std::unique_lock<std::mutex> lock(mutex());
    for (; !mine_.empty() && pool().size() < MOST; mine_.pop_back()) pool().push_back(std::move(mine_.back()));
  }
  Lease(const Lease &) = delete;
  Lease &operator=(const Lease &) = delete;
  Arena &operator[](size_t i) { return *mine_[i]; }

 private:
  static constexpr size_t MOST = 32;
  std::vector<std::unique_ptr<Arena>> mine_;
  // never destroyed: threads may still train when a process ends
  static std::mutex &mutex() {
    static std::mutex &only = *new std::mutex;
    return only;
  }
  static std::vector<std::unique_ptr<Arena>> &pool() {
    static auto &only = *new std::vector<std::unique_ptr<Arena>>(make_pool());
    return only;
  }
  static std::vector<std::unique_ptr<Arena>> make_pool() {
    std::vector<std::unique_ptr<Arena>> empty;
    empty.reserve(MOST);  // so that giving back cannot fail
    return empty;
  }
};

constexpr int ALONE = 3;  // so many examples to predict are computed one by one; more, in panels

Error forward(const Net &net, const Stream &s, Arena &arena, int threads) {
  Pass pass(net, s, arena, false);
  if (Error error = pass.plan.make(net, s)) return error;
  if (s.length == 1 && (net.label_tokens || !pass.plan.any_unlabeled)) {
    forward_one(pass);
    return OK;
  }
  if (!s.y && !s.visible && s.length <= ALONE && !s.new_keys && !s.new_example_keys) {
    std::vector<float> log_probs((size_t)net.num_heads_out * net.NC);
    for (int t = 0; t < s.length; t++) {
      Stream one = s;
      one.length = 1, one.log_probs = log_probs.data();
      if (s.x) one.x = s.x + (long)t * net.F;
      if (s.num_seen) one.num_seen = s.num_seen + t;
      Pass of_one(net, one, arena, false);
      if (Error error = of_one.plan.make(net, one)) return error;
      forward_one(of_one);
      for (int head = 0; s.log_probs && head < net.num_heads_out; head++)
        std::memcpy(s.log_probs + ((long)head * s.length + t) * net.NC, &log_probs[(size_t)head * net.NC],
                    sizeof(float) * net.NC);
    }
    return OK;
  }
  pass.prepare();
  in_threads(std::min(threads, (int)pass.strips.size()), [&](int part, int parts, Barrier &barrier) {
    NoDenormals guard;
    forward_backward(pass, pass.share(part, parts, barrier));
  });
  return OK;
}

// What `transformer_train` is given beside the streams.
struct Training {
  Step step;
  const Net *average;  // null: there is none
  float part;          // of the way that it moves towards the parameters after the last step
  int threads;
  bool split;
};

// One step on the streams of some passes. `last`: the average follows.
bool take_step(const Net &net, const std::vector<std::unique_ptr<Pass>> &passes, Lease &memory, const Training &given,
               bool last) {
  const int count = (int)passes.size();
  size_t most = 1;
  for (const auto &pass : passes) pass->prepare(), most = std::max(most, pass->strips.size());
  Trainer trainer(net, passes, given.step, memory[count]);
  // all memory is taken: nothing fails from here on
  std::atomic<int> next{0};
  std::atomic<bool> all_finite{true};
  // all threads on one stream after the other, or each on streams of its own
  const bool together = given.split && count < given.threads && (size_t)count < most;
  in_threads(std::min<int>(given.threads, together ? most : count), [&](int part, int parts, Barrier &barrier) {
    NoDenormals guard;
    Barrier nobody(1);
    if (together)
      for (const auto &pass : passes) forward_backward(*pass, pass->share(part, parts, barrier));
    else
      for (int s; (s = next++) < count;) forward_backward(*passes[s], passes[s]->share(0, 1, nobody));
    barrier.wait();
    if (!trainer.sum_gradients(part, parts)) all_finite = false;
    barrier.wait();
    if (all_finite) trainer.move(part, parts);
    if (last && given.average) trainer.follow(*given.average, given.part, part, parts);
  });
  if (all_finite) trainer.count_step();
  return all_finite;
}

Error train(const Net &net, const Stream *streams, const int32_t *sizes, int num_steps, const Training &given,
            int32_t *finite, double *loss) {
  int most = 0;
  for (int i = 0; i < num_steps; i++) {
    if (sizes[i] < 1) return BAD_STREAM;
    most = std::max(most, (int)sizes[i]);
  }
  Lease memory(most + 1);
  std::vector<std::vector<std::unique_ptr<Pass>>> steps(num_steps);
  for (int i = 0; i < num_steps; i++)
    for (int s = 0; s < sizes[i]; s++, streams++) {
      steps[i].push_back(std::make_unique<Pass>(net, *streams, memory[s], true));
      if (!streams->y) return BAD_STREAM;
      if (Error error = steps[i][s]->plan.make(net, *streams)) return error;
      steps[i][s]->loss_weight = 1.0f / ((float)sizes[i] * streams->length);
    }
  for (int i = 0; i < num_steps; i++) {
    finite[i] = take_step(net, steps[i], memory, given, i == num_steps - 1);
    loss[i] = 0;
    for (const auto &pass : steps[i]) {
      loss[i] += pass->loss();
      if (int64_t *to = pass->stream.new_example_labels) std::copy_n(pass->stream.y, pass->stream.length, to);
    }
    steps[i].clear();
  }
  return OK;
}

// The tokens of an example of the 2-token transformer that was predicted: that of x as it is, and that of y.
Error append_tokens(const Net &net, int64_t y, const float *x_keys, const float *x_values, float *keys, float *values,
                    int64_t block_stride, int64_t past) {
  const int K = net.K;
  if (past < 0 || past > 1 << 24 || block_stride < (past + 2) * K) return BAD_STREAM;
  if (net.rotates() && std::min<int64_t>(past, net.C) + 1 >= net.model.rotary_length) return TOO_LONG;
  try {
    NoDenormals guard;
    label_token_one(net, arena_of_thread(), y, keys - past * K, values - past * K, block_stride, (int)past, x_keys,
                    x_values, K, keys + K, values + K, block_stride);
  } catch (const std::exception &) {
    return NO_MEMORY;
  }
  for (int l = 0; l < net.L; l++) {
    std::memcpy(keys + l * block_stride, x_keys + (long)l * K, sizeof(float) * K);
    std::memcpy(values + l * block_stride, x_values + (long)l * K, sizeof(float) * K);
  }
  return OK;
}

Error check_average(const Net &average, const Net &net) {
  if (average.check(false) || average.count != net.count) return BAD_MODEL;
  for (int i = 0; i < net.count; i++)
    if (average.model.parameters[i].size != net.model.parameters[i].size) return BAD_MODEL;
  return OK;
}

}  // namespace
}  // namespace prequential

using namespace prequential;

// Every function gives 0, or the number of what is wrong with its arguments; then it has changed nothing.
extern "C" {

const char *transformer_error(int error) {
  switch (error) {
    case OK: return "";
    case BAD_MODEL: return "the parameters do not fit the sizes of the model";
    case BAD_STREAM: return "the sizes of examples and past do not fit each other";
    case BAD_LABEL: return "a class id is not one of the model's";
    case BAD_VISIBLE: return "an example would see itself or a later one";
    case TOO_LONG: return "examples are further apart than the rotary embedding reaches";
    case NO_MEMORY: return "there is not enough memory";
  }
  return "unknown";
}

// A pass without gradients over one stream. The result is the same for any number of threads, here and in a step.
int transformer_forward(const Model *model, const Stream *stream, int threads) {
  try {
    if (!model || !stream || threads < 1) return BAD_MODEL;
    const Net net(*model);
    if (Error error = net.check(false)) return error;
    NoDenormals guard;
    return forward(net, *stream, arena_of_thread(), threads);
  } catch (const std::exception &) {
    return NO_MEMORY;
  }
}

// Gradient steps one after the other; the number i is on the next sizes[i] streams together, on the mean over streams
// of their mean losses; of each example it is the sum over all heads. Where a gradient is not finite, finite[i] is 0 and
// the step is not taken. After the last one the parameters of `average`, if there is one, move towards those of the
// model. Threads share streams; with `split`, where there are fewer of these, also the tokens of one stream, for which
// they have to wait for each other in every block. Everything is checked before the first step.
int transformer_train(const Model *model, const Stream *streams, const int32_t *sizes, int num_steps, const Step *step,
                      const Model *average, double part, int threads, int split, int32_t *finite, double *loss) {
  try {
    if (!model || !streams || !sizes || !step || !finite || !loss) return BAD_MODEL;
    if (num_steps < 1 || threads < 1) return BAD_STREAM;
    const Net net(*model), of_average(average ? *average : *model);
    if (Error error = net.check(true)) return error;
    if (average)
      if (Error error = check_average(of_average, net)) return error;
    const Training given = {*step, average ? &of_average : nullptr, (float)part, threads, split != 0};
    return train(net, streams, sizes, num_steps, given, finite, loss);
  } catch (const std::exception &) {
    return NO_MEMORY;
  }
}

// The parameters of `average` move towards those of `model` by this part of the way.
int transformer_lerp(const Model *average, const Model *model, double part) {
  if (!average || !model) return BAD_MODEL;
  const Net from(*model), to(*average);
  if (from.check(false) || check_average(to, from)) return BAD_MODEL;
  NoDenormals guard;
  for (int i = 0; i < from.count; i++)
    lerp(average->parameters[i].value, model->parameters[i].value, model->parameters[i].size, (float)part);
  return OK;
}

// Writes an example that was predicted to a KV cache, now with its label y. What the prediction gave of it are keys and
// values (L, K) and example keys (W); `keys` and `values` are rows of the first block, the other blocks' `block_stride`
// further on. In the 2-token transformer they are two rows, and its token for y sees the so many `past` ones before them.
int transformer_append(const Model *model, int64_t y, const float *new_keys, const float *new_values,
                       const float *new_example_keys, float *keys, float *values, int64_t block_stride, int64_t past,
                       float *example_keys, int64_t *example_labels) {
  if (!model) return BAD_MODEL;
  const Net net(*model);
  if (Error error = net.check(false)) return error;
  if (y < 0 || y >= net.NC) return BAD_LABEL;
  if (net.W && (!new_example_keys || !example_keys || !example_labels)) return BAD_STREAM;
  if (net.attention && net.L) {
    if (!new_keys || !new_values || !keys || !values || block_stride < net.K) return BAD_STREAM;
    if (net.label_tokens)
      if (Error error = append_tokens(net, y, new_keys, new_values, keys, values, block_stride, past)) return error;
    for (int l = 0; net.label_tables && l < net.L; l++)
      for (int k = 0; k < net.K; k++) {
        keys[l * block_stride + k] = new_keys[l * net.K + k] + net.block(l, KEY_LABELS)[y * net.K + k];
        values[l * block_stride + k] = new_values[l * net.K + k] + net.block(l, VALUE_LABELS)[y * net.K + k];
      }
  }
  if (net.W) {
    std::memcpy(example_keys, new_example_keys, sizeof(float) * net.W);
    *example_labels = y;
  }
  return OK;
}
}
