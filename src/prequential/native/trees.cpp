// Gradient-boosted trees with integer arithmetic: sums of integers do not depend on their order, so that the NumPy code
// of `learners/transformer/experts/boosting.py` gives the same trees and scores to the bit.
//
// All arrays are the caller's, in C order, and none is kept. Letters: N rows of memory, F features, K classes, T trees of
// at most L leaves, B bins. Scores are in units of 2^-16, gradients and Hessians in units of 2^-12.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int LANES = 8;    // of a histogram's bin: 6 outputs, the Hessian, the number of rows
constexpr int OUTPUTS = 6;  // K - 1 outputs where K <= 7, random projections of all otherwise
constexpr int ONE = 4096;   // the unit of gradients
constexpr int64_t MOST_CLASSES = 64;
constexpr double LARGEST_VALUE = 1e30;
typedef int32_t v8 __attribute__((vector_size(32)));
typedef int32_t v8_at __attribute__((vector_size(32), aligned(4), may_alias));

inline uint64_t mix(uint64_t z) {  // splitmix64
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

}  // namespace

// As `Arrays` in native_trees.py.
struct Arrays {
    int64_t N, F, K, T, L, B, H;
    const float* x;            // (N, F)
    const uint8_t* bins;       // (N, F)
    const float* cuts;         // (F, B - 1) ascending; row i is in bin b: cuts[b - 1] < x <= cuts[b]
    const int32_t* num_cuts;   // (F,)
    const int64_t* class_ids;  // (N,)
    int32_t* scores;           // (N, K) sums of the trees' values
    const int32_t* bias;       // (K,) what is added to all scores
    int32_t* feature;          // (T, L - 1)
    float* threshold;          // (T, L - 1): left where x <= threshold
    int32_t* child;            // (T, L - 1, 2) a later node, or ~leaf
    int32_t* num_leaves;       // (T,) 1: no split
    int32_t* value;            // (T, L, K)
    const double* exp_high;    // (H,) exp(-i / 64)
    const double* exp_low;     // (1024,) exp(-i / 65536)
};

// As `GrowthArguments` in native_trees.py.
struct Growth {
    const int32_t* rows;      // (R,)
    int64_t R;
    const int32_t* features;  // (C,)
    int64_t C;
    uint64_t seed;            // of the random projections
    double penalty;           // L2, in units of gradients
    int64_t min_rows, min_hessian;
    double min_gain;
    double rate;              // shrinkage times the unit of scores
    double largest;           // of a leaf's values, before shrinkage
};

