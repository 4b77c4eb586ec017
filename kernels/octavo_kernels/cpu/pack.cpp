#include "pack.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "blocks.hpp"
#include "pack_split.hpp"

namespace octavo {

RecordShape record_shape(WeightKind kind) {
    switch (kind) {
        case U8: return {1, false, false};
        case U8_MIN: return {1, true, false};
        case U8_FINE: return {2, false, true};
        default: throw std::invalid_argument("This kind of weight has no records of 8 bits.");
    }
}

std::size_t record_bytes(const RecordShape& shape) {
    return U8_QUANT_BYTES + static_cast<std::size_t>(shape.scales + shape.minima) * (shape.wide ? 128 : 64);
}

namespace {

struct Job {
    const Kernels& kernels;
    const std::string& source;
    GroupReader reader;  // null: the source is of floats
    Packing packing;
    const std::vector<Plane>* planes;
    std::size_t n, k;
    bool gate_up;
    std::uint8_t* out;
};

// The source of a packed output feature, or null for padding.
const std::uint8_t* source_row(const Job& job, std::size_t feature) {
    const std::vector<Plane>& planes = *job.planes;
    if (job.gate_up) {
        const Plane& plane = planes[feature % PANEL / 16];
        const std::size_t row = feature / PANEL * 16 + feature % 16;
        return row < plane.rows ? plane.data + row * plane.row_bytes : nullptr;
    }
    for (const Plane& plane : planes) {
        if (feature < plane.rows) return plane.data + feature * plane.row_bytes;
        feature -= plane.rows;
    }
    return nullptr;
}

void write_scale(std::uint8_t* plane, int feature, bool wide, float value) {
    if (wide) {
        std::memcpy(plane + feature * 4, &value, 4);
    } else {
        const std::uint16_t half = float_to_half(value);
        std::memcpy(plane + feature * 2, &half, 2);
    }
}

void pack_group(const RecordShape& shape, const GroupCode& code, int feature, std::uint8_t* record) {
    for (int i = 0; i < GROUP; ++i) record[i / 4 * 128 + feature * 4 + i % 4] = code.quants[i];
    const std::size_t plane = shape.wide ? 128 : 64;
    std::uint8_t* factors = record + U8_QUANT_BYTES;
    for (int s = 0; s < shape.scales; ++s, factors += plane) write_scale(factors, feature, shape.wide, code.scale[s]);
    if (shape.minima) write_scale(factors, feature, shape.wide, code.minimum);
}

void pack_blocks(const Job& job, std::size_t panel) {
    const RecordShape shape = record_shape(job.packing.kind);
    const std::size_t groups = job.k / GROUP, bytes = record_bytes(shape);
    std::uint8_t* records = job.out + panel * groups * bytes;
    std::memset(records, 0, groups * bytes);
    for (int feature = 0; feature < PANEL; ++feature) {
        const std::uint8_t* row = source_row(job, panel * PANEL + static_cast<std::size_t>(feature));
        if (row == nullptr) continue;
        for (std::size_t g = 0; g < groups; ++g) pack_group(shape, job.reader(row, g), feature, records + g * bytes);
    }
}

void pack_split_blocks(const Job& job, std::size_t panel) {
    SplitPanel split(job.k / GROUP, job.out + panel * packed_bytes(U4, PANEL, job.k));
    const float zero = job.packing.zero_shift == 0 ? 0.0f : static_cast<float>(128 >> job.packing.zero_shift);
    for (std::size_t feature = 0; feature < PANEL; ++feature) {
        const std::uint8_t* row = source_row(job, panel * PANEL + feature);
        if (row == nullptr) continue;
        for (std::size_t g = 0; g < job.k / GROUP; ++g) {
            const GroupCode code = job.reader(row, g);
            split.set_quants(g, feature, code.quants);
            split.set_factors(g, feature, code.scale[0], code.minimum - zero * code.scale[0]);
        }
    }
    split.finish();
}

// The values of a panel of floats, zero where there is no source.
std::vector<float> read_panel(const Job& job, std::size_t panel) {
    std::vector<float> values(PANEL * job.k);
    for (std::size_t feature = 0; feature < PANEL; ++feature) {
        const std::uint8_t* row = source_row(job, panel * PANEL + feature);
        if (row != nullptr) read_floats(job.source, row, job.k, values.data() + feature * job.k);
    }
    return values;
}

void quantise_panel(const Job& job, std::size_t panel) {
    const std::vector<float> values = read_panel(job, panel);
    std::uint8_t* out = job.out + panel * packed_bytes(job.packing.kind, PANEL, job.k);
    if (job.packing.kind == U8) {
        job.kernels.quantize_weights(U8, values.data(), static_cast<int>(job.k), out);
        return;
    }
    const std::size_t groups = job.k / GROUP;
    std::vector<std::uint8_t> records(groups * SPLIT_RECORD_BYTES);
    job.kernels.quantize_weights(U4, values.data(), static_cast<int>(job.k), records.data());
    SplitPanel split(groups, out);
    for (std::size_t g = 0; g < groups; ++g) split.take_record(g, records.data() + g * SPLIT_RECORD_BYTES);
    split.finish();
}

void pack_float_panel(const Job& job, std::size_t panel) {
    const bool bf16 = job.packing.kind == BF16;
    const std::size_t width = bf16 ? (job.k + 1) / 2 * 2 : job.k;
    std::uint8_t* out = job.out + panel * width * PANEL * (bf16 ? 2 : 4);
    std::memset(out, 0, width * PANEL * (bf16 ? 2 : 4));
    std::vector<float> values(job.k);
    for (std::size_t feature = 0; feature < PANEL; ++feature) {
        const std::uint8_t* row = source_row(job, panel * PANEL + feature);
        if (row == nullptr) continue;
        read_floats(job.source, row, job.k, values.data());
        for (std::size_t i = 0; i < job.k; ++i) {
            if (bf16) {
                const std::uint16_t bits = float_to_bf16(values[i]);
                std::memcpy(out + ((i / 2 * PANEL + feature) * 2 + i % 2) * 2, &bits, 2);
            } else {
                std::memcpy(out + (i * PANEL + feature) * 4, &values[i], 4);
            }
        }
    }
}

}  // namespace

std::size_t packed_bytes(WeightKind kind, std::size_t n, std::size_t k) {
    const std::size_t panels = (n + PANEL - 1) / PANEL;
    if (kind == F32) return panels * k * PANEL * 4;
    if (kind == BF16) return panels * ((k + 1) / 2) * PANEL * 4;
    if (kind == U4) return panels * split_panel_bytes(k / GROUP);
    return panels * (k / GROUP) * record_bytes(record_shape(kind));
}

Packing choose_packing(const std::string& source, const std::string& target) {
    const bool floats = source == "F32" || source == "F16" || source == "BF16";
    const std::string wanted = target.empty() ? source : target;
    if (floats || wanted == source) {
        if (wanted == "F32") return {F32, 0};
        if (wanted == "BF16") return {BF16, 0};
        if (wanted == "INT8" || wanted == "Q8_0") return {U8, 0};
        if (wanted == "INT4") return {U4, 0};
        if (wanted == "Q4_0") return {U4, 4};
        if (wanted == "Q4_1") return {U4, 0};
        if (wanted == "Q5_0") return {U8, 3};
        if (wanted == "Q5_1") return {U8_MIN, 0};
        if (wanted == "Q4_K") return {U4, 0};
        if (wanted == "Q6_K") return {U8_FINE, 2};
    }
    throw std::invalid_argument(
        "Weights of kind " + source + " cannot be packed" + (target.empty() ? "" : " as " + target) +
        "; use F32, F16 or BF16 with a target of F32, BF16, INT8 or INT4, or one of Q8_0, Q4_0, Q4_1, "
        "Q5_0, Q5_1, Q4_K, Q6_K without one.");
}

void pack(const Kernels& kernels, const Parallel& parallel, const std::string& source, Packing packing,
          const std::vector<Plane>& planes, std::size_t k, bool gate_up, std::uint8_t* out) {
    std::size_t n = 0;
    for (const Plane& plane : planes) n += plane.rows;
    // Gate and up are padded to whole sixteens each.
    if (gate_up) n = (planes[0].rows + 15) / 16 * PANEL;
    const bool floats = source == "F32" || source == "F16" || source == "BF16";
    Job job{kernels, source, floats ? nullptr : group_reader(source), packing, &planes, n, k, gate_up, out};
    auto call = [](void* pointer, int panel, int) {
        const Job& all = *static_cast<const Job*>(pointer);
        if (all.packing.kind == F32 || all.packing.kind == BF16) {
            pack_float_panel(all, static_cast<std::size_t>(panel));
        } else if (all.reader == nullptr) {
            quantise_panel(all, static_cast<std::size_t>(panel));
        } else if (all.packing.kind == U4) {
            pack_split_blocks(all, static_cast<std::size_t>(panel));
        } else {
            pack_blocks(all, static_cast<std::size_t>(panel));
        }
    };
    parallel.run(parallel.pool, call, &job, static_cast<int>((n + PANEL - 1) / PANEL));
}

}  // namespace octavo
