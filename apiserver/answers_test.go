package apiserver

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
)

// readerVariable in the environment makes the test binary a client that reads answers, so that
// the CPU time of the test's own process is that of the server.
const readerVariable = "BARQUE_TEST_READER"

// reading is a client's measurement of one answer.
type reading struct {
	URL           string
	CA, Cert, Key []byte
	Clients       int // each has its own connection
}

// readAnswers answers each line with a number of requests by one with two numbers: the bytes of all
// answers, and the nanoseconds that all first bytes took.
func readAnswers(description string) error {
	var r reading
	if err := json.Unmarshal([]byte(description), &r); err != nil {
		return err
	}
	cert, err := tls.X509KeyPair(r.Cert, r.Key)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA)
	clients := make([]*http.Client, r.Clients)
	for i := range clients {
		clients[i] = &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}},
			ForceAttemptHTTP2: true, DisableCompression: true,
		}}
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		n, err := strconv.Atoi(in.Text())
		if err != nil {
			return err
		}
		var mu sync.Mutex
		var bytes int64
		var first time.Duration
		var failed error
		var group sync.WaitGroup
		for i, client := range clients {
			group.Go(func() {
				for range n/len(clients) + max(0, min(1, n%len(clients)-i)) {
					size, begun, err := readAnswer(client, r.URL)
					mu.Lock()
					bytes, first = bytes+size, first+begun.wait
					if err != nil {
						failed = err
					}
					mu.Unlock()
				}
			})
		}
		group.Wait()
		if failed != nil {
			return failed
		}
		fmt.Println(bytes, first.Nanoseconds())
	}
	return in.Err()
}

// beginning is how long the first byte of an answer has taken.
type beginning struct{ wait time.Duration }

// readAnswer reads one answer, and returns when its first byte was there.
func readAnswer(client *http.Client, url string) (size int64, first beginning, err error) {
	began := time.Now()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, first, err
	}
	request.Header.Set("Accept", apiruntime.ContentTypeProtobuf)
	answer, err := client.Do(request)
	if err != nil {
		return 0, first, err
	}
	defer func() { _ = answer.Body.Close() }()
	if _, err := io.ReadFull(answer.Body, make([]byte, 1)); err != nil {
		return 0, first, err
	}
	first.wait = time.Since(began)
	size, err = io.Copy(io.Discard, answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, answer.Status)
	}
	return size, first, err
}

// startReader starts such a client. The function that it returns has it read so many answers.
func (c *cluster) startReader(b *testing.B, path string, clients int) func(n int) (bytes int64, first time.Duration) {
	b.Helper()
	config := c.ca.client(b, c.host, admin())
	description := must(json.Marshal(reading{
		URL: c.host + path, CA: config.CAData, Cert: config.CertData, Key: config.KeyData, Clients: clients,
	}))(b)
	cmd := exec.CommandContext(b.Context(), must(os.Executable())(b))
	cmd.Env = append(os.Environ(), readerVariable+"="+string(description))
	cmd.Stderr = os.Stderr
	in, out := must(cmd.StdinPipe())(b), must(cmd.StdoutPipe())(b)
	must(0, cmd.Start())(b)
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // killed with the context, if it does not end
	})
	lines := bufio.NewReader(out)
	return func(n int) (bytes int64, first time.Duration) {
		must(fmt.Fprintln(in, n))(b)
		must(fmt.Fscanln(lines, &bytes, (*int64)(&first)))(b)
		return bytes, first
	}
}

// writeCalls is how many system calls of this process have written.
func writeCalls(b *testing.B) (n int) {
	b.Helper()
	for line := range strings.Lines(string(must(os.ReadFile("/proc/self/io"))(b))) {
		if count, ok := strings.CutPrefix(line, "syscw: "); ok {
			n = must(strconv.Atoi(strings.TrimSpace(count)))(b)
		}
	}
	return n
}

// BenchmarkAnswers lists ConfigMaps of 1 KiB in protobuf, and reads one of them. The clients are a
// process of their own: CPU time, system calls and allocations are the server's.
func BenchmarkAnswers(b *testing.B) {
	c := startCluster(b)
	must(0, c.ensure(b.Context(), c.client))(b)
	for _, objects := range []int{1000, 5000} {
		namespace := fmt.Sprintf("with-%d", objects)
		must(
			c.admin.CoreV1().Namespaces().Create(b.Context(),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))(b)
		var writers sync.WaitGroup
		for w := range 16 {
			writers.Go(func() {
				for i := w; i < objects; i += 16 {
					m := configMap(fmt.Sprintf("object-%d", i), map[string]string{"key": strings.Repeat("x", 1024)})
					m.Namespace = namespace
					if _, err := c.admin.CoreV1().ConfigMaps(namespace).Create(b.Context(), m,
						metav1.CreateOptions{}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		writers.Wait()
	}
	for _, which := range []struct {
		name, path string
		clients    int
	}{
		{"get/1", "/api/v1/namespaces/with-1000/configmaps/object-1", 1},
		{"get/16", "/api/v1/namespaces/with-1000/configmaps/object-1", 16},
		{"list-1000/1", "/api/v1/namespaces/with-1000/configmaps", 1},
		{"list-1000/16", "/api/v1/namespaces/with-1000/configmaps", 16},
		{"list-5000/1", "/api/v1/namespaces/with-5000/configmaps", 1},
	} {
		b.Run(which.name, func(b *testing.B) {
			read := c.startReader(b, which.path, which.clients)
			read(2 * which.clients)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			cpu, calls := cpuTime(), writeCalls(b)
			b.ResetTimer()
			_, first := read(b.N)
			b.StopTimer()
			used, wrote := cpuTime()-cpu, writeCalls(b)-calls
			runtime.ReadMemStats(&after)
			n := float64(b.N)
			b.ReportMetric(float64(used.Microseconds())/n, "CPU-µs/op")
			b.ReportMetric(float64(wrote)/n, "writes/op")
			b.ReportMetric(float64(first.Microseconds())/n, "first-µs")
			b.ReportMetric(float64(after.Mallocs-before.Mallocs)/n, "mallocs/op")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/n, "heap-B/op")
		})
	}
}
