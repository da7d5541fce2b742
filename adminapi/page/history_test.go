package page

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type answered struct {
	Server string                `json:"server"`
	Every  int                   `json:"every"`
	At     []int64               `json:"at"`
	Series map[string][]*float64 `json:"series"`
}

func (h *History) ask(t *testing.T, query string) answered {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/barque/v1/page/history"+query, nil))
	var out answered
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		t.Fatalf("%v in %s", err, w.Body)
	}
	return out
}

// TestHistory: rates, quantiles and gauges are computed of two readings; what has no value is null;
// and an hour is kept, however long it runs.
func TestHistory(t *testing.T) {
	registry, now := prometheus.NewRegistry(), time.Unix(1000, 0)
	revision := prometheus.NewGauge(prometheus.GaugeOpts{Name: "barque_store_revision"})
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_request_total"}, []string{"code", "verb"})
	commit := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "barque_store_commit_seconds",
		Buckets: []float64{0.001, 0.01, 0.1}})
	stored := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "apiserver_resource_objects"}, []string{"group", "resource"})
	registry.MustRegister(revision, requests, commit, stored)
	h := NewHistory("s1", registry, func() time.Time { return now })
	h.sample()
	if got := h.ask(t, ""); len(got.At) != 0 || len(got.Series) != len(series) {
		t.Errorf("after one reading: %+v", got)
	}
	revision.Set(50)
	requests.WithLabelValues("200", "GET").Add(20)
	requests.WithLabelValues("201", "POST").Add(10)
	requests.WithLabelValues("503", "GET").Add(5)
	stored.WithLabelValues("", "pods").Set(10000)
	for range 98 {
		commit.Observe(0.0005)
	}
	commit.Observe(0.05)
	commit.Observe(0.05)
	now = now.Add(10 * time.Second)
	h.sample()
	got := h.ask(t, "")
	value := func(name string) string {
		if v := got.Series[name]; len(v) != 1 || v[0] == nil {
			return "none"
		} else {
			return fmt.Sprint(*v[0])
		}
	}
	for name, want := range map[string]string{"writes": "5", "requests2xx": "3", "requests5xx": "0.5", "commitP99": "0.1",
		"pods": "10000", "diskP99": "none", "memory": "none", "nodes": "none"} {
		if value(name) != want {
			t.Errorf("%s is %s, want %s", name, value(name), want)
		}
	}
	if got.Server != "s1" || got.Every != 10 || !slices.Equal(got.At, []int64{1010}) {
		t.Errorf("%+v", got)
	}
	revision.Set(10) // restored: it began anew
	for range samplesKept + 5 {
		now = now.Add(10 * time.Second)
		h.sample()
	}
	got = h.ask(t, "")
	if len(got.At) != samplesKept || got.At[samplesKept-1] != now.Unix() || !slices.IsSorted(got.At) {
		t.Errorf("%d samples are kept, until %d", len(got.At), got.At[len(got.At)-1])
	}
	if got := h.ask(t, fmt.Sprint("?since=", now.Unix()-20)); len(got.At) != 2 || len(got.Series["writes"]) != 2 {
		t.Errorf("the newest: %+v", got)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/barque/v1/page/history?since=x", nil))
	if w.Code != 400 {
		t.Errorf("a wrong time: %d", w.Code)
	}
}
