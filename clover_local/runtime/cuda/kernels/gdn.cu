// Gated DeltaNet after its projections: convolution, SiLU, L2 norm, gates, then either the recurrence over the rows
// (causal), or the softmax over the block with its history slot (preview), then the gated norm. Some blocks share a value
// head, each with some of the rows of its state; the last to finish does the norm.
#include "common.cuh"

#ifndef HEAD
#define HEAD 128  // size of a key and of a value head
#endif
#ifndef PARTS
#define PARTS 4  // blocks of a value head
#endif
constexpr int VALUES = HEAD / PARTS; // rows of S of a block
constexpr int SHARE = HEAD / 8;      // columns of S of one thread, in each of two rows that lie over 8 lanes
constexpr int WORKERS = 4 * VALUES;  // threads that hold them
#ifndef TWINS
#define TWINS 1  // groups of threads that hold them in a preview, each for some of its rows
#endif
constexpr int CHANNELS = (2 * HEAD + VALUES + 31) / 32 * 32;  // of a block: q, k, its part of v
#ifndef STRETCHES
#define STRETCHES 1  // of rows of a channel, a thread each: 1 or 2
#endif
constexpr int NEEDED = STRETCHES * CHANNELS + 32;             // and a warp for the gates
constexpr int THREADS = NEEDED > TWINS * WORKERS ? NEEDED : TWINS * WORKERS;
constexpr int STRIDE = HEAD + 4;     // of rows in shared memory: 16-byte reads of neighbouring rows meet no bank twice
constexpr int BLOCK_STRIDE = MAX_ROWS + 4;
constexpr int WARPS = THREADS / 32;
constexpr int WARP_ROWS = (MAX_ROWS + WARPS - 1) / WARPS;  // rows whose output one warp finishes

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
    Acts out;               // [rows, value heads * HEAD], a scale for every head
    float* mixed;           // [rows, value heads * HEAD], before the norm
    u32* arrived;           // [value heads]: blocks that are done; 0 again after the last
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
    float* decay;  // [MAX_ROWS]
    float* beta;
    float* kq;     // product of key and query of a row
    float* p;      // [MAX_ROWS][BLOCK_STRIDE] preview weights
};

__device__ __forceinline__ Shared carve(float* memory, int rows) {
    Shared s;
    s.q = memory, s.k = s.q + rows * STRIDE, s.v = s.k + rows * STRIDE;
    s.decay = s.v + rows * STRIDE, s.beta = s.decay + MAX_ROWS, s.kq = s.beta + MAX_ROWS, s.p = s.kq + MAX_ROWS;
    return s;
}

// Convolution and SiLU of one channel over rows first .. end-1 of n, eight at a time while the next eight are on their way;
// `right` reaches 3 rows ahead inside the block, or is null.
__device__ __forceinline__ void convolve(float* out, const GdnLayer& layer, int channel, int first, int end, int n, int ld, const float* right) {
    if (first >= end) return;
    float w[4], r[3] = {0, 0, 0}, x[11], next[8];  // x[j]: row t0 - 3 + j; next[j]: row t0 + 8 + j
    const float* y = layer.y + channel;
    auto row = [&](int t) { return t < n ? y[(size_t)t * ld] : 0.0f; };
#pragma unroll
    for (int j = 0; j < 8; j++) x[3 + j] = row(first + j), next[j] = row(first + 8 + j);
#pragma unroll
    for (int j = 0; j < 4; j++) w[j] = layer.taps[channel * 4 + j];
#pragma unroll
    for (int j = 0; j < 3; j++) {
        x[j] = first == 0 ? layer.ring[channel * 3 + j] : row(first - 3 + j);
        if (right) r[j] = right[channel * 3 + j];
    }
    for (int t0 = first; t0 < end; t0 += 8) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (t0 + j >= end) break;
            float ahead[3];
#pragma unroll
            for (int i = 0; i < 3; i++) ahead[i] = j + i + 4 < 11 ? x[j + i + 4 < 11 ? j + i + 4 : 0] : next[j + i + 4 < 11 ? 0 : j + i - 7];
            float v = x[j] * w[0] + x[j + 1] * w[1] + x[j + 2] * w[2] + x[j + 3] * w[3];
            v += ahead[0] * r[0] + ahead[1] * r[1] + ahead[2] * r[2];
            out[(t0 + j) * STRIDE] = silu(v);
        }
        x[0] = x[8], x[1] = x[9], x[2] = x[10];
