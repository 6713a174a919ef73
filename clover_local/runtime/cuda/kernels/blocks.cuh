// ggml's quantized blocks as they lie in a file: one value, or one lane's registers of 256 values of a row.
// Layouts: ggml-common.h (block_q4_K, block_q5_K, block_q6_K, block_q8_0, block_q5_0).
#pragma once
#include "common.cuh"

__device__ __forceinline__ constexpr int row_bytes(int type, int k) {
    switch (type) {
        case Q4_K: return k / 256 * 144;
        case Q5_K: return k / 256 * 176;
        case Q6_K: return k / 256 * 210;
        case Q8_0: return k / 32 * 34;
        case Q5_0: return k / 32 * 22;
        case Q2_K: return k / 256 * 84;
        case Q3_K: return k / 256 * 110;
        case IQ3_XXS: return k / 256 * 98;
        case IQ3_S: return k / 256 * 110;
        case IQ4_XS: return k / 256 * 136;
        case IQ4_NL:
        case Q4_0: return k / 32 * 18;
        case Q4_1: return k / 32 * 20;
        case Q5_1: return k / 32 * 24;
        case F32: return k * 4;
        default: return k * 2;
    }
}

// Words at addresses that are only known to be even.
__device__ __forceinline__ u32 load_word(const u8* p) {
    if (((size_t)p & 2) == 0) return *(const u32*)p;
    return *(const u16*)p | (u32) * (const u16*)(p + 2) << 16;
}

__device__ __forceinline__ float load_half(const u8* p) { return half_to_float(*(const u16*)p); }
__device__ __forceinline__ float bf16_to_float(u16 h) { return __uint_as_float((u32)h << 16); }

// Scale and minimum j (0..7) of a Q4_K or Q5_K block, from its 12 packed bytes as three words.
__device__ __forceinline__ void scale_min(int j, u32 w0, u32 w1, u32 w2, int& scale, int& min) {
    int shift = 8 * (j & 3);
    u32 a = w0 >> shift, b = w1 >> shift, c = w2 >> shift;
    scale = j < 4 ? a & 63 : (c & 15) | (a >> 2 & 48);
    min = j < 4 ? b & 63 : (c >> 4 & 15) | (b >> 2 & 48);
}

// The eight scales and minima of such a block, a byte each.
struct Packed {
    u32 scale[2], min[2];
};

__device__ __forceinline__ Packed unpack_scales(u32 w0, u32 w1, u32 w2) {
    Packed p;
    p.scale[0] = w0 & 0x3f3f3f3f, p.min[0] = w1 & 0x3f3f3f3f;
    p.scale[1] = (w2 & 0x0f0f0f0f) | (w0 >> 2 & 0x30303030), p.min[1] = (w2 >> 4 & 0x0f0f0f0f) | (w1 >> 2 & 0x30303030);
    return p;
}

// Byte i of a word less `offset` as a float, by way of the bits of 2^23; converting costs four times as much.
__device__ __forceinline__ float small_float(u32 word, int i, int offset = 0) {
    return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7440 | i)) - (8388608.0f + offset);
}
__device__ __forceinline__ float byte_of(const u32 (&words)[2], int i) { return small_float(words[i >> 2], i & 3); }

// 64 values (two blocks of 32) of one row as tensor-core operands of lane 4g+t.
// By 32: words[s] = values 8t..8t+7 of block s. By 16: words[s][h] = values 16h+4t..16h+4t+3.
struct Fragment {
    u32 words[2][2];
    float scale[2][2];  // by 32 only [s][0]
    float min[2];
    u32 mins[2][2];     // MIN_WORDS: what min[s] is multiplied by, value by value like `words`
};
constexpr int MIN_WORDS = 2;  // Lane::MIN where minima change within a block of 32; true: min[s] holds for block s

template <int TYPE> struct Lane;

// Types of 256 values whose fragments come without the block's own scale `d` and minimum `m`.
template <int TYPE> constexpr bool LATE = TYPE == Q4_K || TYPE == Q5_K || TYPE == Q6_K;

// Types of 256 values whose scales are whole numbers times `d`: `whole(block, half)` is that of a block of 32 or its half.
template <int TYPE>
constexpr bool WHOLE = LATE<TYPE> || TYPE == Q2_K || TYPE == Q3_K || TYPE == IQ4_XS || TYPE == IQ3_XXS || TYPE == IQ3_S;

