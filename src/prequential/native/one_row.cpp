// One row at a time: from its features to its prediction in one call, and with its label into what the next row is
// predicted from in another. Each does what the functions for single parts do, in their order and with the same bits;
// what is saved is the work around them. All memory is the caller's.

#include <algorithm>
#include <cmath>

#include "model.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using prequential::Model;
using prequential::Stream;

extern "C" {
int transformer_forward(const Model* model, const Stream* stream, int threads);
int transformer_append(
    const Model* model, int64_t y, const float* new_keys, const float* new_values, const float* new_example_keys,
    float* keys, float* values, int64_t block_stride, int64_t past, float* example_keys, int64_t* example_labels
);
int64_t prequential_normalize(
    const double* x, int64_t n, int64_t width, int64_t columns, double* statistics, double* low, double* high,
    const double* floor, const double* ceiling, const void* start, const void* left, const void* limits, float* out
);
int prequential_knn(
    const float* x, int64_t n, int64_t stride, int width, const float* past_keys, const int64_t* past_labels,
    int64_t past, const int64_t* own_labels, const int64_t* lo, const int64_t* hi, int nearest, double prior_weight,
    double sharpness, const int64_t* num_seen, int64_t num_classes, float* out, int64_t* at
);
int prequential_mix(
    int64_t M, int64_t R, int64_t n, int64_t K, const float* log_probs, const int64_t* num_seen, int64_t weight_rows,
    const double* log_weights, const double* exponents, double lowest, double* parts, double* mixed
);
int prequential_mix_learn(
    int64_t M, int64_t R, int64_t K, const double* parts, int64_t y, int64_t num_seen, double speed, double share,
    int slows_share, const double* prior, const double* learning_rates, double lowest, double largest, double* log_weights, double* exponents
);
}

namespace {

// The normalizer: as for prequential_normalize, where features that are at their start stay constant, and no value was
// left out lately.
struct NormalizeRow {
    const double* x;  // (width,); null: features are given
    const double* count;
    const double* mean;
    const double* square;  // (columns,) each; they stay as they are
    double* after;         // (3, columns) the statistics with x
    double* low;
    double* high;
    const double* floor;
    const double* ceiling;
    const void* start;
    const void* limits;
    const double* same;  // (starting,) how often features at their start had their first value; it stays as it is
    double* same_after;  // the same with x, which `start` names
    float* features;     // (columns,)
    int64_t width, columns, starting;
};

// The kNN expert: as for prequential_knn, and where the row goes when its label is known.
struct KnnRow {
    const float* features;  // of which the first `width` are compared
    const float* scale;     // (width,) what they are multiplied by; null: nothing
    float* key;             // (width,) the result
    const float* keys;
    const int64_t* labels;
    float* log_probs;  // (K,)
    int64_t* at;       // (nearest,) or null
    float* next_key;
    int64_t* next_label;
    int64_t past, width, nearest;  // a width of 0: there is no such expert
    double prior_weight, sharpness;
};

// The mixer: as for prequential_mix and prequential_mix_learn. One prediction alone is not mixed.
struct MixRow {
    int64_t predictions, products;  // M and R
    int64_t num_seen;               // class ids from here on are mixed as one label; -1: each on its own
    int64_t slows_share;
    const float* log_probs;  // (M, K), those of the network first
    const double* log_weights;
    const double* exponents;
    const double* prior;
    const double* learning_rates;
    double share, lowest, largest;
    double* parts;
    double* mixed;
    double* next_log_weights;
    double* next_exponents;
};

// Where the row goes in the KV caches of the network when its label is known, behind the past that it was predicted from.
struct NextToken {
    float* keys;
    float* values;
    float* example_keys;
    int64_t* example_labels;
};

struct OneRow {
    NormalizeRow normalizer;
    Stream network;
    NextToken next;
    KnnRow knn;
    MixRow mixer;
    int64_t num_seen, num_classes, heads;
    float uniform;  // the log-probability of each class where the network gives no number
};

constexpr int BAD_KNN = 100, BAD_MIXER = 200;  // added to what the parts say
constexpr int MORE_TO_NORMALIZE = 300;

bool normalize(const NormalizeRow& row) {
    std::copy(row.count, row.count + row.columns, row.after);
    std::copy(row.mean, row.mean + row.columns, row.after + row.columns);
    std::copy(row.square, row.square + row.columns, row.after + 2 * row.columns);
    std::copy(row.same, row.same + row.starting, row.same_after);
    return prequential_normalize(
               row.x, 1, row.width, row.columns, row.after, row.low, row.high, row.floor, row.ceiling, row.start,
               nullptr, row.limits, row.features
           ) == 1;
}

}  // namespace