namespace {

inline int leaf_of(const Arrays& a, int64_t t, const float* x) {
    if (a.num_leaves[t] < 2) return 0;
    const int32_t *feature = a.feature + t * (a.L - 1), *child = a.child + 2 * t * (a.L - 1);
    const float* threshold = a.threshold + t * (a.L - 1);
    int node = 0;
    do {
        node = child[2 * node + !(x[feature[node]] <= threshold[node])];
    } while (node >= 0);
    return ~node;
}

// Probabilities of a row in units of 2^-12.
inline void probabilities(const Arrays& a, const int32_t* scores, int64_t* e, int32_t* p) {
    int32_t most = INT32_MIN;
    for (int64_t k = 0; k < a.K; k++) most = std::max(most, scores[k] + a.bias[k]);
    int64_t sum = 0;
    for (int64_t k = 0; k < a.K; k++) {
        const int64_t d = (int64_t)most - (scores[k] + a.bias[k]), high = d >> 10;
        e[k] = high >= a.H ? 0 : (int64_t)(a.exp_high[high] * a.exp_low[d & 1023] * (1 << 30));
        sum += e[k];
    }
    const double whole = (double)sum;
    for (int64_t k = 0; k < a.K; k++) p[k] = (int32_t)((double)(e[k] * ONE) / whole + 0.5);
}

struct Leaf {
    int64_t begin, end;
    int32_t* hist;
    int32_t total[LANES];
    double gain;
    int feature, bin;
    int node, side;  // where it hangs
};

// Sum of squares of a node's outputs; with `derived`, one more output is minus the sum of the others.
inline double squares(const v8& s, int outputs, bool derived) {
    int64_t sum = 0, rest = 0;
    for (int j = 0; j < outputs; j++) {
        sum += (int64_t)s[j] * s[j];
        rest += s[j];
    }
    if (derived) sum += rest * rest;
    return (double)sum;
}

void find_split(const Arrays& a, const Growth& g, int outputs, bool derived, Leaf& leaf) {
    leaf.gain = 0;
    v8 total;
    memcpy(&total, leaf.total, sizeof total);
    if (total[7] < 2 * g.min_rows) return;
    const double whole = squares(total, outputs, derived) / (total[6] + g.penalty);
    for (int64_t c = 0; c < g.C; c++) {
        const int f = g.features[c];
        v8 left = {};
        const v8_at* hist = reinterpret_cast<const v8_at*>(leaf.hist + c * a.B * LANES);
        for (int b = 0; b < a.num_cuts[f]; b++) {
            left += hist[b];
            const v8 right = total - left;
            if (left[7] < g.min_rows || left[6] < g.min_hessian) continue;
            if (right[7] < g.min_rows || right[6] < g.min_hessian) break;
            const double gain = squares(left, outputs, derived) / (left[6] + g.penalty) +
                                squares(right, outputs, derived) / (right[6] + g.penalty) - whole;
            if (gain > leaf.gain && gain > g.min_gain) leaf.gain = gain, leaf.feature = f, leaf.bin = b;
        }
    }
}

// The histograms (C, B, LANES) of some rows, whose bins of the C features are side by side.
void count(const uint8_t* __restrict bins, const int64_t C, const int64_t B, const int32_t* __restrict order, int64_t n,
           const int32_t* __restrict lanes, int32_t* __restrict hist) {
    memset(hist, 0, sizeof(int32_t) * LANES * B * C);
    const int64_t step = LANES * B;
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = order[i];
        const v8 add = *reinterpret_cast<const v8_at*>(lanes + LANES * row);
        const uint8_t* __restrict of_row = bins + C * row;
        int32_t* at = hist;
        int64_t c = 0;
        for (; c + 4 <= C; c += 4, at += 4 * step) {
            v8_at* b0 = reinterpret_cast<v8_at*>(at + LANES * of_row[c]);
            v8_at* b1 = reinterpret_cast<v8_at*>(at + step + LANES * of_row[c + 1]);
            v8_at* b2 = reinterpret_cast<v8_at*>(at + 2 * step + LANES * of_row[c + 2]);
            v8_at* b3 = reinterpret_cast<v8_at*>(at + 3 * step + LANES * of_row[c + 3]);
            const v8 s0 = *b0 + add, s1 = *b1 + add, s2 = *b2 + add, s3 = *b3 + add;
            *b0 = s0;
            *b1 = s1;
            *b2 = s2;
            *b3 = s3;
        }
        for (; c < C; c++, at += step) *reinterpret_cast<v8_at*>(at + LANES * of_row[c]) += add;
    }
}

