package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barque/barque/cluster-test/sides"
)

// testSite is a site without a cluster.
func testSite(t *testing.T) *site {
	t.Helper()
	s := &site{work: t.TempDir(), address: "127.0.0.1", backend: "127.0.0.1:8440"}
	if err := s.certify(); err != nil {
		t.Fatal(err)
	}
	return s
}

// server answers with a status and a body by TLS, and counts the requests.
func server(t *testing.T, s *site, status, length int) (address string, count *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	count = new(atomic.Int64)
	of := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count.Add(1)
		if r.Host != hostOf(0) || r.URL.Path != "/" || r.Method != http.MethodGet {
			status = http.StatusBadRequest
		}
		w.Header().Set("Content-Length", strconv.Itoa(length))
		w.WriteHeader(status)
		_, _ = w.Write(make([]byte, length))
	}), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- of.ServeTLS(listener, s.chain(), s.key()) }() // ends with Close
	t.Cleanup(func() {
		_ = of.Close()
		<-served
	})
	return listener.Addr().String(), count
}

// Both protocols send as many requests as they are allowed to, of which none fails.
func TestLoad(t *testing.T) {
	s := testSite(t)
	for _, speaks := range []protocol{http1, http2} {
		at, count := server(t, s, http.StatusOK, bodyLength)
		l := load{to: at, host: hostOf(0), tls: s.tls(), protocol: speaks, connections: 4, each: time.Minute, most: 40}
		used := 0
		o, err := l.run(t.Context(), func() (sides.Usage, error) {
			used++
			return sides.Usage{CPU: time.Duration(used) * time.Second}, nil
		})
		if err != nil || o.requests != 40 || o.failed != 0 || len(o.waits) != 40 || o.cpu != time.Second {
			t.Errorf("%s: %d requests, %d failed, %d times, %v of CPU (%v, %v)", speaks, o.requests, o.failed,
				len(o.waits), o.cpu, o.first, err)
		}
		if got := count.Load(); got != 44 { // one of each connection is not measured
			t.Errorf("%s: the server has seen %d requests", speaks, got)
		}
		l.rate, l.most = 1000, 8
		if o, err = l.run(t.Context(), nil); err != nil || o.requests != 8 || len(o.waits) != 8 {
			t.Errorf("%s at a rate: %d requests (%v, %v)", speaks, o.requests, o.first, err)
		}
	}
}

// An answer of another status or another length is a failure.
func TestWrongAnswers(t *testing.T) {
	s := testSite(t)
	for _, speaks := range []protocol{http1, http2} {
		for what, c := range map[string]struct{ status, length int }{
			"another status": {http.StatusNotFound, 20},
			"a longer body":  {http.StatusOK, bodyLength + 1},
			"a shorter body": {http.StatusOK, bodyLength - 1},
		} {
			at, _ := server(t, s, c.status, c.length)
			l := load{to: at, host: hostOf(0), tls: s.tls(), protocol: speaks}
			conn, err := l.connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if m, ok := conn.(*messages); ok && what == "a shorter body" {
				// The client of HTTP/1.1 waits for the rest. Another request brings it.
				if _, err := m.conn.Write(append(m.request, m.request...)); err != nil {
					t.Fatal(err)
				}
			}
			if err := conn.exchange(); err == nil {
				t.Errorf("%s, %s: no error", speaks, what)
			}
			conn.close()
		}
	}
}

func TestStatus(t *testing.T) {
	for header, ok := range map[string]bool{
		"\x88": true, "\x20\x88\x00": true, "\x3f\xe1\x1f\x88": true, "\x3f\xe1\x1f": false, "": false, "\x8d": false,
		"\x48\x03302": false,
	} {
		if err := status([]byte(header)); (err == nil) != ok {
			t.Errorf("%x: %v", header, err)
		}
	}
}

func TestNumbersAndPercentile(t *testing.T) {
	if got, err := numbers("1,64,512"); err != nil || len(got) != 3 || got[2] != 512 {
		t.Error(got, err)
	}
	for _, text := range []string{"", "0", "2,1", "1,1", "a"} {
		if _, err := numbers(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	var all []time.Duration
	for i := range 200 {
		all = append(all, time.Duration(i+1))
	}
	if got := percentile(all, 99); got != 198 {
		t.Error(got)
	}
	if got := percentile(nil, 99); got != 0 {
		t.Error(got)
	}
	if _, err := parse([]string{"-routes", "10,5"}); err == nil {
		t.Error("descending numbers of routes are taken")
	}
}

// Each configuration has a route for each host, and the backend.
func TestConfigurations(t *testing.T) {
	s := testSite(t)
	for _, p := range peers {
		if err := p.configure(s, p, hosts(3)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"nginx.conf", "haproxy.map", "caddy.json"} {
		for _, h := range hosts(3) {
			if !bytes.Contains(s.read(s.file(name)), []byte(h)) {
				t.Errorf("%s has no %s", name, h)
			}
		}
	}
	for _, name := range []string{"nginx.conf", "haproxy.cfg", "caddy.json"} {
		if !bytes.Contains(s.read(s.file(name)), []byte(s.backend)) {
			t.Errorf("%s does not have the backend", name)
		}
	}
	var any map[string]any
	if err := json.Unmarshal(s.read(s.file("caddy.json")), &any); err != nil {
		t.Error(err)
	}
}

// The backend answers as clients expect, and ends with its context.
func TestBackend(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveIfAsked(ctx, []string{serveBackend, at}) }()
	l := load{to: at, host: hostOf(0), protocol: http1}
	for {
		c, err := l.connect(t.Context())
		if err != nil {
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := c.exchange(); err != nil {
			t.Error(err)
		}
		c.close()
		break
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := serveIfAsked(t.Context(), nil); !errors.Is(err, errNotAsked) {
		t.Error(err)
	}
}
