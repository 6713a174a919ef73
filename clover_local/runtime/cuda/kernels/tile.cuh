// The product of 16 rows of a matrix with up to 8 * NT columns (rows of activations), by one warp.
#pragma once
#include "blocks.cuh"

#ifndef NT
#define NT 1  // tiles of 8 activation rows: 1, 2 or 4
#endif
#ifndef TYPES
#define TYPES (1 << 12)  // bit i: the matrices may have ggml's type i; fewer types need fewer registers
#endif
#ifndef STAGED
#define STAGED 1  // 0: weights are too wide for the shared memory of this card and read where they lie
#endif
constexpr int COLUMNS = 8 * NT;
constexpr int FLOATS = 1 << F32 | 1 << F16 | 1 << BF16;
__device__ __forceinline__ bool is_float(int type) { return FLOATS >> type & 1; }

// Calls `visit` with the type as a compile-time number; no question is asked where TYPES leaves one.
template <int TYPE> struct Constant {
    static constexpr int value = TYPE;
};
template <int FROM = 0, class Visit> __device__ __forceinline__ void with_type(int type, Visit visit) {
    if constexpr (FROM < 32) {
        if constexpr ((u32)TYPES >> FROM & 1) {
            if ((u32)TYPES == 1u << FROM || type == FROM) return visit(Constant<FROM>{});
        }
        with_type<FROM + 1>(type, visit);
    }
}

// Bytes of a row of k values, one of TYPES.
__device__ __forceinline__ int row_size(int type, int k) {
    int bytes = 0;
    with_type(type, [&](auto kind) { bytes = row_bytes(kind.value, k); });
    return bytes;
}

#ifndef NEIGHBOURS
#define NEIGHBOURS 0  // 1: neighbouring columns are neighbouring rows, so that their scales are read together
#endif

// Which activations stand in which column, as one lane (4g+t) needs it.
struct Columns {
    int live;                   // tiles of 8 columns in use
    int row[NT];                // of column g of each tile
    int b[NT], s0[NT], s1[NT];  // first blocks of columns g, 2t and 2t+1 (block_index)
};

// `rows` lists the activation rows of the columns; null: column c is row c + first. Those beyond `count` repeat the last.
__device__ __forceinline__ Columns columns_of(int count, const int* rows, int first, int k) {
    int g = lane_id() >> 2, t = lane_id() & 3;
    Columns c;
    c.live = (count + 7) / 8;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        int at[3] = {8 * i + g, 8 * i + 2 * t, 8 * i + 2 * t + 1};
#pragma unroll
        for (int j = 0; j < 3; j++) {
            int inside = at[j] < count ? at[j] : count - 1;
            at[j] = rows ? rows[inside] : inside + first;
        }
        c.row[i] = at[0];
        c.b[i] = block_index(at[0], k, 0), c.s0[i] = block_index(at[1], k, 0), c.s1[i] = block_index(at[2], k, 0);
    }
    return c;
}

// Brings blocks first .. end-1 of eight rows near, by one warp.
__device__ __forceinline__ void warm_blocks(const Acts& x, int tile, int k, int first, int end) {
    size_t at = (size_t)(tile * (k / 32) + first) * 8;
    int count = (end - first) * 8;
    for (int i = lane_id(); i < count * 2; i += 32) warm(x.q + at * 32 + 16 * i);
    for (int i = lane_id(); i < count / 2; i += 32) warm((const u8*)(x.s + at) + 16 * i);
}

constexpr int MAGIC = 0x4b400000;  // 1.5 * 2^23: an integer added to its bits is that integer as a float
__device__ __forceinline__ float from_magic(int c) { return __int_as_float(c) - 12582912.0f; }

// acc += scale of the row * scale of the column * product of whole numbers, for the four results of a lane.
__device__ __forceinline__ void add_scaled(float (&acc)[4], const int (&c)[4], float row0, float row1, float2 column) {
    acc[0] += row0 * from_magic(c[0]) * column.x, acc[1] += row0 * from_magic(c[1]) * column.y;
    acc[2] += row1 * from_magic(c[2]) * column.x, acc[3] += row1 * from_magic(c[3]) * column.y;
}

