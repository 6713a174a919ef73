// More of ggml's blocks, those of small files above all: 2 and 3 bits (K and IQ), 4 bits by table, and the old types with
// blocks of 32 that stand in where a row is no multiple of 256. Layouts: ggml-common.h. Included by blocks.cuh.
#pragma once
#include "grids.cuh"

__device__ __forceinline__ u32 subtract_bytes(u32 v, u32 amount) {  // bytes of v and amount below 128
    return ((v | 0x80808080) - amount) ^ 0x80808080;
}

// Blocks of 32 with a nibble a value, low nibbles first: lane t holds values 8t..8t+7 of a block.
struct Nibbles {
    u32 q[16];
    template <bool WORDS> __device__ __forceinline__ void load(int block, const u8* p, int t) {  // WORDS: p is a multiple of 4
        p += 8 * (t & 1);
        q[2 * block] = (WORDS ? *(const u32*)p : load_word(p)) >> 4 * (t >> 1) & 0x0f0f0f0f;
        q[2 * block + 1] = (WORDS ? *(const u32*)(p + 4) : load_word(p + 4)) >> 4 * (t >> 1) & 0x0f0f0f0f;
    }
};

// The IQ4 types: nibbles name 16 values, unevenly spaced. Eight at a time.
__device__ __forceinline__ void look_up(u32 x, u32 y, u32& a, u32& b) {
    u32 z = x | y << 4, at = z & 0x77777777, upper = (z >> 1 & 0x44444444) | 0x32103210;
    u32 first = __byte_perm(__byte_perm(IQ4_VALUES_0, IQ4_VALUES_1, at), __byte_perm(IQ4_VALUES_2, IQ4_VALUES_3, at), upper);
    at >>= 16, upper >>= 16;
    u32 second = __byte_perm(__byte_perm(IQ4_VALUES_0, IQ4_VALUES_1, at), __byte_perm(IQ4_VALUES_2, IQ4_VALUES_3, at), upper);
    a = __byte_perm(first, second, 0x6420), b = __byte_perm(first, second, 0x7531);
}

// A scale d and a minimum m for all 256 values; 16 by 16 they are multiplied by 4 bits each, which fit into the operands.
template <> struct Lane<Q2_K> {
    static constexpr bool BY16 = false;
    static constexpr int MIN = MIN_WORDS;
    u32 low[4], scales[4];
    float d, m;
    int half;
    __device__ __forceinline__ void load(const u8* row, int step, int t, int) {
        const u8* p = row + (size_t)step * 84;
#pragma unroll
        for (int i = 0; i < 4; i++) scales[i] = *(const u32*)(p + 4 * i);
#pragma unroll
        for (int i = 0; i < 4; i++) low[i] = *(const u32*)(p + 16 + 32 * (i >> 1) + 8 * t + 4 * (i & 1));
        d = load_half(p + 80), m = load_half(p + 82);
        half = 8 * (t >> 1);
    }
    __device__ __forceinline__ int whole(int, int) const { return 1; }  // the operands hold the rest
    __device__ __forceinline__ void get(int j, Fragment& f) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            u32 packed = scales[j] >> (16 * s + half);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                f.words[s][h] = (low[2 * (j >> 1) + h] >> 2 * (2 * (j & 1) + s) & 0x03030303) * (packed & 15);
                f.mins[s][h] = (packed >> 4 & 15) * 0x01010101;
            }
            f.scale[s][0] = d, f.min[s] = m;
        }
    }
};

