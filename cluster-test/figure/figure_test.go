package figure

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestPercentiles(t *testing.T) {
	var all []time.Duration
	for i := range 200 {
		all = append(all, time.Duration(200-i)*time.Second)
	}
	got := Percentiles("wait", "s", all)
	if len(got) != 2 || got[0].What != "wait, p50" || got[0].Values[0] != 100 || got[1].What != "wait, p99" ||
		got[1].Values[0] != 198 {
		t.Error(got)
	}
	got = Percentiles("wait", "ms", []time.Duration{1500 * time.Microsecond})
	if len(got) != 2 || got[0].Values[0] != 1.5 || got[1].Values[0] != 1.5 {
		t.Error(got)
	}
	if got := Percentiles("wait", "s", nil); got != nil {
		t.Error(got)
	}
}

func TestMergeAndMedian(t *testing.T) {
	fs := Merge(nil, []Figure{One("a", "s", 3)})
	fs = Merge(fs, []Figure{One("a", "s", 1), One("b", "", 250)})
	fs = Merge(fs, []Figure{One("a", "s", 2)})
	if len(fs) != 2 || fs[0].String() != "3.00 / 1.00 / 2.00" || Median(fs[0].Values) != 2 || fs[1].String() != "250" {
		t.Error(fs)
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("nothing has a median")
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 0.0123: "0.012", 0.99999: "1.00", 9.996: "10.0", 45.678: "45.7",
		99.96: "100", 12345.6: "12346"} {
		if got := short(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

// TestTable: the ratio is that of the last side to the first, where both have the
func TestTable(t *testing.T) {
	const upstream, mixed, barque = "upstream", "mixed", "Barque"
	whose := []string{upstream, mixed, barque}
	of := map[string][]Figure{
		upstream: {One("rate", "", 200), One("CPU of etcd", "s", 5), One("repeated", "", 0)},
		mixed:    {One("rate", "", 300)},
		barque:   {One("rate", "", 600), One("failed", "", 0), One("repeated", "", 1)},
	}
	want := "| pods | rate, a second | 200 | 300 | 600 | 3.00x |\n"
	of[upstream][0].Unit = "a second"
	got := Table("pods", whose, of)
	if !strings.HasPrefix(got, want) || !strings.Contains(got, "| pods | CPU of etcd, s | 5.00 |  |  |  |\n") ||
		!strings.Contains(got, "| pods | failed |  |  | 0.00 |  |\n") {
		t.Error(got)
	}
	if !strings.Contains(got, "| pods | repeated | 0.00 |  | 1.00 |  |\n") {
		t.Error("a ratio to nothing:", got)
	}
	if cells, columns := strings.Count(strings.Split(got, "\n")[0], "|"),
		strings.Count(Header(whose), "\n"); cells != 7 || columns != 1 {
		t.Error(Header(whose))
	}
	if got := Table("pods", whose[2:], of); !strings.Contains(got, "| pods | rate | 600 |  |\n") {
		t.Error(got)
	}
}

func TestRange(t *testing.T) {
	for want, values := range map[string][]float64{"": nil, "3.00": {3}, "2.00 (1.00 to 30.0)": {30, 1, 2},
		"1.00 (1.00 to 2.00)": {2, 1}} {
		if got := (Figure{Values: values, Spread: true}).String(); got != want {
			t.Errorf("%v: %s, want %s", values, got, want)
		}
	}
	fs := Merge([]Figure{Spread("a", "s", 3)}, []Figure{Spread("a", "s", 5)})
	if len(fs) != 1 || fs[0].String() != "3.00 (3.00 to 5.00)" {
		t.Error(fs)
	}
}