// Fills features and after. 0: done; MORE_TO_NORMALIZE: x has a value that is left out, so that features have to be
// given.
EXPORT int one_row_normalize(const OneRow* row) { return normalize(row->normalizer) ? 0 : MORE_TO_NORMALIZE; }

// The mixture of log_probs, again after some of these have changed. 0: done.
EXPORT int one_row_mix(OneRow* row) {
    const MixRow& mixer = row->mixer;
    if (mixer.predictions < 2) return 0;
    const int code = prequential_mix(
        mixer.predictions, mixer.products, 1, row->num_classes, mixer.log_probs,
        mixer.num_seen < 0 ? nullptr : &mixer.num_seen, 1, mixer.log_weights, mixer.exponents, mixer.lowest,
        mixer.parts, mixer.mixed
    );
    return code ? BAD_MIXER + code : 0;
}

// Fills log_probs, parts and mixed. Other experts have written their rows of log_probs before. 0: done. Where there is
// x, it is normalized first, which may give MORE_TO_NORMALIZE.
EXPORT int one_row_predict(const Model* model, OneRow* row) {
    if (row->normalizer.x && !normalize(row->normalizer)) return MORE_TO_NORMALIZE;
    if (const int code = transformer_forward(model, &row->network, 1)) return code;
    const int64_t K = row->num_classes;
    for (int64_t head = 0; head < row->heads; head++) {
        float* of = row->network.log_probs + head * K;
        if (std::any_of(of, of + K, [](float value) { return value != value; })) std::fill(of, of + K, row->uniform);
    }
    KnnRow& knn = row->knn;
    if (knn.width) {
        for (int64_t w = 0; w < knn.width; w++) knn.key[w] = knn.features[w] * (knn.scale ? knn.scale[w] : 1.0f);
        const int code = prequential_knn(
            knn.key, 1, knn.width, static_cast<int>(knn.width), knn.keys, knn.labels, knn.past, nullptr, nullptr,
            nullptr, static_cast<int>(knn.nearest), knn.prior_weight, knn.sharpness, &row->num_seen, K, knn.log_probs,
            knn.at
        );
        if (code) return BAD_KNN + code;
    }
    return one_row_mix(row);
}

// Adds the row that was predicted last to caches and memory, with its label, and moves the mixer's weights on.
EXPORT int one_row_append(const Model* model, const OneRow* row, int64_t y) {
    const Stream& stream = row->network;
    const NextToken& next = row->next;
    if (y < 0 || y >= row->num_classes) return prequential::BAD_LABEL;
    if (const int code = transformer_append(
            model, y, stream.new_keys, stream.new_values, stream.new_example_keys, next.keys, next.values,
            stream.block_stride, stream.past, next.example_keys, next.example_labels
        ))
        return code;
    const KnnRow& knn = row->knn;
    if (knn.width) {
        std::copy(knn.key, knn.key + knn.width, knn.next_key);
        *knn.next_label = y;
    }
    const MixRow& mixer = row->mixer;
    if (mixer.predictions > 1) {
        const int64_t M = mixer.predictions, R = mixer.products;
        std::copy(mixer.log_weights, mixer.log_weights + M + R, mixer.next_log_weights);
        std::copy(mixer.exponents, mixer.exponents + R * M, mixer.next_exponents);
        const int code = prequential_mix_learn(
            M, R, row->num_classes, mixer.parts, y, mixer.num_seen, 1.0, mixer.share,
            static_cast<int>(mixer.slows_share), mixer.prior, mixer.learning_rates, mixer.lowest,
            mixer.largest, mixer.next_log_weights, mixer.next_exponents
        );
        if (code) return BAD_MIXER + code;
    }
    return 0;
}
