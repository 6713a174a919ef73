// Mixture of experts: routing (with the block coreset of a preview), gate and up with SwiGLU, down with the weighted sum.
// Work is grouped by expert, so that an expert's weights are read once for all rows that use it; the next norm adds up what
// the experts of a row have to say. Experts are reached
// through tables of pointers, so each may lie anywhere the card can read. The shared expert, which every row uses, is one
// more entry; its gate and up are computed with the router, before anybody knows the others.
#include "tile.cuh"

#ifndef EXPERTS
#define EXPERTS 256
#endif
#ifndef HIDDEN
#define HIDDEN 2048
#define WIDTH 512  // channels of an expert
#endif
constexpr int MAX_EXPERTS = 512;
constexpr int MAX_PICKS = 16;  // experts of one row
constexpr int MAX_SLOTS = 8 * MAX_EXPERTS + MAX_ROWS;
constexpr int GROUPS = (EXPERTS + 31) / 32;

// The outcome of routing. A slot is one pair (expert, row); the slots of an expert lie together and begin at a multiple of 8.
struct Route {
    int count;                        // distinct experts, the shared one last
    int picks;                        // routed experts of a row
    int expert[MAX_EXPERTS + 1];
    int first[MAX_EXPERTS + 1];       // first slot of an entry
    int users[MAX_EXPERTS + 1];       // rows that use it
    int row[MAX_SLOTS];
    float weight[MAX_SLOTS];
    int slot[MAX_ROWS][MAX_PICKS + 1];  // of a row: the shared expert's, then those of its picks; -1: none
    const u8* gate[MAX_EXPERTS + 1];  // the entries' matrices
    const u8* up[MAX_EXPERTS + 1];
    const u8* down[MAX_EXPERTS + 1];
};

struct RouteArgs {
    const float* logits;  // [rows, ld]: experts, then the shared expert's gate
    Route* route;
    const Pass* pass;
    const u8* const* gate;  // [experts + 1], the shared expert last
    const u8* const* up;
    const u8* const* down;
    const u32* resident;  // bits of the experts that drafts may use
    u32* usage;           // [experts]: rows that picked each; counted by causal passes
    int picks, ld;
    int preview;
    float top_p;          // mass of experts a preview keeps (coreset); not below 2: all
};

struct Pick {
    int expert;
    float chance;  // 0: none
};

// The top picks of one row by one warp among all experts, or (LISTED) `count` of them in ascending order: softmax over them,
// best first, ties to the lower one. Lane k gets the k-th.
template <bool LISTED> __device__ __forceinline__ Pick pick(const float* logits, const u16* experts, int count, int picks) {
    float mine[GROUPS], top = -INFINITY, sum = 0, p = 0;
    int lane = lane_id(), id = 0;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        mine[i] = -INFINITY;
        if (LISTED && 32 * i >= count) break;
        if (32 * i + lane < (LISTED ? count : EXPERTS)) mine[i] = logits[LISTED ? experts[32 * i + lane] : 32 * i + lane];
        top = fmaxf(top, mine[i]);
    }
    top = lanes_max(top);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        if (LISTED && 32 * i >= count) break;
        mine[i] = mine[i] == -INFINITY ? -1.0f : expf(mine[i] - top);
        sum += fmaxf(mine[i], 0.0f);
    }
    sum = lanes_sum(sum);
    for (int k = 0; k < picks; k++) {
        float best = -1.0f;
        int at = 0;
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            if (LISTED && 32 * i >= count) break;
            if (mine[i] > best) best = mine[i], at = i;
        }
        u32 bits = best < 0 ? 0 : __float_as_uint(best) + 1, high = __reduce_max_sync(FULL, bits);
        if (high == 0) break;  // fewer candidates than picks
        u32 winner = __reduce_min_sync(FULL, bits == high ? (u32)(32 * at + lane) : 0xffffffffu);
        if (lane == k) id = winner, p = __uint_as_float(high - 1) / sum;
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            if (LISTED && 32 * i >= count) break;
            if ((int)winner == 32 * i + lane) mine[i] = -1.0f;
        }
    }
    return {LISTED && p > 0 ? experts[id] : id, p};
}

