package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/barque/barque/cluster-test/sides"
)

func TestWanted(t *testing.T) {
	for only, want := range map[string]int{
		"": 57, "protobuf|JSON": 38, " custom ": 19, "^list": 9, "^first": 6, "^watch protobuf": 5,
		"^list JSON 16$": 1, "^update custom 64$": 1, "definitions": 0,
	} {
		if got := wanted(regexp.MustCompile(only)); len(got) != want {
			t.Errorf("%q: %v", only, got)
		}
	}
}

func TestWantedBulks(t *testing.T) {
	for only, want := range map[string]int{"": len(bulks), "^pages$": 1, "^node$": 1, "^(memory|collection)$": 2,
		"^list": 0} {
		if got := wantedBulks(regexp.MustCompile(only)); len(got) != want {
			t.Errorf("%q: %v", only, got)
		}
	}
}

func TestContinueOf(t *testing.T) {
	for list, want := range map[string]string{
		`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"next"},"items":[{"metadata":{"continue":"not me"}}]}`: "next",
		`{"kind":"PodList","metadata":{"resourceVersion":"7","remainingItemCount":3},"items":[]}`:                                                "",
	} {
		if got, err := continueOf(strings.NewReader(list)); err != nil || got != want {
			t.Errorf("%s: %q, %v", list, got, err)
		}
	}
	if got, err := continueOf(strings.NewReader(`{"kind":"Status"}`)); err == nil {
		t.Errorf("an answer without metadata: %q", got)
	}
}

func TestEncodings(t *testing.T) {
	want := configMap("n", "c", 7)
	for _, e := range []encoding{inProtobuf, inJSON} {
		data, err := e.encode(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), data)
		if err != nil {
			t.Fatalf("%s: %v", e.name, err)
		}
		if cm := got.(*corev1.ConfigMap); cm.Name != "c" || cm.Namespace != "n" || len(cm.Data["data"]) != size {
			t.Errorf("%s: %v", e.name, cm)
		}
	}
}

func TestCount(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	framed := ""
	for _, text := range []string{"a", long, ""} {
		framed += string(binary.BigEndian.AppendUint32(nil, uint32(len(text)))) + text
	}
	for i, body := range []string{framed, "a\n" + long + "\n\n"} {
		var events atomic.Int64
		e := []encoding{inProtobuf, inJSON}[i]
		if err := e.count(strings.NewReader(body), &events); !errors.Is(err, io.EOF) || events.Load() != 3 {
			t.Errorf("%s: %d events, %v", e.name, events.Load(), err)
		}
	}
}

func TestRow(t *testing.T) {
	theirs := []sample{
		{perSecond: 100, median: time.Millisecond, cpu: time.Second},
		{perSecond: 300, median: 3 * time.Millisecond, cpu: 3 * time.Second},
		{perSecond: 200, median: 2 * time.Millisecond, cpu: 2 * time.Second, clients: time.Minute},
	}
	ours := []sample{{perSecond: 40, cpu: time.Second, clients: 12345 * time.Microsecond, writes: 0.5, failed: 2}}
	want := "| get JSON 1 | 200 (100 to 300), 2.0 (1.0 to 3.0) ms | 2 (1 to 3) + 0 | 40.0 (2 failed) | 1 + 0.0123, 0.50 writes | 0.2x | 0.50x |"
	got := row("get JSON 1", theirs, ours)
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
	head, dashes, _ := strings.Cut(header, "\n")
	if n := strings.Count(got, "|"); strings.Count(head, "|") != n || strings.Count(dashes, "|") != n {
		t.Errorf("the header has other columns than %s", got)
	}
	first := []sample{{perSecond: 20, median: time.Millisecond, most: 9 * time.Millisecond, megabytes: 120},
		{perSecond: 30, median: 2 * time.Millisecond, most: 8 * time.Millisecond, megabytes: 130}}
	if got, want := rates(first), "20.0 (20.0 to 30.0), 1.0 (1.0 to 2.0) ms, at most 9.0 ms, 120 MB/s"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// slowly answers over time: after a second, with the first byte two seconds later, and the next one
// after five more.
type slowly struct{ code int }

func (s slowly) RoundTrip(*http.Request) (*http.Response, error) {
	time.Sleep(time.Second)
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: s.code, Header: header,
		Body: io.NopCloser(&slowBody{[]time.Duration{2 * time.Second, 5 * time.Second}})}, nil
}