template <> struct Lane<Q3_K> {
    static constexpr bool BY16 = true, MIN = false;
    u32 low[4], high[2], scales[4];  // low[2n + h]: bytes 32n + 16h + 4t; high[h]: bytes 16h + 4t
    float d;
    __device__ __forceinline__ void load(const u8* row, int step, int t, int) {
        const u8* p = row + (size_t)step * 110;
#pragma unroll
        for (int i = 0; i < 2; i++) high[i] = load_word(p + 16 * i + 4 * t);
#pragma unroll
        for (int i = 0; i < 4; i++) low[i] = load_word(p + 32 + 16 * i + 4 * t);
        u32 a = load_word(p + 96), b = load_word(p + 100), c = load_word(p + 104);
        scales[0] = (a & 0x0f0f0f0f) | (c & 0x03030303) << 4, scales[1] = (b & 0x0f0f0f0f) | (c >> 2 & 0x03030303) << 4;
        scales[2] = (a >> 4 & 0x0f0f0f0f) | (c >> 4 & 0x03030303) << 4;
        scales[3] = (b >> 4 & 0x0f0f0f0f) | (c >> 6 & 0x03030303) << 4;
        d = load_half(p + 108);
    }
    __device__ __forceinline__ int whole(int block, int half) const { return (int)(scales[block >> 1] >> 8 * (2 * (block & 1) + half) & 63) - 32; }
    __device__ __forceinline__ void get(int j, Fragment& f) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int bit = 2 * j + s;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                u32 q = (low[2 * (j >> 1) + h] >> 2 * (bit & 3) & 0x03030303) | (high[h] >> bit & 0x01010101) << 2;
                f.words[s][h] = subtract_bytes(q, 0x04040404);
                f.scale[s][h] = d * whole(bit, h);
            }
        }
    }
};

template <> struct Lane<IQ4_XS> {
    static constexpr bool BY16 = false, MIN = false;
    Nibbles nibbles;
    float d;
    u32 scales, high;
    __device__ __forceinline__ void load(const u8* row, int step, int t, int) {
        const u8* p = row + (size_t)step * 136;
        uint2 head = *(const uint2*)p;
        d = half_to_float((u16)head.x), high = head.x >> 16, scales = head.y;
#pragma unroll
        for (int i = 0; i < 8; i++) nibbles.load<true>(i, p + 8 + 16 * i, t);
    }
    __device__ __forceinline__ int whole(int block, int) const { return (int)((scales >> 4 * block & 15) | (high >> 2 * block & 3) << 4) - 32; }
    __device__ __forceinline__ void get(int j, Fragment& f) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int i = 2 * j + s;
            look_up(nibbles.q[2 * i], nibbles.q[2 * i + 1], f.words[s][0], f.words[s][1]);
            f.scale[s][0] = d * whole(i, 0);
        }
    }
};

// Blocks of 32 with a half as scale: IQ4_NL and Q4_0.
template <int TYPE> struct Lane18 {
    static constexpr bool BY16 = false, MIN = false;
    Nibbles nibbles;
    float d[8];
    __device__ __forceinline__ void load(const u8* row, int step, int t, int pairs) {
        const u8* p = row + (size_t)step * 144;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i >= 2 * pairs) break;
            d[i] = load_half(p + 18 * i);
            nibbles.load<false>(i, p + 18 * i + 2, t);
        }
    }
    __device__ __forceinline__ void get(int j, Fragment& f) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            u32 x = nibbles.q[4 * j + 2 * s], y = nibbles.q[4 * j + 2 * s + 1];
            if (TYPE == IQ4_NL) look_up(x, y, f.words[s][0], f.words[s][1]);
            else f.words[s][0] = subtract_bytes(x, 0x08080808), f.words[s][1] = subtract_bytes(y, 0x08080808);
            f.scale[s][0] = d[2 * j + s];
        }
    }
};
template <> struct Lane<IQ4_NL> : Lane18<IQ4_NL> {};
template <> struct Lane<Q4_0> : Lane18<Q4_0> {};

// Blocks of 32 with a scale and a minimum, which is added: Q4_1, and Q5_1 with fifth bits.
template <int TYPE> struct LaneWithMin {
    static constexpr bool BY16 = false, MIN = true;
    static constexpr int SIZE = TYPE == Q4_1 ? 20 : 24;
    Nibbles nibbles;
    u32 head[8], high[8];
    __device__ __forceinline__ void load(const u8* row, int step, int t, int pairs) {
        const u8* p = row + (size_t)step * 8 * SIZE;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i >= 2 * pairs) break;
            head[i] = *(const u32*)(p + SIZE * i);
            high[i] = TYPE == Q5_1 ? p[SIZE * i + 4 + t] : 0;
            nibbles.load<true>(i, p + SIZE * (i + 1) - 16, t);
        }
    }
    __device__ __forceinline__ void get(int j, Fragment& f) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int i = 2 * j + s;
