package main

import (
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/barque/barque/cluster-test/sides"
)

func TestWanted(t *testing.T) {
	for only, want := range map[string]int{"": 34, "^list": 6, "^watch protobuf": 5, "^list JSON 16$": 1, "definitions": 0} {
		if got := wanted(regexp.MustCompile(only)); len(got) != want {
			t.Errorf("%q: %v", only, got)
		}
	}
}

func TestWantedBulks(t *testing.T) {
	for only, want := range map[string]int{"": len(bulks), "^pages$": 1, "^list": 0} {
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
	for _, e := range encodings {
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
		if err := encodings[i].count(strings.NewReader(body), &events); !errors.Is(err, io.EOF) || events.Load() != 3 {
			t.Errorf("%s: %d events, %v", encodings[i].name, events.Load(), err)
		}
	}
}

func TestRow(t *testing.T) {
	theirs := middle([]sample{{perSecond: 100, median: time.Millisecond, cpu: time.Second}, {perSecond: 300, median: 3 * time.Millisecond, cpu: 3 * time.Second}, {perSecond: 200, median: 2 * time.Millisecond, cpu: 2 * time.Second, clients: time.Minute}})
	got := row("get JSON 1", theirs, sample{perSecond: 400, cpu: time.Second, clients: 12345 * time.Microsecond, writes: 0.5, failed: 2})
	if want := "| get JSON 1 | 200, 2.0 ms, 2 + 0 | 400, 1 + 0.0123, 0.50 writes (2 failed) | 2.0x | 0.50x |"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A process of watchers opens what it is told to, counts, and ends with its input.
func TestServeWatches(t *testing.T) {
	const watches, events = 5, 3
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RequestURI() != "/path?watch=true" || r.ProtoMajor != 2 {
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
		URL: s.URL, TLS: s.TLS, Authority: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	})
	if err != nil {
		t.Fatal(err)
	}
	in, ask := io.Pipe()
	answer, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- serveWatches(in, out) }()
	w := &watchers{ask: ask, answers: json.NewDecoder(answer)}
	if err := json.NewEncoder(ask).Encode(order{Servers: []address{a, a}, Watches: watches, Path: "/path?watch=true", Encoding: "JSON"}); err != nil {
		t.Fatal(err)
	}
	n, err := w.answer()
	for err == nil && n.Events < watches*events {
		n, err = w.count()
	}
	if err != nil || n.Events != watches*events || n.Ended != 0 {
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
