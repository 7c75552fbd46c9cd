// CPU time of one call, beside that of matching descriptors; the least of some rounds in which both take turns.
//
//     speed WEIGHTS MATCHES [SEEDS] [ROUNDS]       prints JSON: milliseconds of the pruner and of nearest neighbours
#include "../ananet.hpp"

#include <ctime>
#include <functional>
#include <iostream>
#include <random>

namespace {

using namespace ananet::detail;

/// Of the processor, which other processes do not lengthen by taking turns.
double milliseconds(const std::function<void()>& call) {
    const std::clock_t start = std::clock();
    call();
    return 1000.0 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

/// [N] nearest of N descriptors of 128 numbers and length 1 among as many others: the largest product.
std::vector<size_t> nearest(const Matrix& first, const Matrix& second) {
    Packed packed(second.columns, second.rows);
    pack_rows(packed, second.row(0), second.stride);
    std::vector<size_t> found(first.rows);
    Numbers products(PART * packed.stride());
    for (size_t top = 0; top < first.rows; top += PART) {
        const size_t rows = std::min(PART, first.rows - top);
        multiply(first.row(top), first.stride, rows, packed, products.data(), packed.stride());
        for (size_t r = 0; r < rows; ++r) {
            const float* row = &products[r * packed.stride()];
            Floats best = load(row);
            Ints at{}, now{};
            for (size_t j = LANES; j < packed.stride(); j += LANES) {
                now = now + 1;
                const Floats x = load(row + j);
                keep_smaller(Floats{} - x, now, best, at);
            }
            found[top + r] = static_cast<size_t>(at[0]);
        }
    }
    return found;
}

}  // namespace

int main(int count, char** words) {
    if (count < 3) {
        std::cerr << "expected WEIGHTS MATCHES [SEEDS] [ROUNDS]\n";
        return 2;
    }
    const size_t total = std::strtoul(words[2], nullptr, 10);
    ananet::Options options;
    if (count > 3) options.seeds = std::strtoul(words[3], nullptr, 10);
    const int rounds = count > 4 ? std::atoi(words[4]) : 10;
    const auto pruner = ananet::Pruner::from_file(words[1], options);

    std::mt19937 random(0);
    std::uniform_real_distribution<double> place(0, 1000);
    std::normal_distribution<float> normal;
    ananet::Matches matches;
    matches.image_size0 = matches.image_size1 = {1000, 1000};
    Matrix first(total, 128), second(total, 128);
    for (size_t i = 0; i < total; ++i) {
        const ananet::Point point{place(random), place(random)};
        matches.points0.push_back(point);
        // Half of them move together.
        matches.points1.push_back(i % 2 ? ananet::Point{point.x + 20, point.y + 5} : ananet::Point{place(random), place(random)});
        for (Matrix* descriptors : {&first, &second})
            for (size_t c = 0; c < 128; ++c) descriptors->row(i)[c] = normal(random) / 11;
    }
    double pruning = 1e9, matching = 1e9;
    size_t kept = 0;
    for (int round = 0; round < rounds; ++round) {
        pruning = std::min(pruning, milliseconds([&] { kept = pruner(matches).indices().size(); }));
        matching = std::min(matching, milliseconds([&] { kept += nearest(first, second).size(); }));
    }
    std::cout << "{\"matches\": " << total << ", \"pruner_ms\": " << pruning << ", \"neighbours_ms\": " << matching
              << ", \"lanes\": " << LANES << "}\n";
    return kept == 0;
}