type slowBody struct{ waits []time.Duration }

func (b *slowBody) Read(p []byte) (int, error) {
	if len(b.waits) == 0 {
		return 0, io.EOF
	}
	time.Sleep(b.waits[0])
	b.waits = b.waits[1:]
	return copy(p, "x"), nil
}

func TestRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connection{&http.Client{Transport: slowly{http.StatusOK}}, "http://server"}
		if a, err := c.read(t.Context(), http.MethodGet, "/", inJSON, nil); err != nil ||
			a != (answer{3 * time.Second, 2}) {
			t.Errorf("%+v, %v", a, err)
		}
		var f failures
		for _, code := range []int{http.StatusServiceUnavailable, http.StatusTooManyRequests} {
			c.Transport = slowly{code}
			_, err := c.read(t.Context(), http.MethodGet, "/", inJSON, nil)
			f.note(err)
		}
		if f != (failures{server: 1, others: 1}) {
			t.Errorf("%+v", f)
		}
	})
}

// An answer without a body is one.
func TestReadNothing(t *testing.T) {
	s := httptest.NewServer(
		http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "application/json") }))
	defer s.Close()
	a, err := connection{s.Client(), s.URL}.read(t.Context(), http.MethodGet, "/", inJSON, nil)
	if err != nil || a.bytes != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestParseSizes(t *testing.T) {
	if got, err := parseSizes("0, 10,200"); err != nil || !slices.Equal(got, []int{0, 10, 200}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "a", "-1", "10,10", "10,0"} {
		if got, err := parseSizes(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestPerObject(t *testing.T) {
	if got := perObject([]float64{1, 2}, []float64{3, 2}, 1024); !slices.Equal(got, []float64{2048, 0}) {
		t.Error(got)
	}
}

func TestParseHeap(t *testing.T) {
	const metrics = "# HELP go_memstats_heap_inuse_bytes of the heap\n# TYPE go_memstats_heap_inuse_bytes gauge\ngo_memstats_heap_inuse_bytes 1.5e+06\ngo_other 7"
	if got, err := parseHeap(strings.NewReader(metrics)); err != nil || got != 1.5e6 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseHeap(strings.NewReader("go_other 7\n")); !errors.Is(err, errNotTold) {
		t.Error(err)
	}
}

// Writes that no client could begin in time are not done, and not forgotten. How long one took
// counts from when it was due.
func TestPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l load
		w, err := l.paced(t.Context(), 500, 2*time.Second, func(context.Context, int) error {
			time.Sleep(time.Millisecond)
			return nil
		})
		if err != nil || w.offered != 1000 || w.done() != 1000 || slices.Max(w.took) != time.Millisecond {
			t.Errorf("%d of %d, %v", w.done(), w.offered, err)
		}
		// 64 clients that take a second for each are 64 writes a second.
		w, err = l.paced(t.Context(), 500, 2*time.Second, func(context.Context, int) error {
			time.Sleep(time.Second)
			return nil
		})
		if got := w.done(); err != nil || got < 2*mostClient || got > 3*mostClient ||
			slices.Max(w.took) <= 2*time.Second || w.lasted <= 2*time.Second {
			t.Errorf("%d of %d in %v, the longest in %v, %v", got, w.offered, w.lasted, slices.Max(w.took), err)
		}
		var begun atomic.Int64
		w, err = l.paced(t.Context(), 10, time.Second, func(context.Context, int) error {
			if begun.Add(1) == 1 {
				return nil
			}
			return refusal{http.StatusInternalServerError, "no"}
		})
		if err != nil || w.done() != 1 || w.server != 9 || w.others != 0 {
			t.Errorf("%+v, %v", w, err)
		}
		if _, err := l.paced(t.Context(), 10, time.Second,
			func(context.Context, int) error { return io.EOF }); !errors.Is(err, io.EOF) {
			t.Errorf("none succeeds: %v", err)
		}
	})
}

