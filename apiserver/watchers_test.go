package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	restclient "k8s.io/client-go/rest"
)

// countingListener counts the bytes that its connections write.
type countingListener struct {
	net.Listener
	writes *atomic.Int64
}

// Accept implements net.Listener.
func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &countingConn{c, l.writes}, nil
}

type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

// Write implements net.Conn.
func (c *countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// rawWatch opens a watch, whose body is protobuf.
func (c *cluster) rawWatch(t testing.TB, client *http.Client, path string) io.ReadCloser {
	t.Helper()
	r := must(http.NewRequestWithContext(t.Context(), http.MethodGet, c.host+path, nil))(t)
	r.Header.Set("Accept", runtime.ContentTypeProtobuf+";stream=watch")
	answer := must(client.Do(r))(t)
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", path, answer.Status)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer.Body
}

// skipEvent reads one event of a watch in protobuf.
func skipEvent(in *bufio.Reader) error {
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return err
	}
	_, err := in.Discard(int(binary.BigEndian.Uint32(size[:])))
	return err
}

// putRaw updates a ConfigMap without decoding the answer.
func (c *cluster) putRaw(ctx context.Context, client *http.Client, m *corev1.ConfigMap) error {
	var body bytes.Buffer
	m.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(m, &body); err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, c.host+"/api/v1/namespaces/default/configmaps/"+m.Name,
		&body)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", runtime.ContentTypeProtobuf)
	r.Header.Set("Accept", runtime.ContentTypeProtobuf)
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s, %w", m.Name, answer.Status, err)
	}
	return nil
}

// cpuTime is this process's CPU time so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for unknown arguments only
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// watchersVariable in the environment makes this program a process of watchers.
const watchersVariable = "BARQUE_TEST_WATCHERS"

// watchersOrder is the first message to a process of watchers.
type watchersOrder struct {
	Host, Path       string
	TLS              restclient.TLSClientConfig
	Watchers, Events int // each has its own connection, and reads so many events
}

// runWatchers is the process: it reports when all watches are open, and the CPU time of reading all
// events, in nanoseconds.
func runWatchers(in io.Reader, out io.Writer) error {
	var order watchersOrder
	if err := json.NewDecoder(in).Decode(&order); err != nil {
		return err
	}
	var reading errgroup.Group
	for range order.Watchers {
		credentials, err := restclient.TLSConfigFor(&restclient.Config{TLSClientConfig: order.TLS})
		if err != nil {
			return err
		}
		client := &http.Client{
			Transport: &http.Transport{TLSClientConfig: credentials, ForceAttemptHTTP2: true, DisableCompression: true}}
		r, err := http.NewRequest(http.MethodGet, order.Host+order.Path, nil)
		if err != nil {
			return err
		}
		r.Header.Set("Accept", runtime.ContentTypeProtobuf+";stream=watch")
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		reading.Go(func() error { // ends with its events, or with the process
			defer func() { _ = answer.Body.Close() }()
			in := bufio.NewReaderSize(answer.Body, 16<<10)
			for range order.Events {
				if err := skipEvent(in); err != nil {
					return fmt.Errorf("a watch has ended: %w", err)
				}
			}
			return nil
		})
	}
	cpu := cpuTime()
	if _, err := fmt.Fprintln(out, 0); err != nil {
		return err
	}
	if err := reading.Wait(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out, int64(cpuTime()-cpu))
	return err
}

// watchApart opens watches in a process of their own. The function that it returns waits for their
// events, and returns how much CPU time they took.
func (c *cluster) watchApart(b *testing.B, path string, watchers, events int) (wait func() time.Duration) {
	cmd := exec.Command(must(os.Executable())(b))
	cmd.Env, cmd.Stderr = append(os.Environ(), watchersVariable+"=1"), os.Stderr
	in, out := must(cmd.StdinPipe())(b), must(cmd.StdoutPipe())(b)
	must(0, cmd.Start())(b)
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its error is that it was killed
	})
	order := watchersOrder{c.host, path, c.ca.client(b, c.host, subject("admin", "system:masters")).TLSClientConfig,
		watchers, events}
	must(0, json.NewEncoder(in).Encode(order))(b)
	wait = func() (took time.Duration) {
		must(fmt.Fscan(out, &took))(b)
		return took
	}
	wait() // until they are open
	return wait
}