// One block of 32 inputs of both rows with one tile of columns. `d` and `z`: (scale, scale * sum) of columns 2t, 2t+1.
template <int TYPE>
__device__ __forceinline__ void multiply_block(float (&acc)[4], float (&low)[4], const Fragment& f0, const Fragment& f1, int s,
                                               const i8* b, float2 d, float2 z) {
    using L = Lane<TYPE>;
    int t = lane_id() & 3;
    if constexpr (L::BY16) {
        int c[4] = {MAGIC, MAGIC, MAGIC, MAGIC}, e[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
        mma_s8_k16(c, f0.words[s][0], f1.words[s][0], *(const u32*)(b + 4 * t));
        mma_s8_k16(e, f0.words[s][1], f1.words[s][1], *(const u32*)(b + 16 + 4 * t));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Fragment& f = i < 2 ? f0 : f1;
            acc[i] += (f.scale[s][0] * from_magic(c[i]) + f.scale[s][1] * from_magic(e[i])) * (i % 2 ? d.y : d.x);
        }
    } else {
        uint2 v = *(const uint2*)(b + 8 * t);
        int c[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
        mma_s8_k32(c, f0.words[s][0], f1.words[s][0], f0.words[s][1], f1.words[s][1], v.x, v.y);
        add_scaled(acc, c, f0.scale[s][0], f1.scale[s][0], d);
        if constexpr (L::MIN == MIN_WORDS) {
            int e[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
            mma_s8_k32(e, f0.mins[s][0], f1.mins[s][0], f0.mins[s][1], f1.mins[s][1], v.x, v.y);
            add_scaled(low, e, f0.min[s], f1.min[s], d);
        } else if constexpr (L::MIN) {
            low[0] += f0.min[s] * z.x, low[1] += f0.min[s] * z.y, low[2] += f1.min[s] * z.x, low[3] += f1.min[s] * z.y;
        }
    }
}

// A block's own scale and minimum, where a fragment comes without them.
template <int TYPE> __device__ __forceinline__ void complete(const Lane<TYPE>& w, Fragment& f) {
    if constexpr (LATE<TYPE>)
#pragma unroll
        for (int s = 0; s < 2; s++) {
            f.scale[s][0] *= w.d, f.scale[s][1] *= w.d;
            if constexpr (Lane<TYPE>::MIN) f.min[s] *= w.m;
        }
}

// Integer types: values 256 * step ... of the two rows a lane holds.
template <int TYPE>
__device__ __forceinline__ void multiply_step(float (&acc)[NT][4], const u8* row0, const u8* row1, int step, int k,
                                              const Acts& x, const Columns& columns) {
    constexpr bool AFTER = LATE<TYPE> && NT == 1;  // few columns: the block's scale goes to the sums, not to the weights
    int t = lane_id() & 3, pairs = LATE<TYPE> ? 4 : min(4, (k - 256 * step) / 64);
    Lane<TYPE> w0, w1;
    w0.load(row0, step, t, pairs);
    w1.load(row1, step, t, pairs);
    float sum[4] = {}, low[4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j >= pairs) break;
        Fragment f0, f1;
        w0.get(j, f0);
        w1.get(j, f1);
        if (!AFTER) complete<TYPE>(w0, f0), complete<TYPE>(w1, f1);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            if (NT > 1 && i >= columns.live) break;
            float(&to)[4] = AFTER ? sum : acc[i];
#pragma unroll
            for (int s = 0; s < 2; s++) {
                int block = 8 * (8 * step + 2 * j + s);
                float4 scales;  // of columns 2t and 2t+1
                if (NEIGHBOURS) {
                    scales = *(const float4*)(x.s + columns.s0[i] + block);
                } else {
                    float2 u = x.s[columns.s0[i] + block], v = x.s[columns.s1[i] + block];
                    scales = make_float4(u.x, u.y, v.x, v.y);
                }
                if (!AFTER) low[0] = low[1] = low[2] = low[3] = 0;
                multiply_block<TYPE>(to, low, f0, f1, s, x.q + (size_t)(columns.b[i] + block) * 32,
                                     make_float2(scales.x, scales.z), make_float2(scales.y, scales.w));
                if (!AFTER && Lane<TYPE>::MIN) to[0] -= low[0], to[1] -= low[1], to[2] -= low[2], to[3] -= low[3];
            }
        }
    }
    if constexpr (AFTER) {
        acc[0][0] += w0.d * sum[0], acc[0][1] += w0.d * sum[1], acc[0][2] += w1.d * sum[2], acc[0][3] += w1.d * sum[3];
        if constexpr (Lane<TYPE>::MIN)
            acc[0][0] -= w0.m * low[0], acc[0][1] -= w0.m * low[1], acc[0][2] -= w1.m * low[2], acc[0][3] -= w1.m * low[3];
    }
}