template <> struct Lane<Q4_K> {
    static constexpr bool BY16 = false, MIN = true;
    float d, m;
    Packed scales;
    uint2 q[4];
    __device__ __forceinline__ void load(const u8* row, int step, int t, int) {
        const u8* p = row + (size_t)step * 144;
        uint4 head = *(const uint4*)p;
        d = half_to_float((u16)head.x), m = half_to_float((u16)(head.x >> 16));
        scales = unpack_scales(head.y, head.z, head.w);
#pragma unroll
        for (int j = 0; j < 4; j++) q[j] = *(const uint2*)(p + 16 + 32 * j + 8 * t);
    }
    __device__ __forceinline__ int whole(int block, int) const { return signed_byte(scales.scale[block >> 2], block & 3); }
    __device__ __forceinline__ void get(int j, Fragment& f) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            f.scale[s][0] = byte_of(scales.scale, 2 * j + s);
            f.min[s] = byte_of(scales.min, 2 * j + s);
            f.words[s][0] = q[j].x >> 4 * s & 0x0f0f0f0f;
            f.words[s][1] = q[j].y >> 4 * s & 0x0f0f0f0f;
        }
    }
};

template <> struct Lane<Q5_K> {
    static constexpr bool BY16 = false, MIN = true;
    float d, m;
    Packed scales;
    uint2 high, q[4];
    __device__ __forceinline__ void load(const u8* row, int step, int t, int) {
        const u8* p = row + (size_t)step * 176;
        uint4 head = *(const uint4*)p;
        d = half_to_float((u16)head.x), m = half_to_float((u16)(head.x >> 16));
        scales = unpack_scales(head.y, head.z, head.w);
        high = *(const uint2*)(p + 16 + 8 * t);
#pragma unroll
        for (int j = 0; j < 4; j++) q[j] = *(const uint2*)(p + 48 + 32 * j + 8 * t);
    }
    __device__ __forceinline__ int whole(int block, int) const { return signed_byte(scales.scale[block >> 2], block & 3); }
    __device__ __forceinline__ void get(int j, Fragment& f) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int bit = 2 * j + s;
            f.scale[s][0] = byte_of(scales.scale, bit);
            f.min[s] = byte_of(scales.min, bit);
            f.words[s][0] = (q[j].x >> 4 * s & 0x0f0f0f0f) | (high.x >> bit & 0x01010101) << 4;
            f.words[s][1] = (q[j].y >> 4 * s & 0x0f0f0f0f) | (high.y >> bit & 0x01010101) << 4;
        }
    }
};

// Values minus 32 and times 4 fill a signed byte without a borrow: the low four bits go to bits 2..5, the high two to 6 and 7,
// and the sign turns. `d` is a quarter of the block's scale.
template <> struct Lane<Q6_K> {
    static constexpr bool BY16 = true, MIN = false;
    u32 low[8], high[4], scales[4];  // low[4n + 2c + h]: bytes 64n + 32c + 16h + 4t; high[2n + h]: bytes 32n + 16h + 4t
    float d;
    template <bool WORDS> __device__ __forceinline__ void fill(const u8* p, int t) {  // WORDS: p is a multiple of 4
        auto word = [](const u8* at) { return WORDS ? *(const u32*)at : *(const u16*)at | (u32) * (const u16*)(at + 2) << 16; };
#pragma unroll
        for (int i = 0; i < 8; i++) low[i] = word(p + 16 * i + 4 * t);
#pragma unroll
        for (int i = 0; i < 4; i++) high[i] = word(p + 128 + 16 * i + 4 * t);
#pragma unroll
        for (int i = 0; i < 4; i++) scales[i] = word(p + 192 + 4 * i) ^ 0x80808080;
    }
    __device__ __forceinline__ void load(const u8* row, int step, int t, int) {
        const u8* p = row + (size_t)step * 210;
        if ((size_t)p & 2) fill<false>(p, t);
        else fill<true>(p, t);
        d = load_half(p + 208) * 0.25f;
    }
    __device__ __forceinline__ int whole(int block, int half) const {
        return signed_byte(scales[block >> 1] ^ 0x80808080, 2 * (block & 1) + half);
    }
    // Values 64j + 32s + l: half n = j / 2 of the block, its quarter c = 2 (j & 1) + s.
    __device__ __forceinline__ void get(int j, Fragment& f) const {
        int n = j >> 1;
#pragma unroll
        for (int s = 0; s < 2; s++) {
            int c = 2 * (j & 1) + s;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                u32 a = low[4 * n + 2 * s + h], b = high[2 * n + h] << (6 - 2 * c);
                a = j & 1 ? a >> 2 : a << 2;
                f.words[s][h] = (((a & 0x3c3c3c3c) | (b & ~0x3c3c3c3c)) & 0xfcfcfcfc) ^ 0x80808080;
                f.scale[s][h] = small_float(scales[j], 2 * s + h, 128);
            }
        }
    }
};