#pragma unroll
            for (int h = 0; h < 2; h++) f.words[s][h] = nibbles.q[2 * i + h] | ((high[i] >> 4 * h & 15) * 0x00204081 & 0x01010101) << 4;
            f.scale[s][0] = half_to_float((u16)head[i]), f.min[s] = -half_to_float((u16)(head[i] >> 16));
        }
    }
};
template <> struct Lane<Q4_1> : LaneWithMin<Q4_1> {};
template <> struct Lane<Q5_1> : LaneWithMin<Q5_1> {};

// Four magnitudes (none 0) with the signs in the low four bits.
__device__ __forceinline__ u32 with_signs(u32 magnitudes, u32 signs) {
    u32 negative = ((signs & 15) * 0x00204081 & 0x01010101);
    return (magnitudes ^ negative * 255) + negative;
}

// Magnitudes from a grid, four at a time; of eight signs the last one makes their number even.
template <> struct Lane<IQ3_XXS> {
    static constexpr bool BY16 = false, MIN = false;
    u32 index[8], tail[8];  // two grid entries a block; signs of all lanes and the scale
    float d;
    int shift;
    __device__ __forceinline__ void load(const u8* row, int step, int t, int) {
        const u8* p = row + (size_t)step * 98;
        d = load_half(p) * 0.25f;
#pragma unroll
        for (int i = 0; i < 8; i++) index[i] = *(const u16*)(p + 2 + 8 * i + 2 * t);
#pragma unroll
        for (int i = 0; i < 8; i++) tail[i] = load_word(p + 66 + 4 * i);
        shift = 7 * t;
    }
    __device__ __forceinline__ int whole(int block, int) const { return 1 + 2 * (tail[block] >> 28); }
    __device__ __forceinline__ void get(int j, Fragment& f) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int i = 2 * j + s;
            u32 signs = tail[i] >> shift & 127;
            signs |= (__popc(signs) & 1) << 7;
            f.words[s][0] = with_signs(IQ3_XXS_GRID[index[i] & 255], signs);
            f.words[s][1] = with_signs(IQ3_XXS_GRID[index[i] >> 8], signs >> 4);
            f.scale[s][0] = d * whole(i, 0);
        }
    }
};

template <> struct Lane<IQ3_S> {
    static constexpr bool BY16 = false, MIN = false;
    u32 index[8], high[2], signs[8], scales;
    float d;
    int t;
    __device__ __forceinline__ void load(const u8* row, int step, int lane, int) {
        const u8* p = row + (size_t)step * 110;
        t = lane;
        d = load_half(p);
#pragma unroll
        for (int i = 0; i < 8; i++) index[i] = *(const u16*)(p + 2 + 8 * i + 2 * t), signs[i] = p[74 + 4 * i + t];
        high[0] = load_word(p + 66), high[1] = load_word(p + 70), scales = load_word(p + 106);
    }
    __device__ __forceinline__ int whole(int block, int) const { return 1 + 2 * (scales >> 4 * block & 15); }
    __device__ __forceinline__ void get(int j, Fragment& f) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int i = 2 * j + s;
            u32 ninth = high[i >> 2] >> (8 * (i & 3) + 2 * t);
            f.words[s][0] = with_signs(IQ3_S_GRID[(index[i] & 255) | (ninth & 1) << 8], signs[i]);
            f.words[s][1] = with_signs(IQ3_S_GRID[index[i] >> 8 | (ninth & 2) << 7], signs[i] >> 4);
            f.scale[s][0] = d * whole(i, 0);
        }
    }
};

// Value i of a row by way of the lane that holds it.
template <int TYPE> __device__ inline float lane_value(const u8* row, int i) {
    using L = Lane<TYPE>;
    int j = i / 64 % 4, s = i / 32 % 2, l = i % 32, t = L::BY16 ? l % 16 / 4 : l / 8, h = L::BY16 ? l / 16 : l / 4 % 2;
    L lane;
    Fragment f;
    lane.load(row, i / 256, t, j + 1);
    lane.get(j, f);
    float v = f.scale[s][L::BY16 ? h : 0] * (i8)(f.words[s][h] >> 8 * (l % 4));
    if (L::MIN == MIN_WORDS) return v - f.min[s] * (u8)f.mins[s][h];
    return L::MIN ? v - f.min[s] : v;
}