// Exclusive prefix sums of two small counts over the experts' threads; `sums` has 2 x GROUPS entries. All threads call it.
__device__ __forceinline__ int2 scan(int a, int b, int (*sums)[GROUPS]) {
    int x = a, y = b, warp = warp_id();
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        int u = __shfl_up_sync(FULL, x, o), v = __shfl_up_sync(FULL, y, o);
        if (lane_id() >= o) x += u, y += v;
    }
    if (warp < GROUPS && lane_id() == 31) sums[0][warp] = x, sums[1][warp] = y;
    __syncthreads();
    int2 r = {x - a, y - b};
#pragma unroll
    for (int w = 0; w < GROUPS; w++)
        if (w < warp) r.x += sums[0][w], r.y += sums[1][w];
    __syncthreads();
    return r;
}

constexpr float CHANCE = 1 << 26;  // chances are added up as whole numbers, in any order

struct Mass {
    u32 mass;
    int expert;
};

// The experts whose bits are set, in ascending order; returns how many there are. All threads call it.
__device__ __forceinline__ int list_kept(u16* experts, const u32* kept, int (*sums)[GROUPS]) {
    int e = threadIdx.x;
    bool set = e < EXPERTS && (kept[e / 32] >> e % 32 & 1);
    int at = scan(0, set, sums).y;
    if (set) experts[at] = e;
    if (e == EXPERTS - 1) sums[0][0] = at + set;
    __syncthreads();
    int count = sums[0][0];
    __syncthreads();
    return count;
}

// Keeps the experts of most mass over the rows while the mass before them is below top_p (the first always; 2: all), at
// most `budget` of them (0: any number).
__device__ __forceinline__ void choose_coreset(u32* kept, Mass* used, int (*sums)[GROUPS], const u32* mass, float top_p, int budget) {
    int e = threadIdx.x;
    u32 own = e < EXPERTS ? mass[e] : 0;
    int at = scan(0, own > 0, sums).y;
    if (own > 0) used[at] = {own, e};
    if (e < GROUPS) kept[e] = 0;
    if (e == EXPERTS - 1) sums[0][0] = at + (own > 0);
    __syncthreads();
    int count = sums[0][0];
    for (int i = threadIdx.x / 4; i < (count + 7) / 8 * 8; i += blockDim.x / 4) {  // whole warps, four lanes an expert
        Mass one = i < count ? used[i] : Mass{0, 0};
        u32 total = 0, before = 0;
        int rank = 0;
        for (int j = threadIdx.x % 4; j < count; j += 4) {
            Mass other = used[j];
            total += other.mass;
            if (other.mass > one.mass || (other.mass == one.mass && other.expert < one.expert)) before += other.mass, rank++;
        }
#pragma unroll
        for (int o = 1; o < 4; o *= 2) {
            total += __shfl_xor_sync(FULL, total, o), before += __shfl_xor_sync(FULL, before, o);
            rank += __shfl_xor_sync(FULL, rank, o);
        }
        bool keep = i < count && (rank == 0 || (float)before < top_p * (float)total) && (budget == 0 || rank < budget);
        if (keep && threadIdx.x % 4 == 0) atomicOr(kept + one.expert / 32, 1u << one.expert % 32);
    }
    __syncthreads();
}

