// Gated DeltaNet after its projections: convolution, SiLU, L2 norm, gates, then either the recurrence over the rows
// (causal), or the softmax over the block with its history slot (preview), then the gated norm. One block a value head.
#include "common.cuh"

#ifndef HEAD
#define HEAD 128  // size of a key and of a value head
#endif
constexpr int SHARE = HEAD / 4;      // state values of one thread: a row of S lies over 4 lanes
constexpr int THREADS = 4 * HEAD;
constexpr int STRIDE = HEAD + 4;     // of rows in shared memory: 16-byte reads of neighbouring rows meet no bank twice
constexpr int BLOCK_STRIDE = MAX_ROWS + 1;

struct GdnLayer {
    float* y;               // [rows, ld]: q, k, v channels | z | alpha | beta
    float* ring;            // [channels, 3], oldest first
    float* state;           // [value heads, HEAD (value), HEAD (key)]
    const float* taps;      // [channels, 4]
    const float* decay;     // [value heads]: -exp(A_log)
    const float* dt_bias;   // [value heads]
    const float* norm;      // [HEAD]
    const float* right;     // [channels, 3], preview only
    const float* logit_scale;   // [value heads], preview only
    const float* history_bias;  // [value heads], preview only
    const float* history_c;     // [value heads], preview only
};

struct GdnArgs {
    GdnLayer layer;
    Acts out;               // [rows, value heads * HEAD]
    const Pass* pass;
    int key_heads, value_heads, ld;
    int keep_state;         // causal: 1 writes the state after the last row
    float eps;
};

struct ReplayArgs {
    const GdnLayer* layers;
    const Pass* pass;
    int key_heads, value_heads, ld;
};

struct Shared {
    float* q;      // [rows][STRIDE]
    float* k;
    float* v;      // becomes the output of the causal pass
    float* g;      // [MAX_ROWS] log decay
    float* beta;
    float* p;      // [MAX_ROWS][BLOCK_STRIDE] preview weights, history last
};

__device__ __forceinline__ Shared carve(float* memory, int rows) {
    Shared s;
    s.q = memory, s.k = s.q + rows * STRIDE, s.v = s.k + rows * STRIDE;
    s.g = s.v + rows * STRIDE, s.beta = s.g + MAX_ROWS, s.p = s.beta + MAX_ROWS;
    return s;
}

// Convolution and SiLU of one channel over the rows; `right` reaches 3 rows ahead inside the block, or is null.
__device__ __forceinline__ void convolve(float* out, const GdnLayer& layer, int channel, int n, int ld, const float* right) {
    float w[4], ahead[3] = {0, 0, 0}, r[3] = {0, 0, 0};
#pragma unroll
    for (int j = 0; j < 4; j++) w[j] = layer.taps[channel * 4 + j];
    float a = layer.ring[channel * 3], b = layer.ring[channel * 3 + 1], c = layer.ring[channel * 3 + 2];
    const float* y = layer.y + channel;
#pragma unroll
    for (int j = 0; j < 3; j++) {
        if (right) r[j] = right[channel * 3 + j];
        if (right && 1 + j < n) ahead[j] = y[(size_t)(1 + j) * ld];
    }
    float d = y[0];
#pragma unroll 4
    for (int t = 0; t < n; t++) {
        float next = 0;
        if (right) next = t + 4 < n ? y[(size_t)(t + 4) * ld] : 0.0f;
        else if (t + 1 < n) next = y[(size_t)(t + 1) * ld];
        float v = a * w[0] + b * w[1] + c * w[2] + d * w[3];
        if (right) v += ahead[0] * r[0] + ahead[1] * r[1] + ahead[2] * r[2];
        out[t * STRIDE] = silu(v);
        a = b, b = c, c = d;
        if (right) d = ahead[0], ahead[0] = ahead[1], ahead[1] = ahead[2], ahead[2] = next;
        else d = next;
    }
}