#pragma unroll
        for (int j = 0; j < 8; j++) x[3 + j] = next[j], next[j] = row(t0 + 16 + j);
    }
}

// Fills q, k (unit length), the block's part of v, the decay, beta and kq of value head h for n rows.
__device__ __forceinline__ void prepare(const Shared& s, const GdnLayer& layer, int h, int part, int n, int key_heads,
                                        int value_heads, int ld, const float* right) {
    int key = h % key_heads, keys = key_heads * HEAD, channels = 2 * keys + value_heads * HEAD, t = (int)threadIdx.x - STRETCHES * CHANNELS;
    int stretch = threadIdx.x / CHANNELS, c = threadIdx.x % CHANNELS, which = c / HEAD;
    int middle = STRETCHES == 1 ? n : min((n + 15) / 16 * 8, n), first = stretch ? middle : 0, end = stretch ? n : middle;
    if (stretch < STRETCHES) {
        if (which < 2) c %= HEAD, convolve((which ? s.k : s.q) + c, layer, which * keys + key * HEAD + c, first, end, n, ld, right);
        else if (c < 2 * HEAD + VALUES) c -= 2 * HEAD, convolve(s.v + c, layer, 2 * keys + h * HEAD + part * VALUES + c, first, end, n, ld, right);
    } else if (t < n) {
        const float* gates = layer.y + (size_t)t * ld + channels + value_heads * HEAD;
        s.decay[t] = expf(layer.decay[h] * softplus(gates[h] + layer.dt_bias[h]));
        s.beta[t] = sigmoid(gates[value_heads + h]);
    }
    __syncthreads();
    for (int r = warp_id(); r < n; r += WARPS) {
        float q[HEAD / 32], k[HEAD / 32], qq = 0, kk = 0, qk = 0;
#pragma unroll
        for (int i = 0; i < HEAD / 32; i++) {
            q[i] = s.q[r * STRIDE + 32 * i + lane_id()], k[i] = s.k[r * STRIDE + 32 * i + lane_id()];
            qq += q[i] * q[i], kk += k[i] * k[i], qk += q[i] * k[i];
        }
        float q_scale = rsqrtf(lanes_sum(qq) + 1e-6f), k_scale = rsqrtf(lanes_sum(kk) + 1e-6f);
        qk = lanes_sum(qk);
        if (lane_id() == 0) s.kq[r] = qk * q_scale * k_scale;
#pragma unroll
        for (int i = 0; i < HEAD / 32; i++)
            s.q[r * STRIDE + 32 * i + lane_id()] = q[i] * q_scale, s.k[r * STRIDE + 32 * i + lane_id()] = k[i] * k_scale;
    }
    __syncthreads();
}

// Thread 8p + i of WORKERS holds columns 4 (8j + i) .. + 3, j = 0, 1, ..., of rows 2p and 2p + 1 of S: what it reads of a vector
// serves both rows.
struct State {
    float4 s[2][SHARE / 4];
};

__device__ __forceinline__ void load_state(State& state, const float* base) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < SHARE / 4; j++) state.s[i][j] = ((const float4*)(base + (threadIdx.x % WORKERS / 8 * 2 + i) * HEAD))[8 * j + threadIdx.x % 8];
}

__device__ __forceinline__ void store_state(float* base, const State& state) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < SHARE / 4; j++) ((float4*)(base + (threadIdx.x / 8 * 2 + i) * HEAD))[8 * j + threadIdx.x % 8] = state.s[i][j];
}

struct Vector {
    float4 v[SHARE / 4];  // the thread's columns
};

__device__ __forceinline__ Vector load_vector(const float* row) {
    Vector r;
#pragma unroll
    for (int j = 0; j < SHARE / 4; j++) r.v[j] = ((const float4*)row)[8 * j + threadIdx.x % 8];
    return r;
}

// The thread's share of the product of row i of its two with a vector.
__device__ __forceinline__ float dot_share(const State& state, int i, const Vector& x) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < SHARE / 4; j++) {
        float4 s = state.s[i][j], v = x.v[j];
        sum.x += s.x * v.x, sum.y += s.y * v.y, sum.z += s.z * v.z, sum.w += s.w * v.w;
    }
    return sum.x + sum.y + (sum.z + sum.w);
}

// Sums of both rows over their 8 lanes: that of row 0 in lanes 0..3, that of row 1 in lanes 4..7.
__device__ __forceinline__ float rows_sum(float row0, float row1) {
    bool upper = threadIdx.x & 4;
    return lanes_sum<4>((upper ? row1 : row0) + __shfl_xor_sync(FULL, upper ? row0 : row1, 4));
}