// One block: a warp a row to pick, a thread an expert to group, a thread a pick to find its slot.
KERNEL(moe_route, 1024, RouteArgs) {
    __shared__ u32 users[EXPERTS], mass[EXPERTS];  // rows that picked an expert, as bits; its chances over the rows
    __shared__ Pick chosen[MAX_ROWS][MAX_PICKS];
    __shared__ Mass used[EXPERTS];
    __shared__ u32 kept[GROUPS];
    __shared__ u16 experts[EXPERTS];
    __shared__ int sums[2][GROUPS], starts[EXPERTS];
    int e = threadIdx.x, n = a.pass->n, budget = a.preview ? a.pass->budget : 0;
    int picks = a.preview && a.pass->picks ? a.pass->picks : a.picks;
    float top_p = budget ? 2.0f : a.top_p;
    bool coreset = a.preview && (top_p < 2.0f || budget), limited = a.preview && a.pass->resident;
    const u8 *gate = nullptr, *up = nullptr, *down = nullptr;
    if (e <= EXPERTS) gate = a.gate[e], up = a.up[e], down = a.down[e];
    if (e < EXPERTS) users[e] = mass[e] = 0;
    if (e < GROUPS && limited) kept[e] = a.resident[e];
    __syncthreads();
    int count = limited ? list_kept(experts, kept, sums) : EXPERTS;
    auto pick_row = [&](int r, bool listed) {
        const float* logits = a.logits + (size_t)r * a.ld;
        return listed ? pick<true>(logits, experts, count, picks) : pick<false>(logits, experts, count, picks);
    };
    wait_for_previous();
    float shared_gate = e < n ? a.logits[(size_t)e * a.ld + EXPERTS] : 0.0f;
    int r = warp_id();  // there is a warp for every row
    Pick one = {0, 0};
    if (r < n) one = pick_row(r, limited);
    if (coreset) {
        if (one.chance > 0) atomicAdd(mass + one.expert, (u32)(one.chance * CHANCE + 0.5f));
        __syncthreads();
        choose_coreset(kept, used, sums, mass, top_p, budget);
        count = list_kept(experts, kept, sums);
        bool lost = one.chance > 0 && !(kept[one.expert / 32] >> one.expert % 32 & 1);
        if (__ballot_sync(FULL, lost)) one = pick_row(r, true);  // what is left of the others stays as it is
    }
    if (r < n) {
        float all = lanes_sum(one.chance);
        if (one.chance > 0) atomicOr(users + one.expert, 1u << r);
        if (lane_id() < picks) chosen[r][lane_id()] = {one.expert, one.chance / all};
    }
    __syncthreads();
    u32 rows = e < EXPERTS ? users[e] : 0;
    int room = (__popc(rows) + 7) & ~7;
    int2 at = scan(room, rows != 0, sums);
    Route* out = a.route;
    if (rows) {
        out->expert[at.y] = e, out->first[at.y] = starts[e] = at.x, out->users[at.y] = __popc(rows);
        out->gate[at.y] = gate, out->up[at.y] = up, out->down[at.y] = down;
        if (a.usage && !a.preview) a.usage[e] += __popc(rows);
    }
    if (e == EXPERTS - 1) sums[0][0] = at.x + room, sums[1][0] = at.y + (rows != 0);
    __syncthreads();
    int slots = sums[0][0], distinct = sums[1][0];
    if (e == EXPERTS) {
        out->count = distinct + 1, out->picks = picks, out->expert[distinct] = EXPERTS;
        out->gate[distinct] = gate, out->up[distinct] = up, out->down[distinct] = down;
        out->first[distinct] = slots, out->users[distinct] = n;
    }
    if (e < n) out->row[slots + e] = e, out->weight[slots + e] = sigmoid(shared_gate), out->slot[e][0] = slots + e;
    for (int i = e; i < n * picks; i += blockDim.x) {
        int r = i / picks, k = i % picks, slot = -1;
        Pick one = chosen[r][k];
        if (one.chance > 0) {
            slot = starts[one.expert] + __popc(users[one.expert] & ((1u << r) - 1));
            out->row[slot] = r, out->weight[slot] = one.chance;
        }
        out->slot[r][k + 1] = slot;
    }
}

struct ExpertArgs {
    Acts x;               // [rows, hidden], 8 blocks to a scale
    Acts act;             // [slots, width], each block with its own
    const float* shared;  // [rows, ld]: gate and up of the shared expert, side by side
    float* out;           // [slots, hidden]: what each adds to its row
    const Route* route;
    const Pass* pass;
    int gate_type, up_type;
    int down_type[2];     // of the routed and of the shared experts
    int ld;
};

// 32 channels of the shared expert, whose matrices have been multiplied already.
__device__ __forceinline__ void finish_shared(const ExpertArgs& a, int tile, int first) {
    int n = a.pass->n, at = 32 * tile + lane_id();
    for (int c = warp_id(); c < n; c += blockDim.x / 32) {
        const float* row = a.shared + (size_t)c * a.ld;
        store_acts<32, 1>(a.act, first + c, WIDTH, at, {silu(row[at]) * row[WIDTH + at]});
    }
}

#ifndef STAGED_X
#define STAGED_X 0  // 1: activations pass through shared memory too, all of them and once
#endif

// One item of moe_gate_up or moe_down: a tile of one entry's outputs.
struct Item {
    int entry, tile, first, count;
};

__device__ __forceinline__ Item item_of(const Route& route, int item, int tiles) {
    int entry = item / tiles;
    return {entry, item % tiles, route.first[entry], route.users[entry]};
}

