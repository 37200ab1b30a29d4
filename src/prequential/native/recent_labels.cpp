// What the latest labels alone say of the next one; `RecentLabelsExpert` has the formulas.
//
// All arrays are the caller's, in C order, and none is kept. Rows that come one by one and rows that come at once give
// the same bits.
//
//   labels     (count,) int64, oldest first, -1 where there was none yet; from `boundary` on they are not in the table
//              yet, and lags (count - boundary,) say how late each of these came
//   table      of which labels followed: labels (BUCKETS, K, slots) int32, -1 where a slot is empty, and counts float32

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t BUCKETS = 8;  // of lags: 0, 1 and 2, 3 to 6, ...; the last one takes all that are later
constexpr int64_t MOST_SLOTS = 64;

// `RecentLabels` in experts.py; all but the table and the labels is constant.
struct Recent {
    const int64_t* labels;
    const int64_t* lags;
    int32_t* followers;
    float* counts;
    const double* decays;  // (D,)
    int64_t boundary, slots, K, D;
    double smallest, prior_weight, keep, follower_prior_weight;

    int64_t at(int64_t i) const { return i < 0 ? -1 : labels[i]; }
    // the latest label that row i could know, -1: there was none
    int64_t before(int64_t i) const { return at(i - 1 - lags[i - boundary]); }
    bool is_valid(int64_t count) const {
        return K >= 1 && D >= 0 && boundary >= 0 && count >= boundary && slots >= 1 && slots <= MOST_SLOTS;
    }
};

int64_t bucket_of(int64_t lag) {
    int64_t bucket = 0;
    while (bucket < BUCKETS - 1 && (int64_t{2} << bucket) <= 1 + lag) bucket++;
    return bucket;
}

// One more time, this label came. Of full slots the lowest count is replaced.
void count_follower(int32_t* followers, float* counts, int64_t slots, int64_t label, float keep) {
    int64_t at = 0;
    for (int64_t j = 0; j < slots; j++) counts[j] *= keep;
    while (at < slots && followers[at] >= 0 && followers[at] != label) at++;
    if (at == slots) {
        at = std::min_element(counts, counts + slots) - counts;
        followers[at] = -1;
    }
    counts[at] = followers[at] < 0 ? 1.0f : counts[at] + 1.0f;
    followers[at] = static_cast<int32_t>(label);
}

bool are_labels(const int64_t* labels, int64_t n, int64_t K) {
    return std::all_of(labels, labels + n, [K](int64_t label) { return label >= -1 && label < K; });
}

}  // namespace

// Log-probabilities (D + 1, n, K) of n rows: by counts of the labels before stop[i], which each of D decays makes smaller
// with every row, the lag[i] rows without a label among them; and by what followed the latest of these labels.
// 0: done; 1: sizes that cannot be, or no memory; 2: a label that is none of the K.
EXPORT int prequential_recent_labels(
    const Recent* recent, int64_t count, int64_t n, const int64_t* stop, const int64_t* lag, const int64_t* num_seen,
    float* out
) {
    if (n < 0 || !recent->is_valid(count)) return 1;
    const int64_t K = recent->K, D = recent->D, slots = recent->slots, boundary = recent->boundary;
    const int64_t* labels = recent->labels;
    const double prior_weight = recent->prior_weight, follower_prior_weight = recent->follower_prior_weight;
    const float keep = static_cast<float>(recent->keep);
    std::vector<double> totals;
    try {
        totals.resize(static_cast<size_t>(K), 0.0);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    for (int64_t i = 0; i < n; i++) {
        if (stop[i] > count || lag[i] < 0 || num_seen[i] < 0) return 1;
        const int64_t first_free = std::min(num_seen[i], K);
        const double seen = 1.0 / static_cast<double>(first_free < K ? first_free + 1 : K);
        const double unseen = first_free < K ? seen / static_cast<double>(K - first_free) : 0.0;
        const auto prior = [&](int64_t k) { return k < first_free ? seen : unseen; };
        const auto fill = [&](float* row, double share_of_prior) {
            std::fill(row, row + first_free, static_cast<float>(std::log(share_of_prior * seen)));
            if (first_free < K) std::fill(row + first_free, row + K, static_cast<float>(std::log(share_of_prior * unseen)));
        };
        for (int64_t d = 0; d < D; d++) {
            float* row = out + (d * n + i) * K;
            const double decay = recent->decays[d];
            double weight = std::pow(decay, static_cast<double>(lag[i])), total = 0;
            int64_t j = stop[i] - 1;
            for (; j >= 0 && labels[j] >= 0 && weight >= recent->smallest; j--, weight *= decay) {
                if (labels[j] >= K) return 2;
                totals[labels[j]] += weight;
                total += weight;
            }
            const double all = total + prior_weight;
            fill(row, prior_weight / all);
            for (j++; j < stop[i]; j++) {
                const int64_t k = labels[j];
                if (totals[k] == 0) continue;  // it was there already
                row[k] = static_cast<float>(std::log((totals[k] + prior_weight * prior(k)) / all));
                totals[k] = 0;
            }
        }
        float* row = out + (D * n + i) * K;
        const int64_t last = recent->at(stop[i] - 1), bucket = bucket_of(lag[i]);
        if (last >= K) return 2;
        if (last < 0) {
            fill(row, 1.0);
            continue;
        }
        int32_t own_followers[MOST_SLOTS];
        float own_counts[MOST_SLOTS];
        const int64_t at = (bucket * K + last) * slots;
        std::copy(recent->followers + at, recent->followers + at + slots, own_followers);
        std::copy(recent->counts + at, recent->counts + at + slots, own_counts);
        for (int64_t s = boundary; s < stop[i]; s++) {
            if (recent->before(s) != last || bucket_of(recent->lags[s - boundary]) != bucket) continue;
            count_follower(own_followers, own_counts, slots, labels[s], keep);
        }
        double total = 0;
        for (int64_t j = 0; j < slots; j++) total += static_cast<double>(own_counts[j]);
        const double all = total + follower_prior_weight;
        fill(row, follower_prior_weight / all);
        for (int64_t j = 0; j < slots && own_followers[j] >= 0; j++) {
            const int64_t k = own_followers[j];
            if (k >= K) return 2;
            const double of_k = static_cast<double>(own_counts[j]) + follower_prior_weight * prior(k);
            row[k] = static_cast<float>(std::log(of_k / all));
        }
    }
    return 0;
}

// Counts the labels from the boundary on in the table. 1: sizes that cannot be; 2: a label that is none of the K.
EXPORT int prequential_count_followers(const Recent* recent, int64_t count) {
    if (!recent->is_valid(count)) return 1;
    if (!are_labels(recent->labels, count, recent->K)) return 2;
    const float keep = static_cast<float>(recent->keep);
    for (int64_t s = recent->boundary; s < count; s++) {
        const int64_t before = recent->before(s), label = recent->labels[s];
        if (before < 0 || label < 0) continue;
        const int64_t at = (bucket_of(recent->lags[s - recent->boundary]) * recent->K + before) * recent->slots;
        count_follower(recent->followers + at, recent->counts + at, recent->slots, label, keep);
    }
    return 0;
}