void grow(const Arrays& a, const Growth& g, int64_t t) {
    const int64_t K = a.K, R = g.R;
    const bool derived = K <= OUTPUTS + 1;
    const int outputs = derived ? (int)K - 1 : OUTPUTS;
    std::vector<int32_t> lanes(R * LANES), gradient(R * K), hessian(R * K), signs(K), order(R), scratch(R);
    std::vector<int64_t> e(K);
    std::vector<uint8_t> bins(R * g.C);
    for (int64_t i = 0; i < R; i++)
        for (int64_t c = 0; c < g.C; c++) bins[i * g.C + c] = a.bins[a.F * (int64_t)g.rows[i] + g.features[c]];
    for (int64_t k = 0; k < K; k++) signs[k] = (int32_t)(mix(g.seed + k) & 63);
    for (int64_t i = 0; i < R; i++) {
        const int64_t row = g.rows[i], label = std::min(a.class_ids[row], K - 1);
        int32_t *gi = &gradient[i * K], *hi = &hessian[i * K], *lane = &lanes[i * LANES];
        probabilities(a, a.scores + row * K, e.data(), gi);
        int32_t h = 0;
        for (int64_t k = 0; k < K; k++) {
            hi[k] = (gi[k] * (ONE - gi[k])) >> 12;
            h += hi[k];
            gi[k] = (label == k ? ONE : 0) - gi[k];
        }
        if (derived) {
            for (int j = 0; j < outputs; j++) lane[j] = gi[j];
        } else {
            for (int64_t k = 0; k < K; k++)
                for (int j = 0; j < OUTPUTS; j++) lane[j] += signs[k] >> j & 1 ? -gi[k] : gi[k];
        }
        lane[6] = h;
        lane[7] = 1;
        order[i] = (int32_t)i;
    }
    const int64_t size = LANES * a.B * g.C;
    std::vector<int32_t> hists(size * a.L);
    std::vector<Leaf> leaves;
    leaves.reserve(a.L);
    Leaf root{};
    root.end = R;
    root.hist = hists.data();
    count(bins.data(), g.C, a.B, order.data(), R, lanes.data(), root.hist);
    for (int64_t i = 0; i < R; i++)
        for (int j = 0; j < LANES; j++) root.total[j] += lanes[i * LANES + j];
    root.node = -1;
    find_split(a, g, outputs, derived, root);
    leaves.push_back(root);
    int32_t *feature = a.feature + t * (a.L - 1), *child = a.child + 2 * t * (a.L - 1);
    float* threshold = a.threshold + t * (a.L - 1);
    while ((int64_t)leaves.size() < a.L) {
        size_t best = 0;
        for (size_t i = 1; i < leaves.size(); i++)
            if (leaves[i].gain > leaves[best].gain) best = i;
        Leaf& left = leaves[best];
        if (!(left.gain > 0)) break;
        const int node = (int)leaves.size() - 1, f = left.feature, b = left.bin;
        feature[node] = f;
        threshold[node] = a.cuts[f * (a.B - 1) + b];
        if (left.node >= 0) child[2 * left.node + left.side] = node;
        child[2 * node] = ~(int)best;
        child[2 * node + 1] = ~(int)leaves.size();
        int64_t middle = left.begin, others = 0;
        for (int64_t i = left.begin; i < left.end; i++) {
            const int32_t at = order[i];
            if (a.bins[a.F * (int64_t)g.rows[at] + f] <= b) order[middle++] = at;
            else scratch[others++] = at;
        }
        std::copy(scratch.begin(), scratch.begin() + others, order.begin() + middle);
        Leaf right{};
        right.begin = middle;
        right.end = left.end;
        left.end = middle;
        left.node = right.node = node;
        left.side = 0;
        right.side = 1;
        right.hist = hists.data() + size * (int64_t)leaves.size();
        const bool left_smaller = left.end - left.begin <= right.end - right.begin;
        Leaf& small = left_smaller ? left : right;
        Leaf& large = left_smaller ? right : left;
        int32_t whole[LANES];
        memcpy(whole, left.total, sizeof whole);
        memset(small.total, 0, sizeof small.total);
        for (int64_t i = small.begin; i < small.end; i++)
            for (int j = 0; j < LANES; j++) small.total[j] += lanes[LANES * (int64_t)order[i] + j];
        for (int j = 0; j < LANES; j++) large.total[j] = whole[j] - small.total[j];
        if ((int64_t)leaves.size() + 1 < a.L) {  // the last split needs no histograms
            int32_t* parent = left.hist;
            int32_t* fresh = right.hist;
            count(bins.data(), g.C, a.B, order.data() + small.begin, small.end - small.begin, lanes.data(), fresh);
            for (int64_t i = 0; i < size; i++) parent[i] -= fresh[i];
            small.hist = fresh;
            large.hist = parent;
            find_split(a, g, outputs, derived, left);
            find_split(a, g, outputs, derived, right);
        }
        leaves.push_back(right);
    }
    a.num_leaves[t] = (int32_t)leaves.size();
    int32_t* value = a.value + t * a.L * K;
    std::vector<int64_t> sums(2 * K);
    for (const Leaf& leaf : leaves) {
        std::fill(sums.begin(), sums.end(), 0);
        for (int64_t i = leaf.begin; i < leaf.end; i++)
            for (int64_t k = 0; k < K; k++) {
                sums[k] += gradient[order[i] * K + k];
                sums[K + k] += hessian[order[i] * K + k];
            }
        for (int64_t k = 0; k < K; k++) {
            const double step = (double)sums[k] / ((double)sums[K + k] + g.penalty);
            *value++ = (int32_t)(std::min(std::max(step, -g.largest), g.largest) * g.rate);
        }
    }
}

}  // namespace