// Four neighbouring values of a float row.
template <int TYPE> __device__ __forceinline__ float4 load_floats(const u8* row, int at) {
    if (TYPE == F32) return *(const float4*)(row + (size_t)at * 4);
    uint2 v = *(const uint2*)(row + (size_t)at * 2);
    u16 h[4] = {(u16)v.x, (u16)(v.x >> 16), (u16)v.y, (u16)(v.y >> 16)};
    if (TYPE == BF16) return make_float4(bf16_to_float(h[0]), bf16_to_float(h[1]), bf16_to_float(h[2]), bf16_to_float(h[3]));
    return make_float4(half_to_float(h[0]), half_to_float(h[1]), half_to_float(h[2]), half_to_float(h[3]));
}

// A float as the sum of two of 10 mantissa bits each; the rest is below 2^-21 of it.
__device__ __forceinline__ void split_float(float v, u32& high, u32& low) {
    high = __float_as_uint(v) & 0xffffe000u;
    low = __float_as_uint(v - __uint_as_float(high)) & 0xffffe000u;
}

// Float types: f32 activations, three tf32 products for one f32 product.
template <int TYPE>
__device__ __forceinline__ void multiply_step_float(float (&acc)[NT][4], const u8* row0, const u8* row1, int step, int k,
                                                    const Acts& x, const Columns& columns) {
    int t = lane_id() & 3, sixteens = min(16, (k - 256 * step) / 16);
#pragma unroll 4
    for (int j = 0; j < sixteens; j++) {
        int at = 256 * step + 16 * j + 4 * t;
        float4 v0 = load_floats<TYPE>(row0, at), v1 = load_floats<TYPE>(row1, at);
        float p0[4] = {v0.x, v0.y, v0.z, v0.w}, p1[4] = {v1.x, v1.y, v1.z, v1.w};
        u32 h0[4], l0[4], h1[4], l1[4];
#pragma unroll
        for (int e = 0; e < 4; e++) split_float(p0[e], h0[e], l0[e]), split_float(p1[e], h1[e], l1[e]);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            if (i >= columns.live) break;
            float4 v = *(const float4*)(x.f + (size_t)columns.row[i] * k + at);
            float b[4] = {v.x, v.y, v.z, v.w};
            u32 hb[4], lb[4];
#pragma unroll
            for (int e = 0; e < 4; e++) split_float(b[e], hb[e], lb[e]);
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                mma_tf32_k8(acc[i], h0[e], h1[e], h0[e + 1], h1[e + 1], lb[e], lb[e + 1]);
                mma_tf32_k8(acc[i], l0[e], l1[e], l0[e + 1], l1[e + 1], hb[e], hb[e + 1]);
                mma_tf32_k8(acc[i], h0[e], h1[e], h0[e + 1], h1[e + 1], hb[e], hb[e + 1]);
            }
        }
    }
}