// Fills q, k (unit length), v, g and beta of value head h for n rows.
__device__ __forceinline__ void prepare(const Shared& s, const GdnLayer& layer, int h, int n, int key_heads, int value_heads,
                                        int ld, const float* right) {
    int key = h % key_heads, keys = key_heads * HEAD, channels = 2 * keys + value_heads * HEAD;
    for (int i = threadIdx.x; i < 3 * HEAD; i += THREADS) {
        int part = i / HEAD, c = i % HEAD;
        float* out = (part == 0 ? s.q : part == 1 ? s.k : s.v) + c;
        convolve(out, layer, part == 2 ? 2 * keys + h * HEAD + c : part * keys + key * HEAD + c, n, ld, right);
    }
    if ((int)threadIdx.x < n) {
        const float* gates = layer.y + (size_t)threadIdx.x * ld + channels + value_heads * HEAD;
        s.g[threadIdx.x] = layer.decay[h] * softplus(gates[h] + layer.dt_bias[h]);
        s.beta[threadIdx.x] = sigmoid(gates[value_heads + h]);
    }
    __syncthreads();
    for (int i = warp_id(); i < 2 * n; i += THREADS / 32) {
        float* row = (i < n ? s.q : s.k) + (i < n ? i : i - n) * STRIDE;
        float sum = 0;
        for (int c = lane_id(); c < HEAD; c += 32) sum += row[c] * row[c];
        float scale = rsqrtf(lanes_sum(sum) + 1e-6f);
        for (int c = lane_id(); c < HEAD; c += 32) row[c] *= scale;
    }
    __syncthreads();
}

// Thread 4v + i holds the values 4 (4j + i) .. + 3, j = 0, 1, ..., of row v of S.
__device__ __forceinline__ void load_state(float (&state)[SHARE], const float* base) {
    const float4* p = (const float4*)(base + (threadIdx.x / 4) * HEAD) + threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < SHARE / 4; j++) {
        float4 v = p[4 * j];
        state[4 * j] = v.x, state[4 * j + 1] = v.y, state[4 * j + 2] = v.z, state[4 * j + 3] = v.w;
    }
}

__device__ __forceinline__ void store_state(float* base, const float (&state)[SHARE]) {
    float4* p = (float4*)(base + (threadIdx.x / 4) * HEAD) + threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < SHARE / 4; j++) p[4 * j] = make_float4(state[4 * j], state[4 * j + 1], state[4 * j + 2], state[4 * j + 3]);
}

// The thread's share of the product of its row of S with a vector in shared memory, summed over its 4 lanes.
__device__ __forceinline__ float dot_state(const float (&state)[SHARE], const float* vector) {
    const float4* p = (const float4*)vector + threadIdx.x % 4;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < SHARE / 4; j++) {
        float4 v = p[4 * j];
        sum += state[4 * j] * v.x + state[4 * j + 1] * v.y + state[4 * j + 2] * v.z + state[4 * j + 3] * v.w;
    }
    return lanes_sum<4>(sum);
}

// S = e^g S; S += beta (v - S k) k'; o = S q / sqrt(HEAD), row after row. Rows of S need nothing of each other.
template <bool OUTPUT> __device__ __forceinline__ void recurrence(float (&state)[SHARE], const Shared& s, int n) {
    int value = threadIdx.x / 4;
    for (int t = 0; t < n; t++) {
        float decay = expf(s.g[t]);
#pragma unroll
        for (int j = 0; j < SHARE; j++) state[j] *= decay;
        float delta = (s.v[t * STRIDE + value] - dot_state(state, s.k + t * STRIDE)) * s.beta[t];
        const float4* k = (const float4*)(s.k + t * STRIDE) + threadIdx.x % 4;
#pragma unroll
        for (int j = 0; j < SHARE / 4; j++) {
            float4 v = k[4 * j];
            state[4 * j] += delta * v.x, state[4 * j + 1] += delta * v.y;
            state[4 * j + 2] += delta * v.z, state[4 * j + 3] += delta * v.w;
        }
        if (OUTPUT) {
            float o = dot_state(state, s.q + t * STRIDE) * rsqrtf((float)HEAD);
            if (threadIdx.x % 4 == 0) s.v[t * STRIDE + value] = o;  // only these four lanes read v[t][value]
        }
    }
}

// RMSNorm(o) * w * silu(z), quantized for the output projection. o lies in shared memory, [n][STRIDE].
__device__ __forceinline__ void gated_norm(const GdnArgs& a, const float* o, int h, int n) {
    int values = a.value_heads * HEAD, z_at = 2 * a.key_heads * HEAD + values + h * HEAD;
    for (int r = warp_id(); r < n; r += THREADS / 32) {
        const float* row = o + r * STRIDE;
        float sum = 0;
        for (int c = lane_id(); c < HEAD; c += 32) sum += row[c] * row[c];
        float scale = rsqrtf(lanes_sum(sum) / HEAD + a.eps);
        const float* z = a.layer.y + (size_t)r * a.ld + z_at;
        for (int c = lane_id(); c < HEAD; c += 32)
            store_acts1(a.out, (size_t)r * values + h * HEAD + c, row[c] * scale * a.layer.norm[c] * silu(z[c]));
    }
}