// Each is done once, by all clients.
func TestEach(t *testing.T) {
	var l load
	var mu sync.Mutex
	done := map[int]int{}
	err := l.each(t.Context(), 1000, "things", func(_ context.Context, client, i int) error {
		mu.Lock()
		defer mu.Unlock()
		done[i]++
		return nil
	})
	if err != nil || len(done) != 1000 {
		t.Errorf("%d, %v", len(done), err)
	}
	if err := l.each(t.Context(), 10, "things",
		func(context.Context, int, int) error { return io.EOF }); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// pager answers with lists of two pages, and the nth request otherwise.
type pager struct {
	t    *testing.T
	asks int
	code map[int]int
}

func (p *pager) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(time.Second)
	p.asks++
	code, body := http.StatusOK, `{"kind":"PodList","metadata":{"continue":"next"},"items":[]}`
	if c := p.code[p.asks]; c != 0 {
		code, body = c, "no"
	} else if r.FormValue("continue") == "next" {
		body = `{"kind":"PodList","metadata":{},"items":[]}`
	}
	if r.FormValue("limit") != "500" {
		p.t.Errorf("%s", r.URL)
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body))}, nil
}

// A list whose token has expired, or whose page failed, begins anew. It is given up when nothing
// succeeds any more.
func TestListAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l load
		l.clients[0] = connection{
			&http.Client{
				Transport: &pager{t: t, code: map[int]int{2: http.StatusGone, 4: http.StatusServiceUnavailable}}},
			"http://server"}
		ctx, cancel := context.WithTimeout(t.Context(), 8500*time.Millisecond)
		defer cancel()
		// The pages: 1, expired, 1, failed, 1, 2, 1, 2; the last one is not there yet.
		p, err := l.listAll(ctx)
		if err != nil || len(p.took) != 6 || p.took[0] != time.Second || p.whole != 2 || p.expired != 1 ||
			p.failures != (failures{server: 1}) {
			t.Errorf("%+v, %v", p, err)
		}
		broken := map[int]int{}
		for n := range lostPages {
			broken[n+1] = http.StatusInternalServerError
		}
		l.clients[0].Transport = &pager{t: t, code: broken}
		if p, err := l.listAll(t.Context()); err == nil || p.server != lostPages {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

// Pods are as large as those of users.
func TestPod(t *testing.T) {
	data, err := json.Marshal(pod("web-1", "node-1"))
	if err != nil || len(data) < 2<<10 || len(data) > 6<<10 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// A process of watchers opens the ordered watches, counts, and ends with its input.
func TestServeWatches(t *testing.T) {
	const watches, events = 5, 3
	var second atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RequestURI() {
		case "/path0?watch=true":
		case "/path1?watch=true":
			second.Add(1)
		default:
			t.Errorf("%s over %s", r.URL, r.Proto)
		}
		if r.ProtoMajor != 2 {
			t.Errorf("%s over %s", r.URL, r.Proto)
		}
		w.Header().Set("Content-Type", "application/json;stream=watch")
		_, _ = io.WriteString(w, strings.Repeat("{}\n", events))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	a, err := addressOf(sides.Endpoint{
		URL: s.URL, TLS: s.TLS,
		Authority: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	})
	if err != nil {
		t.Fatal(err)
	}
	in, ask := io.Pipe()
	answer, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- serveWatches(in, out) }()
	w := &watchers{ask: ask, answers: json.NewDecoder(answer)}
	paths := []string{"/path0?watch=true", "/path1?watch=true"}
	if err := json.NewEncoder(ask).Encode(
		order{Servers: []address{a, a}, Watches: watches, Paths: paths, Encoding: "JSON"}); err != nil {
		t.Fatal(err)
	}
	n, err := w.answer()
	for err == nil && n.Events < watches*events {
		n, err = w.count()
	}
	if err != nil || n.Events != watches*events || n.Ended != 0 || second.Load() != watches/2 {
		t.Errorf("%+v, %v", n, err)
	}
	if err := ask.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The definitions are as large as those of operators, and distinct.
func TestDefinition(t *testing.T) {
	data, err := json.Marshal(definition(123))
	if err != nil || len(data) < 6<<10 || len(data) > 12<<10 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if d := definition(123); d.Name != "thing123s.g12.apibench.example.com" {
		t.Error(d.Name)
	}
}
