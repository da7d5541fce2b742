package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/model"
)

// BenchmarkRequests sends requests by TLS on 64 kept connections to a backend of 1 KiB. Clients and
// the backend are in the same process, so the figures are good for a comparison of two versions
// alone, and for profiles.
func BenchmarkRequests(b *testing.B) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		b.Run(protocol, func(b *testing.B) { requests(b, protocol) })
	}
}

func requests(b *testing.B, protocol string) {
	p := newBench(b, Config{})
	p.certs["c"] = certificateFor(b, "a.example.com")
	body := make([]byte, 1024)
	p.serve("web", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	})
	p.route("a", []model.Rule{rule("/", model.Action{Backends: to("web")})},
		model.Place{Port: 443, Serve: model.HTTPS, Hosts: []string{"a.example.com"}})
	p.listen(model.Listener{Port: 443, Serve: model.HTTPS, Hostname: "a.example.com",
		Certificates: []types.NamespacedName{{Namespace: "n", Name: "c"}}})
	config := &tls.Config{ServerName: "a.example.com", InsecureSkipVerify: true, NextProtos: []string{protocol}}
	var left atomic.Int64
	var clients []func() error
	for range 64 {
		ask, leave, err := connected(p.addr(443), protocol, config)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(leave)
		if err := ask(); err != nil { // with it all is made that is made once
			b.Fatal(err)
		}
		clients = append(clients, ask)
	}
	left.Store(int64(b.N))
	used := cpuTime(b)
	b.ReportAllocs()
	b.ResetTimer()
	var running sync.WaitGroup
	for _, ask := range clients {
		running.Go(func() {
			for left.Add(-1) >= 0 {
				if err := ask(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	b.StopTimer()
	b.ReportMetric(float64(cpuTime(b)-used)/float64(b.N), "cpu-ns/op")
}

// cpuTime is that of this process, which a busy machine changes less than the time on the clock.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// connected returns a client with a connection of its own.
func connected(addr, protocol string, config *tls.Config) (ask func() error, leave func(), err error) {
	if protocol == "h2" {
		protocols := new(http.Protocols)
		protocols.SetHTTP2(true)
		transport := &http.Transport{TLSClientConfig: config.Clone(), Protocols: protocols}
		return func() error {
			request, err := http.NewRequest(http.MethodGet, "https://"+addr+"/", nil)
			if err != nil {
				return err
			}
			request.Host = config.ServerName
			response, err := transport.RoundTrip(request)
			if err != nil {
				return err
			}
			_, _ = io.Copy(io.Discard, response.Body)
			return response.Body.Close()
		}, transport.CloseIdleConnections, nil
	}
	conn, err := tls.Dial("tcp", addr, config)
	if err != nil {
		return nil, nil, err
	}
	reader := bufio.NewReader(conn)
	return func() error {
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n"); err != nil {
			return err
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, response.Body)
		return response.Body.Close()
	}, func() { _ = conn.Close() }, nil
}