KERNEL(gdn_causal, THREADS, GdnArgs) {
    DYNAMIC_SHARED(float, memory);
    wait_for_previous();
    int h = blockIdx.x, n = a.pass->n;
    Shared s = carve(memory, n);
    float state[SHARE];
    float* base = a.layer.state + (size_t)h * HEAD * HEAD;
    load_state(state, base);
    prepare(s, a.layer, h, n, a.key_heads, a.value_heads, a.ld, nullptr);
    recurrence<true>(state, s, n);
    if (a.keep_state) store_state(base, state);
    __syncthreads();
    gated_norm(a, s.v, h, n);
}

// Softmax over the block's slots and the history slot for every row, into s.p; the history weight lands in s.beta.
__device__ __forceinline__ void block_weights(const Shared& s, const GdnLayer& layer, int h, int n) {
    float scale = layer.logit_scale[h];
    for (int i = threadIdx.x; i < n * MAX_ROWS; i += THREADS) {
        int t = i / MAX_ROWS, slot = i % MAX_ROWS;
        if (slot >= n) continue;
        const float4 *q = (const float4*)(s.q + t * STRIDE), *k = (const float4*)(s.k + slot * STRIDE);
        float sum = 0;
        for (int c = 0; c < HEAD / 4; c++) sum += q[c].x * k[c].x + q[c].y * k[c].y + q[c].z * k[c].z + q[c].w * k[c].w;
        s.p[t * BLOCK_STRIDE + slot] = scale * sum;
    }
    __syncthreads();
    float history = layer.history_bias[h] + layer.history_c[h] * logf(n / 32.0f);
    for (int t = warp_id(); t < n; t += THREADS / 32) {
        int slot = lane_id();
        float logit = slot < n ? s.p[t * BLOCK_STRIDE + slot] : -INFINITY;
        float top = fmaxf(lanes_max(logit), history), e = slot < n ? expf(logit - top) : 0.0f, past = expf(history - top);
        float total = lanes_sum(e) + past;
        s.p[t * BLOCK_STRIDE + slot] = e / total;
        if (slot == 0) s.beta[t] = past / total * expf(s.g[t]) * rsqrtf((float)HEAD);
    }
    __syncthreads();
}

KERNEL(gdn_preview, THREADS, GdnArgs) {
    DYNAMIC_SHARED(float, memory);
    wait_for_previous();
    int h = blockIdx.x, n = a.pass->n, value = threadIdx.x / 4, quarter = threadIdx.x % 4;
    Shared s = carve(memory, n);
    float state[SHARE];
    load_state(state, a.layer.state + (size_t)h * HEAD * HEAD);
    prepare(s, a.layer, h, n, a.key_heads, a.value_heads, a.ld, a.layer.right);
    block_weights(s, a.layer, h, n);
    for (int t = 0; t < n; t++) {
        float sum = 0;
        for (int slot = quarter; slot < n; slot += 4) sum += s.p[t * BLOCK_STRIDE + slot] * s.v[slot * STRIDE + value];
        sum = lanes_sum<4>(sum) + s.beta[t] * dot_state(state, s.q + t * STRIDE);
        if (quarter == 0) s.k[t * STRIDE + value] = sum;  // the keys have done their work
    }
    __syncthreads();
    gated_norm(a, s.k, h, n);
}

// Commit: replays the first rows of a verify pass into every layer's state. Grid: value heads x layers.
KERNEL(gdn_replay, THREADS, ReplayArgs) {
    DYNAMIC_SHARED(float, memory);
    wait_for_previous();
    int h = blockIdx.x, n = a.pass->replay;
    if (n == 0) return;
    GdnLayer layer = a.layers[blockIdx.y];
    Shared s = carve(memory, n);
    float state[SHARE];
    float* base = layer.state + (size_t)h * HEAD * HEAD;
    load_state(state, base);
    prepare(s, layer, h, n, a.key_heads, a.value_heads, a.ld, nullptr);
    recurrence<false>(state, s, n);
    store_state(base, state);
}

// Commit: the three last rows of [ring | replayed rows] become the ring, after everyone has read the old one.
KERNEL(gdn_ring, 256, ReplayArgs) {
    wait_for_previous();
    int n = a.pass->replay, channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= (2 * a.key_heads + a.value_heads) * HEAD) return;
    const GdnLayer& layer = a.layers[blockIdx.y];
    float* ring = layer.ring + channel * 3;
    float old[3] = {ring[0], ring[1], ring[2]};
#pragma unroll
    for (int j = 0; j < 3; j++) {
        int at = n - 3 + j;
        ring[j] = at >= 0 ? layer.y[(size_t)at * a.ld + channel] : at == -1 ? old[2] : at == -2 ? old[1] : old[0];
    }
}