// Starts the copies of an item's rows of the gate and of the up matrix.
__device__ __forceinline__ void fetch_item(const ExpertArgs& a, const Route& route, u8* gate_rows, u8* up_rows, int item, int items, int tiles) {
    int entry = min(item / tiles, EXPERTS), row0 = 32 * (item % tiles);
    const u8 *gate = load_pointer(route.gate + entry), *up = load_pointer(route.up + entry);  // beside the count
    if (item < items) {
        stage<32, 256, HIDDEN>(gate_rows, gate, a.gate_type, row0, WIDTH, threadIdx.x);
        stage<32, 256, HIDDEN>(up_rows, up, a.up_type, row0, WIDTH, threadIdx.x);
    }
    commit_copies();
}

// Starts the copy of all activations into shared memory; `x` finds them there afterwards.
__device__ __forceinline__ void fetch_inputs(Acts& x, u8* to, int n) {
    constexpr int GROUPS_OF_ROW = groups_of(HIDDEN, 8);
    const Acts from = x;
    int tiles = (n + 7) / 8, values = tiles * 8 * HIDDEN, scales = tiles * 8 * GROUPS_OF_ROW;
    x.q = (i8*)to, x.scale = (float*)(to + COLUMNS * HIDDEN), x.sum = (i16*)(x.scale + COLUMNS * GROUPS_OF_ROW);
    auto copy = [](void* to, const void* from, int bytes) {
        for (int i = 16 * threadIdx.x; i < bytes; i += 16 * 256) copy_async((u8*)to + i, (const u8*)from + i);
    };
    copy(x.q, from.q, values);
    copy(x.scale, from.scale, scales * 4);
    copy(x.sum, from.sum, scales * 16);
    commit_copies();
}

// act of 32 channels from the sums of four warps: two tiles of gate, two of up.
__device__ __forceinline__ void finish_routed(const ExpertArgs& a, const Item& item, const float* partial) {
    constexpr int TILE = 16 * COLUMNS;
    int lane = lane_id();
    for (int c = warp_id(); c < item.count; c += 8) {
        const float* p = partial + lane / 16 * TILE + lane % 16 * COLUMNS + c;
        store_acts<32, 1>(a.act, item.first + c, WIDTH, 32 * item.tile + lane, {silu(p[0]) * p[2 * TILE]});
    }
}

// act = silu(gate x) * (up x) for 32 channels of one expert at a time, quantized. A persistent grid.
RESIDENT_KERNEL(moe_gate_up, 256, 2, ExpertArgs) {
    DYNAMIC_SHARED(u8, memory);  // 32 rows of the gate and of the up matrix; the sums of four warps; activations
    wait_for_previous();
    const Route& route = *a.route;
    int tiles = WIDTH / 32, items = (route.count - 1) * tiles, warp = warp_id(), up = warp >> 1 & 1, half = warp & 1, part = warp / 4;
    u8* up_rows = memory + 32 * staged_stride(row_size(a.gate_type, HIDDEN));
    float *partial = (float*)(STAGED ? up_rows + 32 * staged_stride(row_size(a.up_type, HIDDEN)) : memory), acc[NT][4];
    float* own = partial + warp % 4 * 16 * COLUMNS;
    if (STAGED) fetch_item(a, route, memory, up_rows, blockIdx.x, items, tiles);
    Acts x = a.x;
    if (STAGED_X) fetch_inputs(x, (u8*)(partial + 4 * 16 * COLUMNS), a.pass->n);
    else if (blockIdx.x < items) warm_blocks(x, (a.pass->n + 7) / 8, HIDDEN, 0, HIDDEN / 32, threadIdx.x, 256);
    for (int tile = gridDim.x - 1 - blockIdx.x; tile < tiles; tile += gridDim.x) finish_shared(a, tile, route.first[route.count - 1]);
    for (int at = blockIdx.x; at < items; at += gridDim.x) {
        constexpr int STEPS = (HIDDEN + 255) / 256;
        Item item = item_of(route, at, tiles);
        Columns columns = columns_of(item.count, route.row + item.first);
        int type = up ? a.up_type : a.gate_type, bytes = row_size(type, HIDDEN);
        clear(acc);
        await_copies<0>();
        __syncthreads();  // also: the sums of the item before have been read
        Rows rows = STAGED ? rows_of_tile((up ? up_rows : memory) + 16 * half * staged_stride(bytes), bytes)
                           : rows_of_matrix(up ? route.up[item.entry] : route.gate[item.entry], bytes, 32 * item.tile + 16 * half, WIDTH);
        multiply_rows<8>(acc, type, rows, HIDDEN, part * STEPS / 2, (part + 1) * STEPS / 2, x, columns);
        if (part == 1) store_tile(own, acc);
        __syncthreads();
        if (STAGED) fetch_item(a, route, memory, up_rows, at + gridDim.x, items, tiles);
        if (part == 0) add_tile(own, acc);
        __syncthreads();
        finish_routed(a, item, partial);
    }
    await_copies<0>();
}

