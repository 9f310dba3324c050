/* SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1 */
/*
 * 64-byte lines in and out of mapped memory, for cxl_kv/native (optional: everything works without it).
 *
 * A store is one aligned 64-byte write where the CPU has one (MOVDIR64B, else a non-temporal AVX-512 store, else non-temporal SSE2 stores of the same line
 * back to back, else plain ones), and a fence follows the last. A line whose memory is gone or bad (SIGBUS) is counted instead of ending the process: the
 * handler is this library's for the thread that moves, and the former one's for everybody else.
 *
 * kelp_drop and kelp_store_parts are for memory that answers: a device that must see each access, behind caches that it does not know of.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { PLAIN = 0, SSE2 = 1, AVX512 = 2, MOVDIR64B = 3 };

static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t armed;
static struct sigaction former;

static void on_bus(int number, siginfo_t *info, void *context) {
    if (armed)
        siglongjmp(back, 1);
    if (former.sa_flags & SA_SIGINFO)
        former.sa_sigaction(number, info, context);
    else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN)
        former.sa_handler(number);
    else
        sigaction(SIGBUS, &former, NULL);   /* the access is made again, and ends the process as it would have */
}

/* Whoever has set a handler since the last call is the former one now. */
static int guard(void) {
    struct sigaction now, ours;
    if (sigaction(SIGBUS, NULL, &now))
        return -1;
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus)
        return 0;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_bus;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    former = now;
    return sigaction(SIGBUS, &ours, NULL);
}

#if defined(__x86_64__)
__attribute__((target("movdir64b"))) static void line_movdir64b(void *to, const void *from) { _movdir64b(to, from); }
__attribute__((target("avx512f"))) static void line_avx512(void *to, const void *from) { _mm512_stream_si512((void *)to, _mm512_loadu_si512(from)); }
static void line_sse2(void *to, const void *from) {
    for (int i = 0; i < 4; i++)
        _mm_stream_si128((__m128i *)to + i, _mm_loadu_si128((const __m128i *)from + i));
}
#endif
static void line_plain(void *to, const void *from) {
    for (int i = 0; i < 8; i++)
        ((volatile uint64_t *)to)[i] = ((const uint64_t *)from)[i];
}

/* The best way of this CPU to write a line. */
int kelp_best(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 28 & 1))
        return MOVDIR64B;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") ? AVX512 : SSE2;
#else
    return PLAIN;
#endif
}

static void (*way(int how))(void *, const void *) {
#if defined(__x86_64__)
    if (how == MOVDIR64B)
        return line_movdir64b;
    if (how == AVX512)
        return line_avx512;
    if (how == SSE2)
        return line_sse2;
#endif
    return line_plain;
}

/*
 * Write lines from[0 ... n) to base + offsets[i], multiples of 64, in order, by way `how`; then fence. Lines that cannot be reached are marked in bad.
 * The number of those, or -1 when no guard could be set.
 */
long kelp_store(uint8_t *base, const uint64_t *offsets, const uint8_t *from, uint8_t *bad, long n, int how) {
    void (*volatile line)(void *, const void *) = way(how);
    volatile long i = 0, lost = 0;
    if (guard())
        return -1;
    if (sigsetjmp(back, 1)) {
        bad[i++] = 1;
        lost++;
    }
    armed = 1;
    for (; i < n; i++)
        line(base + offsets[i], from + 64 * i);
    armed = 0;
#if defined(__x86_64__)
    _mm_sfence();
#else
    __sync_synchronize();
#endif
    return lost;
}

/* Read spans one after another into to: counts[i] lines from base + offsets[i] on. 1, or 0 where a line cannot be reached: then nothing is known about to. */
long kelp_load_spans(const uint8_t *base, const uint64_t *offsets, const int64_t *counts, uint8_t *to, long n) {
    if (guard())
        return -1;
    if (sigsetjmp(back, 1)) {
        armed = 0;
        return 0;
    }
    armed = 1;
    for (long i = 0; i < n; i++) {
        memcpy(to, base + offsets[i], 64 * counts[i]);
        to += 64 * counts[i];
    }
    armed = 0;
    return 1;
}

/* Read lines the same way round: to[0 ... n) from base + offsets[i]. */
long kelp_load(const uint8_t *base, const uint64_t *offsets, uint8_t *to, uint8_t *bad, long n) {
    volatile long i = 0, lost = 0;
    if (guard())
        return -1;
    if (sigsetjmp(back, 1)) {
        bad[i++] = 1;
        lost++;
    }
    armed = 1;
    for (; i < n; i++)
        memcpy(to + 64 * i, base + offsets[i], 64);
    armed = 0;
    return lost;
}

/* Write a line back and let every cache of this machine forget it. */
static void drop(const uint8_t *line) {
#if defined(__x86_64__)
    _mm_clflush(line);
#elif defined(__aarch64__)
    __asm__ volatile("dc civac, %0" : : "r"(line) : "memory");
#else
    (void)line;
#endif
}

static void fence(void) {
#if defined(__x86_64__)
    _mm_mfence();
#else
    __sync_synchronize();
#endif
}

/* Whether this CPU has a `drop` that programs may use. */
int kelp_can_drop(void) {
#if defined(__x86_64__) || defined(__aarch64__)
    return 1;
#else
    return 0;
#endif
}

/* Let the caches forget lines base + offsets[0 ... n), so that the next loads of them are the memory's own answers. Lines that cannot be reached are marked. */
long kelp_drop(const uint8_t *base, const uint64_t *offsets, uint8_t *bad, long n) {
    volatile long i = 0, lost = 0;
    if (guard())
        return -1;
    if (sigsetjmp(back, 1)) {
        bad[i++] = 1;
        lost++;
    }
    armed = 1;
    for (; i < n; i++)
        drop(base + offsets[i]);
    armed = 0;
    fence();
    return lost;
}

static void word(uint8_t *to, uint64_t value) {
#if defined(__x86_64__)
    _mm_stream_si64((long long *)to, (long long)value);
#else
    *(volatile uint64_t *)to = value;
#endif
}

/*
 * Write those bytes of lines from[0 ... n) to base + offsets[i] whose bit is set in enables[i], the lines in order, each fenced from the next. Eight bytes at
 * a place of eight are one write past the caches; any other byte is stored through them, so that the line's others are read and written back with it.
 */
long kelp_store_parts(uint8_t *base, const uint64_t *offsets, const uint8_t *from, const uint64_t *enables, uint8_t *bad, long n) {
    volatile long i = 0, lost = 0;
    if (guard())
        return -1;
    if (sigsetjmp(back, 1)) {
        bad[i++] = 1;
        lost++;
    }
    armed = 1;
    for (; i < n; i++) {
        uint8_t *const to = base + offsets[i];
        int cached = 0;
        drop(to);
        fence();
        for (int w = 0; w < 8; w++) {
            const unsigned bytes = enables[i] >> 8 * w & 0xff;
            if (bytes == 0xff) {
                uint64_t value;
                memcpy(&value, from + 64 * i + 8 * w, 8);
                word(to + 8 * w, value);
                continue;
            }
            for (int b = 0; b < 8; b++)
                if (bytes >> b & 1) {
                    ((volatile uint8_t *)to)[8 * w + b] = from[64 * i + 8 * w + b];
                    cached = 1;
                }
        }
        if (cached)
            drop(to);
        fence();
    }
    armed = 0;
    return lost;
}
