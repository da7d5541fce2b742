package member

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestBuckets(t *testing.T) {
	for b := range 1500 {
		end := bucketEnd(b)
		if bucketOf(end) != b || bucketOf(end+1) != b+1 {
			t.Fatalf("bucket %d ends at %d, which is in %d; the next is in %d", b, end, bucketOf(end), bucketOf(end+1))
		}
	}
}

// TestQuantiles compares with the sorted durations: a quantile is not below, and at most 1/32
// above.
func TestQuantiles(t *testing.T) {
	var h, one, two Histogram
	if h.Quantile(0.5) != 0 {
		t.Error("an empty histogram has a median")
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	for i := range 10_000 {
		d := time.Duration(rnd.ExpFloat64() * float64(time.Millisecond))
		all = append(all, d)
		if i%3 == 0 {
			one.Add(d)
		} else {
			two.Add(d)
		}
	}
	h.Merge(&one)
	h.Merge(&two)
	slices.Sort(all)
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(q*float64(len(all)))-1, 0)]
		if got := h.Quantile(q); got < want || got > want+want/32+1 {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
	if h.Total != 10_000 || h.Max != all[len(all)-1] {
		t.Errorf("%d durations, longest %v", h.Total, h.Max)
	}
}
