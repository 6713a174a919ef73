// The product of 16 rows of a matrix with up to 8 * NT columns (rows of activations), by one warp.
#pragma once
#include "blocks.cuh"

#ifndef NT
#define NT 1  // tiles of 8 activation rows: 1, 2 or 4
#endif
#ifndef TYPES
#define TYPES -1  // bit i: the matrices may have ggml's type i; fewer types need fewer registers
#endif
#ifndef STAGED
#define STAGED 1  // 0: weights are too wide for the shared memory of this card and read where they lie
#endif
constexpr int COLUMNS = 8 * NT;
constexpr int FLOATS = 1 << F32 | 1 << F16 | 1 << BF16;
__device__ __forceinline__ bool is_float(int type) { return FLOATS >> type & 1; }

// Which activation row stands in which column, as one lane (4g+t) needs it.
struct Columns {
    int live;                       // tiles of 8 columns in use
    int b[NT], s0[NT], s1[NT];      // rows of columns g, 2t and 2t+1 of each tile
};

// `rows` lists the activation rows of the columns; null: column c is row c + first.
__device__ __forceinline__ Columns columns_of(int count, const int* rows, int first) {
    int g = lane_id() >> 2, t = lane_id() & 3;
    Columns c;
    c.live = NT == 1 ? 1 : (count + 7) / 8;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        int at[3] = {8 * i + g, 8 * i + 2 * t, 8 * i + 2 * t + 1};
#pragma unroll
        for (int k = 0; k < 3; k++) {
            int inside = at[k] < count ? at[k] : count - 1;
            at[k] = rows ? rows[inside] : inside + first;
        }
        c.b[i] = at[0], c.s0[i] = at[1], c.s1[i] = at[2];
    }
    return c;
}

constexpr int MAGIC = 0x4b400000;  // 1.5 * 2^23: an integer added to its bits is that integer as a float
__device__ __forceinline__ float from_magic(int c) { return __int_as_float(c) - 12582912.0f; }