#ifndef DOWN_STAGED
#define DOWN_STAGED 1  // 0: the down matrices are too wide for the shared memory and read where they lie
#endif
constexpr int DOWN_ROWS = 64;                     // of an item: 16 a warp
constexpr int DOWN_THREADS = 32 * DOWN_ROWS / 16;

// Starts the copy of the activations of an item's slots; the outcome finds them there afterwards, from row 0 on.
__device__ __forceinline__ Acts fetch_slots(const Acts& act, u8* to, const Item& item) {
    int tiles = (item.count + 7) / 8, values = tiles * 8 * WIDTH, scales = tiles * WIDTH / 32 * 8 * 8;
    const u8 *q = (const u8*)(act.q + (size_t)item.first * WIDTH), *s = (const u8*)(act.s + (size_t)item.first * (WIDTH / 32));
    for (int i = 16 * threadIdx.x; i < values; i += 16 * DOWN_THREADS) copy_async(to + i, q + i);
    for (int i = 16 * threadIdx.x; i < scales; i += 16 * DOWN_THREADS) copy_async(to + values + i, s + i);
    commit_copies();
    Acts x = act;
    x.q = (i8*)to, x.s = (float2*)(to + values), x.f = act.f + (size_t)item.first * WIDTH;
    return x;
}

// out = weight * (down act) for 64 channels of one entry at a time, the shared expert's among them. A persistent grid.
RESIDENT_KERNEL(moe_down, DOWN_THREADS, 4, ExpertArgs) {
    DYNAMIC_SHARED(u8, memory);  // 64 rows of a down matrix, activations
    const Route& route = *a.route;  // complete: every block of the kernel ahead has waited for it
    constexpr int TILES = (HIDDEN + DOWN_ROWS - 1) / DOWN_ROWS;
    int items = route.count * TILES, size = 0;
    if (DOWN_STAGED) size = DOWN_ROWS * max(staged_stride(row_size(a.down_type[0], WIDTH)), staged_stride(row_size(a.down_type[1], WIDTH)));
    for (int at = blockIdx.x; at < items; at += gridDim.x) {
        Item item = item_of(route, at, TILES);
        int type = a.down_type[item.entry + 1 == route.count], bytes = row_size(type, WIDTH), row0 = DOWN_ROWS * item.tile;
        const u8* matrix = route.down[item.entry];
        if (DOWN_STAGED) stage<DOWN_ROWS, DOWN_THREADS, WIDTH>(memory, matrix, type, row0, HIDDEN, threadIdx.x);
        int own = row0 + 16 * warp_id(), g = lane_id() >> 2, t = lane_id() & 3;
        float weight[NT][2], acc[NT][4];
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) weight[i][c] = 8 * i + 2 * t + c < item.count ? route.weight[item.first + 8 * i + 2 * t + c] : 0.0f;
        if (at == (int)blockIdx.x) wait_for_previous();
        Acts x = fetch_slots(a.act, memory + size, item);
        Rows rows = DOWN_STAGED ? rows_of_tile(memory + 16 * warp_id() * staged_stride(bytes), bytes) : rows_of_matrix(matrix, bytes, min(own, HIDDEN - 1), HIDDEN);
        clear(acc);
        await_copies<0>();
        __syncthreads();
        multiply_rows<1>(acc, type, rows, WIDTH, 0, (WIDTH + 255) / 256, x, columns_in_order((item.count + 7) / 8));
        float* out = a.out + (size_t)item.first * HIDDEN;
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int column = 8 * i + 2 * t + c % 2, row = own + g + 8 * (c / 2);
                if (column < item.count && row < HIDDEN) out[(size_t)column * HIDDEN + row] = weight[i][c % 2] * acc[i][c];
            }
        __syncthreads();  // all have read what the next item's copies overwrite
    }
    if (blockIdx.x >= items) wait_for_previous();
}