// S' = e^g S + d k' with d = beta (v - e^g S k); o = S' q / sqrt(HEAD) = (e^g S q + d k q) / sqrt(HEAD), so both products
// meet the old S. Row after row; rows of S need nothing of each other.
template <bool OUTPUT> __device__ __forceinline__ void recurrence(State& state, const Shared& s, int n) {
    int own = threadIdx.x / 8 * 2 + (threadIdx.x & 4) / 4;  // the row whose sums this lane gets
    for (int t = 0; t < n; t++) {
        Vector k = load_vector(s.k + t * STRIDE);
        float want = s.v[t * STRIDE + own], decay = s.decay[t], sq = 0;
        float sk = rows_sum(dot_share(state, 0, k), dot_share(state, 1, k));
        if (OUTPUT) {
            Vector q = load_vector(s.q + t * STRIDE);
            sq = rows_sum(dot_share(state, 0, q), dot_share(state, 1, q));
        }
        float delta = (want - decay * sk) * s.beta[t], other = __shfl_xor_sync(FULL, delta, 4);
        float d[2] = {threadIdx.x & 4 ? other : delta, threadIdx.x & 4 ? delta : other};
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < SHARE / 4; j++) {
                float4 &u = state.s[i][j], v = k.v[j];
                u.x = decay * u.x + d[i] * v.x, u.y = decay * u.y + d[i] * v.y, u.z = decay * u.z + d[i] * v.z, u.w = decay * u.w + d[i] * v.w;
            }
        if (OUTPUT) {
            __syncwarp();  // the lanes of a row have read v[t][own], nobody else does
            if (threadIdx.x % 4 == 0) s.v[t * STRIDE + own] = (decay * sq + delta * s.kq[t]) * rsqrtf((float)HEAD);
        }
    }
}

// RMSNorm(o) * w * silu(z) of a whole head, quantized for the output projection: four values a lane.
__device__ __forceinline__ void gated_norm(const GdnArgs& a, int h, int n) {
    constexpr int LANES = HEAD / 4;
    int values = a.value_heads * HEAD, at = 4 * (lane_id() % LANES), z_at = 2 * a.key_heads * HEAD + values + h * HEAD + at;
    float4 w = *(const float4*)(a.layer.norm + at);
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i++) {
        int r = warp_id() + WARPS * i;
        if (r >= n) break;
        float4 o = __ldcg((const float4*)(a.mixed + (size_t)r * values + h * HEAD + at));
        float4 z = *(const float4*)(a.layer.y + (size_t)r * a.ld + z_at);
        float scale = rsqrtf(lanes_sum<LANES>(o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w) / HEAD + a.eps);
        float v[4] = {o.x * scale * w.x * silu(z.x), o.y * scale * w.y * silu(z.y), o.z * scale * w.z * silu(z.z), o.w * scale * w.w * silu(z.w)};
        store_acts<LANES, 4>(a.out, r, values, h * HEAD + at, v, (int)lane_id() < LANES);
    }
}

// Hands the block's part of the output [n][STRIDE] over; the last block of a head finishes it.
__device__ __forceinline__ void finish(const GdnArgs& a, const float* o, int h, int part, int n) {
    __shared__ int last;
    __syncthreads();
    for (int i = threadIdx.x; i < n * VALUES; i += THREADS)
        a.mixed[(size_t)(i / VALUES) * a.value_heads * HEAD + h * HEAD + part * VALUES + i % VALUES] = o[i / VALUES * STRIDE + i % VALUES];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(a.arrived + h, 1u) == PARTS - 1;
        if (last) a.arrived[h] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    gated_norm(a, h, n);
}

// Grid: value heads x PARTS.
KERNEL(gdn_causal, THREADS, GdnArgs) {
    DYNAMIC_SHARED(float, memory);
    int h = blockIdx.x / PARTS, part = blockIdx.x % PARTS, n = a.pass->n;
    Shared s = carve(memory, n);
    State state;
    float* base = a.layer.state + (size_t)(h * HEAD + part * VALUES) * HEAD;
    if (threadIdx.x < WORKERS) load_state(state, base);  // written by earlier passes only
    wait_for_previous();
    prepare(s, a.layer, h, part, n, a.key_heads, a.value_heads, a.ld, nullptr);
    if (threadIdx.x < WORKERS) {
        recurrence<true>(state, s, n);
        if (a.keep_state) store_state(base, state);
    }
    finish(a, s.v, h, part, n);
}