// Adds the products of steps first .. end-1 (256 inputs each) of 16 rows with the columns to acc; `lower` and `upper` are
// rows g and g+8. A lane holds c[i][0..3]: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1).
__device__ __forceinline__ void multiply_rows(float (&acc)[NT][4], int type, const u8* lower, const u8* upper, int k,
                                              int first, int end, const Acts& x, const Columns& columns) {
    with_type(type, [&](auto kind) {
        for (int step = first; step < end; step++) {
            if constexpr (FLOATS >> kind.value & 1) multiply_step_float<kind.value>(acc, lower, upper, step, k, x, columns);
            else multiply_step<kind.value>(acc, lower, upper, step, k, x, columns);
        }
    });
}

// Weights on their way through shared memory: rows as they lie in the matrix, or 32 bytes apart where too many would
// start in the same bank.
__device__ __forceinline__ int staged_stride(int bytes) { return bytes % 64 ? bytes : bytes + 32; }

// Starts the copy of `rows` neighbouring rows of `bytes` bytes by `threads` threads, of which this one is number `index`.
__device__ __forceinline__ void stage(u8* to, const u8* from, int bytes, int rows, int index, int threads) {
    if (bytes % 64) {
        int total = bytes * rows, whole = total & ~15;
        for (int i = 16 * index; i < whole; i += 16 * threads) copy_async(to + i, from + i);
        if (index == 0)
            for (int i = whole; i < total; i += 2) *(u16*)(to + i) = *(const u16*)(from + i);
    } else {
        int pieces = bytes / 16, row = index / pieces, piece = index % pieces, rows_on = threads / pieces, on = threads % pieces;
        while (row < rows) {
            copy_async(to + row * (bytes + 32) + 16 * piece, from + (size_t)row * bytes + 16 * piece);
            row += rows_on, piece += on;
            if (piece >= pieces) piece -= pieces, row++;
        }
    }
}

// Adds share `part` of `parts` of the inputs of rows row0 .. row0+15 to acc: straight from a matrix of `rows` rows, whose
// last one stands for those beyond, or (STAGED) from the tile that `stage` brought to shared memory.
__device__ __forceinline__ void multiply(float (&acc)[NT][4], int type, const u8* data, int rows, int row0, int k,
                                         int part, int parts, const Acts& x, const Columns& columns) {
    int g = lane_id() >> 2, bytes = row_size(type, k), steps = (k + 255) / 256;
    const u8* lower = data + (size_t)min(row0 + g, rows - 1) * bytes;
    const u8* upper = data + (size_t)min(row0 + g + 8, rows - 1) * bytes;
    multiply_rows(acc, type, lower, upper, k, part * steps / parts, (part + 1) * steps / parts, x, columns);
}

__device__ __forceinline__ void multiply_staged(float (&acc)[NT][4], int type, const u8* tile, int k, int part, int parts,
                                                const Acts& x, const Columns& columns) {
    int g = lane_id() >> 2, stride = staged_stride(row_size(type, k)), steps = (k + 255) / 256;
    multiply_rows(acc, type, tile + g * stride, tile + (g + 8) * stride, k, part * steps / parts, (part + 1) * steps / parts, x,
                  columns);
}

__device__ __forceinline__ void clear(float (&acc)[NT][4]) {
#pragma unroll
    for (int i = 0; i < NT; i++) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
}

// A warp's 16 x COLUMNS results to shared memory, [row][column].
__device__ __forceinline__ void store_tile(float* tile, const float (&acc)[NT][4]) {
    int g = lane_id() >> 2, t = lane_id() & 3;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float* p = tile + g * COLUMNS + 8 * i + 2 * t;
        p[0] = acc[i][0], p[1] = acc[i][1];
        p[8 * COLUMNS] = acc[i][2], p[8 * COLUMNS + 1] = acc[i][3];
    }
}
