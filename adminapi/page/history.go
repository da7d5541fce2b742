package page

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

const (
	// sampleEvery is the time between two samples, and samplesKept those of an hour.
	sampleEvery = 10 * time.Second
	samplesKept = 360
)

// History keeps this server's metrics of the last hour, a bounded number of numbers. Its owner
// calls Run.
type History struct {
	self   string
	source prometheus.Gatherer
	now    func() time.Time

	mu     sync.Mutex
	at     [samplesKept]int64                // Unix seconds; a ring
	values [len(series)][samplesKept]float32 // NaN: unknown
	count  int                               // samples taken
	last   reading
	lastAt time.Time
}

// NewHistory returns an empty history of a registry.
func NewHistory(self string, source prometheus.Gatherer, now func() time.Time) *History {
	return &History{self: self, source: source, now: now}
}

// Run takes a sample every ten seconds, until ctx ends.
func (h *History) Run(ctx context.Context) error {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		h.sample()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// sample takes one. The first one only begins the rates.
func (h *History) sample() {
	families, _ := h.source.Gather() // what could be gathered: a broken collector costs its own series
	r, now := read(families), h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	seconds := now.Sub(h.lastAt).Seconds()
	if !h.lastAt.IsZero() && seconds > 0 {
		i := h.count % samplesKept
		h.at[i] = now.Unix()
		for n := range series {
			h.values[n][i] = float32(series[n].value(&r, &h.last, seconds))
		}
		h.count++
	}
	h.last, h.lastAt = r, now
}

// ServeHTTP answers with the samples that are newer than the parameter since, in Unix seconds.
func (h *History) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		http.Error(w, "only GET is served here", http.StatusMethodNotAllowed)
		return
	}
	since := int64(0)
	if given := r.URL.Query().Get("since"); given != "" {
		var err error
		if since, err = strconv.ParseInt(given, 10, 64); err != nil {
			http.Error(w, "the parameter since is no number of seconds", http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(h.encode(since)) // an error is the client's leaving
}

// encode returns the samples in JSON, with four digits: the page draws them a few hundred dots
// wide.
func (h *History) encode(since int64) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := max(0, h.count-samplesKept)
	for first < h.count && h.at[first%samplesKept] <= since {
		first++
	}
	out := append([]byte(`{"server":`), strconv.Quote(h.self)...)
	out = append(out, `,"every":`...)
	out = strconv.AppendInt(out, int64(sampleEvery/time.Second), 10)
	out = append(out, `,"at":[`...)
	for i := first; i < h.count; i++ {
		if i > first {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, h.at[i%samplesKept], 10)
	}
	out = append(out, `],"series":{`...)
	for n := range series {
		if n > 0 {
			out = append(out, ',')
		}
		out = append(strconv.AppendQuote(out, series[n].name), `:[`...)
		for i := first; i < h.count; i++ {
			if i > first {
				out = append(out, ',')
			}
			if v := float64(h.values[n][i%samplesKept]); math.IsNaN(v) || math.IsInf(v, 0) {
				out = append(out, "null"...)
			} else {
				out = strconv.AppendFloat(out, v, 'g', digits(v), 32)
			}
		}
		out = append(out, ']')
	}
	return append(out, "}}\n"...)
}

// digits are four, or all of a larger whole number.
func digits(v float64) int {
	if v == math.Trunc(v) {
		return -1
	}
	return 4
}

// series are the kept ones. Each is computed of a reading and the one before it.
var series = [...]struct {
	name  string
	value func(now, before *reading, seconds float64) float64
}{
	{"writes", rate(func(r *reading) float64 { return r.gauges["barque_store_revision"] })},
	{"commitP99", quantile("barque_store_commit_seconds", 0.99)},
	{"diskP99", quantile("barque_store_log_store_seconds", 0.99)},
	{"applyLag", func(r, _ *reading, _ float64) float64 {
		return r.gauges["barque_store_commit_index"] - r.gauges["barque_store_applied_index"]
	}},
	{"term", gauge("barque_store_term")},
	{"leads", gauge("barque_store_is_leader")},
	{"keys", gauge("barque_store_keys")},
	{"stateBytes", gauge("barque_store_state_bytes")},
	{"watchers", gauge("barque_store_watchers")},
	{"watchEvents", rate(func(r *reading) float64 { return r.gauges["barque_store_watch_events_total"] })},
	{"requests2xx", rate(func(r *reading) float64 { return r.codes[2] })},
	{"requests4xx", rate(func(r *reading) float64 { return r.codes[4] })},
	{"requests5xx", rate(func(r *reading) float64 { return r.codes[5] })},
	{"requestP99", quantile("apiserver_request_duration_seconds", 0.99)},
	{"inFlight", gauge("apiserver_current_inflight_requests")},
	{"memory", gauge("process_resident_memory_bytes")},
	{"cpu", rate(func(r *reading) float64 { return r.gauges["process_cpu_seconds_total"] })},
	{"goroutines", gauge("go_goroutines")},
	{"openFiles", gauge("process_open_fds")},
	{"pods", func(r, _ *reading, _ float64) float64 { return r.objects("pods") }},
	{"nodes", func(r, _ *reading, _ float64) float64 { return r.objects("nodes") }},
	{"events", func(r, _ *reading, _ float64) float64 { return r.objects("events") }},
}

// reading has the metrics of one moment that series are made of.
type reading struct {
	gauges     map[string]float64            // sums over the labels
	histograms map[string]map[float64]uint64 // cumulative counts by upper bound, sums over the labels
	codes      [6]float64                    // requests by the first digit of their code
	stored     map[string]float64            // objects by resource
}

// read takes out of a registry's families those of the series.
func read(families []*dto.MetricFamily) reading {
	r := reading{gauges: map[string]float64{}, histograms: map[string]map[float64]uint64{},
		stored: map[string]float64{}}
	for _, f := range families {
		name := f.GetName()
		switch {
		case name == "apiserver_request_total":
			for _, m := range f.Metric {
				if code := label(m, "code"); code != "" && code[0] >= '1' && code[0] <= '5' {
					r.codes[code[0]-'0'] += m.GetCounter().GetValue()
				}
			}
		case name == "apiserver_resource_objects" || name == "apiserver_storage_objects":
			for _, m := range f.Metric {
				r.stored[label(m, "resource")] = m.GetGauge().GetValue()
			}
		case wanted[name]:
			for _, m := range f.Metric {
				r.add(name, m)
			}
		}
	}
	return r
}

// wanted are the names in the series, but for those that read handles by name.
var wanted = map[string]bool{
	"barque_store_revision": true, "barque_store_commit_seconds": true, "barque_store_log_store_seconds": true,
	"barque_store_commit_index": true, "barque_store_applied_index": true, "barque_store_term": true,
	"barque_store_is_leader": true, "barque_store_keys": true, "barque_store_state_bytes": true,
	"barque_store_watchers": true, "barque_store_watch_events_total": true,
	"apiserver_request_duration_seconds": true, "apiserver_current_inflight_requests": true,
	"process_resident_memory_bytes": true, "process_cpu_seconds_total": true, "process_open_fds": true,
	"go_goroutines": true,
}

func (r *reading) add(name string, m *dto.Metric) {
	switch {
	case m.Histogram != nil:
		if verb := label(m, "verb"); verb == "WATCH" || verb == "CONNECT" {
			return // as long as their clients want
		}
		if r.histograms[name] == nil {
			r.histograms[name] = map[float64]uint64{}
		}
		for _, b := range m.Histogram.Bucket {
			r.histograms[name][b.GetUpperBound()] += b.GetCumulativeCount()
		}
		r.histograms[name][math.Inf(1)] += m.Histogram.GetSampleCount()
	case m.Counter != nil:
		r.gauges[name] += m.GetCounter().GetValue()
	default:
		r.gauges[name] += m.GetGauge().GetValue()
	}
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func (r *reading) objects(resource string) float64 {
	if n, ok := r.stored[resource]; ok {
		return n
	}
	return math.NaN()
}

func gauge(name string) func(now, before *reading, seconds float64) float64 {
	return func(r, _ *reading, _ float64) float64 {
		if v, ok := r.gauges[name]; ok {
			return v
		}
		return math.NaN()
	}
}

// rate is the growth in a second. A counter that was reset has none.
func rate(of func(*reading) float64) func(now, before *reading, seconds float64) float64 {
	return func(now, before *reading, seconds float64) float64 {
		return max(0, of(now)-of(before)) / seconds
	}
}

// quantile is the quantile of the observations between two readings: the upper bound of its bucket.
// It is unknown without observations.
func quantile(name string, q float64) func(now, before *reading, seconds float64) float64 {
	return func(now, before *reading, _ float64) float64 {
		counts, earlier := now.histograms[name], before.histograms[name]
		total := counts[math.Inf(1)] - earlier[math.Inf(1)]
		if total == 0 || counts[math.Inf(1)] < earlier[math.Inf(1)] {
			return math.NaN()
		}
		least, largest := math.Inf(1), 0.0
		for bound, n := range counts {
			if float64(n-earlier[bound]) >= q*float64(total) {
				least = min(least, bound)
			}
			if !math.IsInf(bound, 1) {
				largest = max(largest, bound)
			}
		}
		if math.IsInf(least, 1) {
			return largest
		}
		return least
	}
}