// Integer types: values 256 * step ... of the two rows a lane holds.
template <int TYPE>
__device__ __forceinline__ void multiply_step(float (&acc)[NT][4], const u8* row0, const u8* row1, int step, int k,
                                              const Acts& x, const Columns& columns) {
    int t = lane_id() & 3, pairs = min(4, (k - 256 * step) / 64);
    Lane<TYPE> w0, w1;
    w0.load(row0, step, t, pairs);
    w1.load(row1, step, t, pairs);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j >= pairs) break;
        Fragment f0, f1;
        w0.get(j, f0);
        w1.get(j, f1);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            if (i >= columns.live) break;
            size_t at = 256 * step + 64 * j;
            const i8* b = x.q + (size_t)columns.b[i] * k + at;
            float4 x0 = *(const float4*)(x.s + ((size_t)columns.s0[i] * k + at) / 32);
            float4 x1 = *(const float4*)(x.s + ((size_t)columns.s1[i] * k + at) / 32);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                float d0 = s ? x0.z : x0.x, d1 = s ? x1.z : x1.x;
                if (Lane<TYPE>::BY16) {
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        int c[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
                        mma_s8_k16(c, f0.words[s][h], f1.words[s][h], *(const u32*)(b + 32 * s + 16 * h + 4 * t));
                        acc[i][0] += f0.scale[s][h] * d0 * from_magic(c[0]);
                        acc[i][1] += f0.scale[s][h] * d1 * from_magic(c[1]);
                        acc[i][2] += f1.scale[s][h] * d0 * from_magic(c[2]);
                        acc[i][3] += f1.scale[s][h] * d1 * from_magic(c[3]);
                    }
                } else {
                    uint2 v = *(const uint2*)(b + 32 * s + 8 * t);
                    int c[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
                    mma_s8_k32(c, f0.words[s][0], f1.words[s][0], f0.words[s][1], f1.words[s][1], v.x, v.y);
                    acc[i][0] += f0.scale[s][0] * d0 * from_magic(c[0]);
                    acc[i][1] += f0.scale[s][0] * d1 * from_magic(c[1]);
                    acc[i][2] += f1.scale[s][0] * d0 * from_magic(c[2]);
                    acc[i][3] += f1.scale[s][0] * d1 * from_magic(c[3]);
                }
                if constexpr (Lane<TYPE>::MIN == MIN_WORDS) {
                    uint2 v = *(const uint2*)(b + 32 * s + 8 * t);
                    int c[4] = {MAGIC, MAGIC, MAGIC, MAGIC};
                    mma_s8_k32(c, f0.mins[s][0], f1.mins[s][0], f0.mins[s][1], f1.mins[s][1], v.x, v.y);
                    acc[i][0] -= f0.min[s] * d0 * from_magic(c[0]), acc[i][1] -= f0.min[s] * d1 * from_magic(c[1]);
                    acc[i][2] -= f1.min[s] * d0 * from_magic(c[2]), acc[i][3] -= f1.min[s] * d1 * from_magic(c[3]);
                } else if (Lane<TYPE>::MIN) {
                    float z0 = s ? x0.w : x0.y, z1 = s ? x1.w : x1.y;
                    acc[i][0] -= f0.min[s] * z0, acc[i][1] -= f0.min[s] * z1;
                    acc[i][2] -= f1.min[s] * z0, acc[i][3] -= f1.min[s] * z1;
                }
            }
        }
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
            float4 v = *(const float4*)(x.f + (size_t)columns.b[i] * k + at);
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
#define STEPS(TYPE, call)                                                                                   \
    case TYPE:                                                                                              \
        if constexpr (TYPES >> TYPE & 1)                                                                    \
            for (int step = first; step < end; step++) call<TYPE>(acc, lower, upper, step, k, x, columns); \
        break;
    switch (type) {
        STEPS(Q4_K, multiply_step)
        STEPS(Q5_K, multiply_step)
        STEPS(Q6_K, multiply_step)
        STEPS(Q8_0, multiply_step)
        STEPS(Q5_0, multiply_step)
        STEPS(Q2_K, multiply_step)
        STEPS(Q3_K, multiply_step)
        STEPS(IQ3_XXS, multiply_step)
        STEPS(IQ3_S, multiply_step)
        STEPS(IQ4_XS, multiply_step)
        STEPS(IQ4_NL, multiply_step)
        STEPS(Q4_0, multiply_step)
        STEPS(Q4_1, multiply_step)
        STEPS(Q5_1, multiply_step)
        STEPS(F32, multiply_step_float)
        STEPS(F16, multiply_step_float)
        STEPS(BF16, multiply_step_float)
    }
#undef STEPS
}

// Weights on their way through shared memory: rows as they lie in the matrix, or 32 bytes apart where they would all
// start in the same bank.
__device__ __forceinline__ int staged_stride(int bytes) { return bytes % 128 ? bytes : bytes + 32; }

// Starts the copy of `rows` neighbouring rows of `bytes` bytes by `threads` threads, of which this one is number `index`.
__device__ __forceinline__ void stage(u8* to, const u8* from, int bytes, int rows, int index, int threads) {
    if (bytes % 128) {
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
    int g = lane_id() >> 2, bytes = row_bytes(type, k), steps = (k + 255) / 256;
    const u8* lower = data + (size_t)min(row0 + g, rows - 1) * bytes;
    const u8* upper = data + (size_t)min(row0 + g + 8, rows - 1) * bytes;
    multiply_rows(acc, type, lower, upper, k, part * steps / parts, (part + 1) * steps / parts, x, columns);
}

__device__ __forceinline__ void multiply_staged(float (&acc)[NT][4], int type, const u8* tile, int k, int part, int parts,
                                                const Acts& x, const Columns& columns) {
    int g = lane_id() >> 2, stride = staged_stride(row_bytes(type, k)), steps = (k + 255) / 256;
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
