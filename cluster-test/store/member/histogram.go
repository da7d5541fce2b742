package member

import (
	"math/bits"
	"time"
)

// Histogram counts durations in buckets that are at most 1/32 of their value wide.
type Histogram struct {
	Counts []uint64 // by bucket; grows as needed
	Total  uint64
	Max    time.Duration
}

const subBits = 5 // 32 buckets to each doubling

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)<<subBits + int(v>>shift) - 1<<subBits
}

// bucketEnd is the largest duration in the bucket.
func bucketEnd(b int) time.Duration {
	if b < 1<<subBits {
		return time.Duration(b)
	}
	shift := b>>subBits - 1
	return time.Duration((uint64(b&(1<<subBits-1)+1<<subBits)+1)<<shift - 1)
}

// Add counts a duration.
func (h *Histogram) Add(d time.Duration) {
	b := bucketOf(d)
	for len(h.Counts) <= b {
		h.Counts = append(h.Counts, 0)
	}
	h.Counts[b]++
	h.Total++
	h.Max = max(h.Max, d)
}

// Merge adds the counts of the other one.
func (h *Histogram) Merge(other *Histogram) {
	for len(h.Counts) < len(other.Counts) {
		h.Counts = append(h.Counts, 0)
	}
	for b, n := range other.Counts {
		h.Counts[b] += n
	}
	h.Total += other.Total
	h.Max = max(h.Max, other.Max)
}

// Quantile returns a duration that the share q, from 0 to 1, does not exceed; 0 of an empty
// histogram.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank, seen := uint64(q*float64(h.Total)), uint64(0)
	for b, n := range h.Counts {
		if seen += n; n > 0 && seen >= max(rank, 1) {
			return min(bucketEnd(b), h.Max)
		}
	}
	return h.Max
}