// BenchmarkWatchers has ConfigMaps of 1 KiB updated by four clients as fast as they can, and each
// update sent to many watchers, each with its own connection. An operation is one update and its
// events. The clients that update are part of the server's CPU time; the watchers are not.
func BenchmarkWatchers(b *testing.B) {
	const writers = 4
	for _, watchers := range []int{1, 200, 2000} {
		b.Run(fmt.Sprint(watchers), func(b *testing.B) {
			var writes atomic.Int64
			c := startCluster(b, func(cfg *Config) { cfg.Listener = &countingListener{cfg.Listener, &writes} })
			must(0, c.ensure(b.Context(), c.client))(b)
			object := func(writer, n int) *corev1.ConfigMap {
				return configMap(fmt.Sprintf("w%d-%d", writer, (n+16)%16),
					map[string]string{"key": fmt.Sprintf("%01024d", n)})
			}
			for w := range writers {
				for i := range 16 {
					must(
						c.admin.CoreV1().ConfigMaps("default").Create(b.Context(), object(w, -16+i),
							metav1.CreateOptions{}))(b) // which no update equals
				}
			}
			from := must(c.admin.CoreV1().ConfigMaps("default").List(b.Context(), metav1.ListOptions{}))(
				b).ResourceVersion
			wait := c.watchApart(b, "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion="+from, watchers,
				b.N)
			var writing sync.WaitGroup
			clients := make([]*http.Client, writers)
			for w := range clients {
				clients[w] = c.plainClient(b)
			}
			var next atomic.Int64
			b.ResetTimer()
			began, cpu, sent := time.Now(), cpuTime(), writes.Load()
			for w := range writers {
				writing.Go(func() {
					for n := int(next.Add(1)); n <= b.N; n = int(next.Add(1)) {
						if err := c.putRaw(b.Context(), clients[w], object(w, n)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			writing.Wait()
			written := time.Now()
			watchersCPU := wait()
			events := float64(b.N * watchers)
			b.ReportMetric(events/time.Since(began).Seconds(), "events/s")
			b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/events, "CPU-µs/event")
			b.ReportMetric(float64(watchersCPU.Microseconds())/events, "watcher-CPU-µs/event")
			b.ReportMetric(float64(time.Since(written).Milliseconds()), "ms-behind")
			b.ReportMetric(float64(writes.Load()-sent)/events, "writes/event")
		})
	}
}

// TestWatchersGetAllEvents: each watcher gets all events in their order, however they are sent
// together, over HTTP/1.1 and HTTP/2, and the last of them without a further one.
func TestWatchersGetAllEvents(t *testing.T) {
	c := startCluster(t)
	must(0, c.ensure(t.Context(), c.client))(t)
	maps := c.admin.CoreV1().ConfigMaps("default")
	m := must(maps.Create(t.Context(), configMap("counter", map[string]string{"n": "0"}), metav1.CreateOptions{}))(t)
	const updates = 200
	decoder := scheme.Codecs.UniversalDeserializer()
	var began, ended atomic.Int32
	for i := range 20 {
		client := c.plainClient(t)
		client.Transport.(*http.Transport).ForceAttemptHTTP2 = i%2 == 0
		body := c.rawWatch(t, client,
			"/api/v1/namespaces/default/configmaps?watch=true&fieldSelector=metadata.name%3Dcounter&resourceVersion="+
				m.ResourceVersion)
		go func() { // ends with its watch, which ends with the test
			defer ended.Add(1)
			in := bufio.NewReader(body)
			for n := 1; n <= updates; n++ {
				kind, obj, err := readEvent(in, decoder)
				if err != nil {
					if t.Context().Err() == nil {
						t.Errorf("watcher %d, event %d: %v", i, n, err)
					}
					return
				}
				if got, ok := obj.(*corev1.ConfigMap); !ok || kind != watch.Modified || got.Data["n"] != fmt.Sprint(n) {
					t.Errorf("watcher %d, event %d: %s %v", i, n, kind, obj)
					return
				}
				if n == 1 {
					began.Add(1)
				}
			}
		}()
	}
	update := func(n int) {
		m.Data["n"], m.Data["more"] = fmt.Sprint(n), strings.Repeat("x", n*100)
		m = must(maps.Update(t.Context(), m, metav1.UpdateOptions{}))(t)
	}
	update(1)
	await(t, "an event that is alone",
		func(context.Context) (error, bool) { return nil, began.Load() == 20 || t.Failed() })
	for n := 2; n <= updates; n++ {
		update(n)
	}
	await(t, "all events at all watchers", func(context.Context) (error, bool) {
		return fmt.Errorf("%d have ended", ended.Load()), ended.Load() == 20
	})
}

// readEvent reads one event of a watch in protobuf.
func readEvent(in *bufio.Reader, decoder runtime.Decoder) (watch.EventType, runtime.Object, error) {
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return "", nil, err
	}
	data := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(in, data); err != nil {
		return "", nil, err
	}
	var event metav1.WatchEvent
	if err := event.Unmarshal(data); err != nil {
		return "", nil, err
	}
	obj, _, err := decoder.Decode(event.Object.Raw, nil, nil)
	return watch.EventType(event.Type), obj, err
}