template <> struct Lane<Q8_0> {
    static constexpr bool BY16 = false, MIN = false;
    u32 q[16];
    float d[8];
    __device__ __forceinline__ void load(const u8* row, int step, int t, int pairs) {
        const u8* p = row + (size_t)step * 272;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i >= 2 * pairs) break;
            d[i] = load_half(p + 34 * i);
            q[2 * i] = load_word(p + 34 * i + 2 + 8 * t);
            q[2 * i + 1] = load_word(p + 34 * i + 6 + 8 * t);
        }
    }
    __device__ __forceinline__ void get(int j, Fragment& f) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            f.words[s][0] = q[4 * j + 2 * s];
            f.words[s][1] = q[4 * j + 2 * s + 1];
            f.scale[s][0] = d[2 * j + s];
        }
    }
};

template <> struct Lane<Q5_0> {
    static constexpr bool BY16 = false, MIN = false;
    u32 q[16], high[8];  // nibbles and, for this lane's 8 values of each block, their fifth bits
    float d[8];
    __device__ __forceinline__ void load(const u8* row, int step, int t, int pairs) {
        const u8* p = row + (size_t)step * 176;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i >= 2 * pairs) break;
            d[i] = load_half(p + 22 * i);
            high[i] = p[22 * i + 2 + t];
            q[2 * i] = load_word(p + 22 * i + 6 + 8 * (t & 1)) >> 4 * (t >> 1);
            q[2 * i + 1] = load_word(p + 22 * i + 10 + 8 * (t & 1)) >> 4 * (t >> 1);
        }
    }
    __device__ __forceinline__ void get(int j, Fragment& f) const {
#pragma unroll
        for (int s = 0; s < 2; s++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                u32 bits = (high[2 * j + s] >> 4 * h & 15) * 0x00204081 & 0x01010101;
                u32 v = (q[4 * j + 2 * s + h] & 0x0f0f0f0f) | bits << 4;
                f.words[s][h] = ((v | 0x80808080) - 0x10101010) ^ 0x80808080;  // minus 16 in every byte
            }
            f.scale[s][0] = d[2 * j + s];
        }
    }
};

#include "blocks3.cuh"

// One value of a row, for the token embedding.
__device__ inline float value_at(int type, const u8* row, int i) {
    int block = i / 256, r = i % 256, sub = r / 32, l = r % 32;
    if (type == F32) return ((const float*)row)[i];
    if (type == F16) return half_to_float(((const u16*)row)[i]);
    if (type == BF16) return bf16_to_float(((const u16*)row)[i]);
    if (type == Q8_0) {
        const u8* p = row + (size_t)(i / 32) * 34;
        return load_half(p) * (i8)p[2 + i % 32];
    }
    if (type == Q5_0) {
        const u8* p = row + (size_t)(i / 32) * 22;
        int high = p[2 + l / 8] >> l % 8 & 1, low = p[6 + l % 16] >> 4 * (l / 16) & 15;
        return load_half(p) * ((low | high << 4) - 16);
    }
    if (type == Q6_K) {
        const u8* p = row + (size_t)block * 210;
        int n = r / 128, c = sub % 4;
        int low = p[64 * n + 32 * (c & 1) + l] >> 4 * (c >> 1) & 15, high = p[128 + 32 * n + l] >> 2 * c & 3;
        return load_half(p + 208) * (i8)p[192 + 8 * n + 2 * c + l / 16] * ((low | high << 4) - 32);
    }
#define BY_LANE(TYPE) if (type == TYPE) return lane_value<TYPE>(row, i);
    BY_LANE(Q2_K) BY_LANE(Q3_K) BY_LANE(IQ3_XXS) BY_LANE(IQ3_S) BY_LANE(IQ4_XS) BY_LANE(IQ4_NL) BY_LANE(Q4_0) BY_LANE(Q4_1) BY_LANE(Q5_1)
#undef BY_LANE
    int size = type == Q4_K ? 144 : 176, start = type == Q4_K ? 16 : 48;
    const u8* p = row + (size_t)block * size;
    const u32* w = (const u32*)(p + 4);
    int scale, min, q = p[start + 32 * (sub / 2) + l] >> 4 * (sub & 1) & 15;
    if (type == Q5_K) q |= (p[16 + l] >> sub & 1) << 4;
    scale_min(sub, w[0], w[1], w[2], scale, min);
    return load_half(p) * scale * q - load_half(p + 2) * min;
}