// Softmax over the block's slots and the history slot for every row, into s.p; the history weight lands in s.beta.
__device__ __forceinline__ void block_weights(const Shared& s, const GdnLayer& layer, int h, int n) {
    float scale = layer.logit_scale[h], history = layer.history_bias[h] + layer.history_c[h] * logf(n / 32.0f);
    int slot = lane_id();
    const float4* k = (const float4*)(s.k + min(slot, n - 1) * STRIDE);
    for (int t0 = warp_id(); t0 < n; t0 += 2 * WARPS) {  // two rows share what is read of the keys
        int rows[2] = {t0, min(t0 + WARPS, n - 1)};
        float sum[2] = {};
#pragma unroll 8
        for (int c = 0; c < HEAD / 4; c++) {
            float4 v = k[c];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float4 q = ((const float4*)(s.q + rows[i] * STRIDE))[c];
                sum[i] += q.x * v.x + q.y * v.y + q.z * v.z + q.w * v.w;
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int t = t0 + WARPS * i;
            if (t >= n) break;
            float logit = slot < n ? scale * sum[i] : -INFINITY;
            float top = fmaxf(lanes_max(logit), history), e = slot < n ? expf(logit - top) : 0.0f, past = expf(history - top);
            float total = lanes_sum(e) + past;
            s.p[t * BLOCK_STRIDE + slot] = e / total;
            if (slot == 0) s.beta[t] = past / total * s.decay[t] * rsqrtf((float)HEAD);
        }
    }
    __syncthreads();
}

// Rows t of the block: past of the state and softmax over the block's values, into s.k, whose keys have done their work.
__device__ __forceinline__ void preview_rows(const State& state, const Shared& s, int n) {
    constexpr int SLOTS = MAX_ROWS / 8;  // of a lane
    int row = threadIdx.x % WORKERS / 8 * 2, lane = threadIdx.x % 8;
    float v[2][SLOTS];
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        int slot = SLOTS * lane + j;
        float2 two = slot < n ? *(const float2*)(s.v + slot * STRIDE + row) : make_float2(0, 0);
        v[0][j] = two.x, v[1][j] = two.y;
    }
#pragma unroll 2
    for (int t = threadIdx.x / WORKERS; t < n; t += TWINS) {
        Vector q = load_vector(s.q + t * STRIDE);
        float4 p = *(const float4*)(s.p + t * BLOCK_STRIDE + SLOTS * lane);
        float past = s.beta[t], sum[2];
#pragma unroll
        for (int i = 0; i < 2; i++) sum[i] = past * dot_share(state, i, q) + p.x * v[i][0] + p.y * v[i][1] + p.z * v[i][2] + p.w * v[i][3];
        float o = rows_sum(sum[0], sum[1]);
        if (lane % 4 == 0) s.k[t * STRIDE + row + lane / 4] = o;
    }
}

KERNEL(gdn_preview, THREADS, GdnArgs) {
    DYNAMIC_SHARED(float, memory);
    int h = blockIdx.x / PARTS, part = blockIdx.x % PARTS, n = a.pass->n;
    Shared s = carve(memory, n);
    State state;
    if (threadIdx.x < TWINS * WORKERS) load_state(state, a.layer.state + (size_t)(h * HEAD + part * VALUES) * HEAD);
    wait_for_previous();
    prepare(s, a.layer, h, part, n, a.key_heads, a.value_heads, a.ld, a.layer.right);
    block_weights(s, a.layer, h, n);
    if (threadIdx.x < TWINS * WORKERS) preview_rows(state, s, n);
    finish(a, s.k, h, part, n);
}

// Commit: replays the first rows of a verify pass into every layer's state. Grid: value heads x PARTS, layers.
KERNEL(gdn_replay, THREADS, ReplayArgs) {
    DYNAMIC_SHARED(float, memory);
    wait_for_previous();
    int h = blockIdx.x / PARTS, part = blockIdx.x % PARTS, n = a.pass->replay;
    if (n == 0) return;
    GdnLayer layer = a.layers[blockIdx.y];
    Shared s = carve(memory, n);
    State state;
    float* base = layer.state + (size_t)(h * HEAD + part * VALUES) * HEAD;
    if (threadIdx.x < WORKERS) load_state(state, base);
    prepare(s, layer, h, part, n, a.key_heads, a.value_heads, a.ld, nullptr);
    if (threadIdx.x >= WORKERS) return;
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