// Adds (sign 1) or subtracts (-1) a tree's values for rows of x (n, F) to scores (n, K).
static void apply(const Arrays& a, int64_t t, const float* x, int64_t n, int32_t* scores, int sign) {
    for (int64_t i = 0; i < n; i++) {
        const int32_t* value = a.value + (t * a.L + leaf_of(a, t, x + i * a.F)) * a.K;
        int32_t* to = scores + i * a.K;
        for (int64_t k = 0; k < a.K; k++) to[k] += sign * value[k];
    }
}

static void add_scores(const Arrays& a, int64_t first, int64_t trees, const float* x, int64_t n, int32_t* scores) {
    std::fill(scores, scores + n * a.K, 0);
    for (int64_t t = first; t < first + trees; t++) apply(a, t % a.T, x, n, scores, 1);
}

// The sums (n, K) of the values of so many trees for rows of x (n, F).
EXPORT void prequential_trees_scores(const Arrays* a, int64_t first, int64_t trees, const float* x, int64_t n,
                                     int32_t* scores) {
    add_scores(*a, first, trees, x, n, scores);
}

// Log-probabilities (n, classes) of rows (n, F) as they came, less `origin` (F,). Of the probabilities, `rest` goes to the
// prior, in which all class ids from num_seen[i] on weigh as one; with K = MOST_CLASSES, the last score is that of all class
// ids from K - 1 on. 1: no memory.
EXPORT int prequential_trees_predict(const Arrays* a, int64_t first, int64_t trees, const int32_t* bias,
                                     const double* x, int64_t n, const double* origin, double scale, double rest,
                                     const int64_t* num_seen, int64_t classes, float* out) {
    try {
        const int64_t K = a->K;
        std::vector<float> row(a->F);
        std::vector<int32_t> scores(K);
        std::vector<double> probs(K);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t f = 0; f < a->F; f++) {
                const double v = x[i * a->F + f] - origin[f];
                row[f] = (float)(v > LARGEST_VALUE ? LARGEST_VALUE : v < -LARGEST_VALUE ? -LARGEST_VALUE : v);
            }
            add_scores(*a, first, trees, row.data(), 1, scores.data());
            double most = -1e300, sum = 0;
            for (int64_t k = 0; k < K; k++) {
                probs[k] = (scale * scores[k] + bias[k]) / 65536;
                most = std::max(most, probs[k]);
            }
            for (int64_t k = 0; k < K; k++) sum += probs[k] = std::exp(probs[k] - most);
            const int64_t seen = std::min(num_seen[i], classes);
            const double weights = (double)(seen + (seen < classes));
            const double last = (double)std::max(seen - K + 1, (int64_t)1);
            for (int64_t k = 0; k < classes; k++) {
                const double prior = k < seen ? 1 / weights : 1 / (weights * (double)(classes - seen));
                double p = k < K - 1 ? probs[k] / sum : 0;
                if (K > 0 && k >= K - 1 && (k == K - 1 || (K == MOST_CLASSES && k < seen))) {
                    p = probs[K - 1] / sum / (K == MOST_CLASSES ? last : 1);
                }
                *out++ = (float)std::log(p * (1 - rest) + rest * prior);
            }
        }
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

// The bin of each value, (n, F).
EXPORT void prequential_trees_bin(const Arrays* a, const float* x, int64_t n, uint8_t* bins) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t f = 0; f < a->F; f++) {
            const float *cuts = a->cuts + f * (a->B - 1), v = x[i * a->F + f];
            int low = 0, high = a->num_cuts[f];
            while (low < high) {
                const int middle = (low + high) / 2;
                if (v <= cuts[middle]) high = middle;
                else low = middle + 1;
            }
            bins[i * a->F + f] = (uint8_t)low;
        }
}

// Grows tree t, whose values `count` rows of memory get; they lose those of tree `old`; -1: of none.
// 1: no memory.
EXPORT int prequential_trees_grow(const Arrays* a, const Growth* g, int64_t t, int64_t old, int64_t count) {
    try {
        if (old >= 0) apply(*a, old, a->x, count, a->scores, -1);
        grow(*a, *g, t);
        apply(*a, t, a->x, count, a->scores, 1);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}
