package resourcemetrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var now = time.UnixMilli(1_700_000_000_000)

func TestParse(t *testing.T) {
	s, err := parse([]byte(`# HELP node_cpu_usage_seconds_total CPU
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 100.5 1699999999000
node_memory_working_set_bytes 1.073741824e+09 1699999998000
node_swap_usage_bytes 0
some_histogram_bucket{le="+Inf"} 7

container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"} 2.5 1699999999500
container_memory_working_set_bytes{ pod = "p" , namespace="ns", extra="a \"}\\", container="c",} 4096 1699999999700
container_start_time_seconds{container="c",namespace="ns",pod="p"} 1.6999999e+09
container_cpu_usage_seconds_total{container="d",namespace="ns",pod="p"} 1
container_memory_working_set_bytes{container="d",namespace="ns",pod="p"} 1
container_cpu_usage_seconds_total{container="half",namespace="ns",pod="q"} NaN`), now)
	if err != nil {
		t.Fatal(err)
	}
	if want := (point{cpu: 100_500_000_000, memory: 1 << 30, at: time.UnixMilli(1699999999000),
		has: complete}); s.node != want {
		t.Errorf("the node: %+v, want %+v", s.node, want)
	}
	p := s.pods[types.NamespacedName{Namespace: "ns", Name: "p"}]
	want := point{cpu: 2_500_000_000, memory: 4096, at: time.UnixMilli(1699999999500), start: time.Unix(1699999900, 0),
		has: complete}
	if p["c"] != want {
		t.Errorf("the container: %+v, want %+v", p["c"], want)
	}
	if want := (point{cpu: 1_000_000_000, memory: 1, at: now, has: complete}); p["d"] != want {
		t.Errorf("a container without times: %+v, want %+v", p["d"], want)
	}
	if half := s.pods[types.NamespacedName{Namespace: "ns", Name: "q"}]["half"]; half.has != seenCPU || half.cpu != 0 {
		t.Errorf("a container without memory, whose use is no number: %+v", half)
	}
}

func TestParseMalformed(t *testing.T) {
	for _, line := range []string{
		"node_cpu_usage_seconds_total",
		"node_cpu_usage_seconds_total x",
		"node_cpu_usage_seconds_total 1 x",
		"node_cpu_usage_seconds_total 1 2 3",
		"node_cpu_usage_seconds_total{",
		`container_cpu_usage_seconds_total{container="c} 1`,
		`container_cpu_usage_seconds_total{container="c\`,
		`container_cpu_usage_seconds_total{container=c} 1`,
		`container_cpu_usage_seconds_total{container="c",pod="p"} 1`,
	} {
		if _, err := parse([]byte("up 1\n"+line+"\n"), now); !errors.Is(err, errMalformed) ||
			!strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// With any answer of a kubelet, the server goes on.
func FuzzParse(f *testing.F) {
	f.Add(
		[]byte(
			"node_cpu_usage_seconds_total 1 2\ncontainer_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 1e300"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parse(text, now)
		if err != nil {
			return
		}
		(state{}).advance(s, now).advance(s, now)
	})
}
