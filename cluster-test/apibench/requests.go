package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/barque/barque/cluster-test/sides"
)

const (
	// laid is the namespace of the objects that are read and updated, made that of new ones.
	laid, made = "apibench", "apibench-made"
	objects    = 1000 // in laid, and so in a list
	size       = 1024 // of an object's data, in bytes
	mostClient = 64
)

// A testCase is one line of the table.
type testCase struct {
	operation string
	encoding  encoding
	clients   int
}

func (c testCase) String() string {
	return fmt.Sprintf("%s %s %d", c.operation, c.encoding.name, c.clients)
}

// encoding is how objects are written on the wire.
type encoding struct {
	name, media string
	encode      func(runtime.Object) ([]byte, error)
}

var encodings = []encoding{
	{"protobuf", "application/vnd.kubernetes.protobuf", func(obj runtime.Object) ([]byte, error) {
		var b bytes.Buffer
		err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(obj, &b)
		return b.Bytes(), err
	}},
	{"JSON", "application/json", func(obj runtime.Object) ([]byte, error) { return json.Marshal(obj) }},
}

// wanted returns the cases whose names match.
func wanted(only *regexp.Regexp) []testCase {
	var out []testCase
	for _, operation := range []string{"create", "get", "update", "list", "watch"} {
		numbers := []int{1, 16, mostClient}
		if operation == "watch" {
			numbers = append(numbers, 200, 2000)
		}
		for _, e := range encodings {
			for _, clients := range numbers {
				if c := (testCase{operation, e, clients}); only.MatchString(c.String()) {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// sample is what was measured once. For a watch, an event is counted each time that a watcher gets
// it.
type sample struct {
	perSecond float64
	median    time.Duration // of the answers; 0 for a watch
	cpu       time.Duration // of the servers, for 1,000 requests or events
	clients   time.Duration // CPU time of the clients, for as many
	writes    float64       // of the servers for one event of a watch: system calls
	failed    int
}

// load is the clients of a side.
type load struct {
	*sides.Side
	clients [mostClient]connection
	names   atomic.Int64 // of new objects
}

// connection leads to one of the servers. The clients are spread over all of them.
type connection struct {
	*http.Client
	url string
}

func configMap(namespace, name string, n uint64) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string]string{"data": fmt.Sprintf("%0*d", size, n)},
	}
}

func pathTo(namespace, name string) string {
	return strings.TrimSuffix("/api/v1/namespaces/"+namespace+"/configmaps/"+name, "/")
}

// do sends a request and reads the answer without looking at it.
func (c connection) do(ctx context.Context, method, path string, e encoding, body []byte) error {
	res, err := c.send(ctx, method, path, e.media, body)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return errors.Join(err, res.Body.Close())
}

// send returns an answer that is not a refusal.
func (c connection) send(ctx context.Context, method, path, media string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", media)
	if body != nil {
		req.Header.Set("Content-Type", media)
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		said, _ := io.ReadAll(io.LimitReader(res.Body, 300))
		return nil, errors.Join(fmt.Errorf("%s %s: %s: %s", method, path, res.Status, said), res.Body.Close())
	}
	if got := res.Header.Get("Content-Type"); !strings.HasPrefix(got, strings.Split(media, ";")[0]) {
		return nil, errors.Join(fmt.Errorf("%s %s: %s instead of %s", method, path, got, media), res.Body.Close())
	}
	return res, nil
}

// connect returns a connection of client i. It is made by the first request.
func (l *load) connect(i int) connection {
	e := l.Servers[i%len(l.Servers)]
	return connection{e.Client(), e.URL}
}

// newLoad makes the clients of a side, and the objects.
func newLoad(ctx context.Context, s *sides.Side) (*load, error) {
	l := &load{Side: s}
	for i := range l.clients {
		l.clients[i] = l.connect(i)
	}
	for _, name := range []string{laid, made} {
		body, err := encodings[1].encode(&corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name}})
		if err == nil {
			err = l.clients[0].do(ctx, http.MethodPost, "/api/v1/namespaces", encodings[1], body)
		}
		if err != nil {
			return nil, err
		}
	}
	for i := range objects {
		body, err := encodings[0].encode(configMap(laid, fmt.Sprintf("c%d", i), 0))
		if err == nil {
			err = l.clients[i%mostClient].do(ctx, http.MethodPost, pathTo(laid, ""), encodings[0], body)
		}
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// request sends the request of a case by client i.
func (l *load) request(ctx context.Context, c testCase, i int) error {
	client := l.clients[i]
	switch c.operation {
	case "create":
		name := fmt.Sprintf("n%d", l.names.Add(1))
		body, err := c.encoding.encode(configMap(made, name, 0))
		if err != nil {
			return err
		}
		return client.do(ctx, http.MethodPost, pathTo(made, ""), c.encoding, body)
	case "update":
		// Each client has objects of its own: nobody waits for another, and nothing conflicts.
		name := fmt.Sprintf("c%d", rand.IntN(objects/mostClient)*mostClient+i)
		body, err := c.encoding.encode(configMap(laid, name, rand.Uint64()))
		if err != nil {
			return err
		}
		return client.do(ctx, http.MethodPut, pathTo(laid, name), c.encoding, body)
	case "list":
		return client.do(ctx, http.MethodGet, pathTo(laid, ""), c.encoding, nil)
	default:
		return client.do(ctx, http.MethodGet, pathTo(laid, fmt.Sprintf("c%d", rand.IntN(objects))), c.encoding, nil)
	}
}

// measure measures a case once.
func (l *load) measure(ctx context.Context, c testCase, each time.Duration) (sample, error) {
	if c.operation == "watch" {
		return l.measureWatch(ctx, c, each)
	}
	took := make([][]time.Duration, c.clients)
	failures := make([]error, c.clients)
	failed := make([]int, c.clients)
	before, err := l.use()
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	var all sync.WaitGroup
	for i := range c.clients {
		all.Go(func() {
			for time.Since(began) < each && ctx.Err() == nil {
				at := time.Now()
				if err := l.request(ctx, c, i); err != nil {
					failures[i] = err
					failed[i]++
					continue
				}
				took[i] = append(took[i], time.Since(at))
			}
		})
	}
	all.Wait()
	lasted := time.Since(began)
	used, err := l.since(before)
	if err != nil {
		return sample{}, err
	}
	times := slices.Concat(took...)
	if len(times) == 0 {
		return sample{}, fmt.Errorf("%s on %s: no request succeeded: %w", c, l.Name, errors.Join(failures...))
	}
	slices.Sort(times)
	s := sample{perSecond: float64(len(times)) / lasted.Seconds(), median: times[len(times)/2]}
	s.cpu, s.clients = used.perThousand(len(times))
	for _, n := range failed {
		s.failed += n
	}
	return s, ctx.Err()
}

// use is CPU time: that of a side's processes, and that of the clients.
type use struct {
	servers, clients time.Duration
	writes           int64 // system calls of the servers
}

// use returns what was used so far. Watchers are a process of their own.
func (l *load) use(watchers ...*watchers) (use, error) {
	total, err := l.Use()
	if err != nil {
		return use{}, err
	}
	u := use{servers: total.CPU, writes: total.Writes}
	own := []int{os.Getpid()}
	for _, w := range watchers {
		own = append(own, w.cmd.Process.Pid)
	}
	for _, pid := range own {
		one, err := sides.Process(pid)
		if err != nil {
			return use{}, err
		}
		u.clients += one.CPU
	}
	return u, nil
}

// since is what was used after an earlier moment.
func (l *load) since(before use, watchers ...*watchers) (use, error) {
	now, err := l.use(watchers...)
	return use{now.servers - before.servers, now.clients - before.clients, now.writes - before.writes}, err
}

func (u use) perThousand(n int) (servers, clients time.Duration) {
	each := 1000 / float64(max(1, n))
	return time.Duration(float64(u.servers) * each), time.Duration(float64(u.clients) * each)
}

// requests measures all cases and prints the table.
func requests(ctx context.Context, o options, cases []testCase, theirs, ours *sides.Side) error {
	progress("laying %d objects on both sides", objects)
	their, err := newLoad(ctx, theirs)
	if err != nil {
		return fmt.Errorf("laying objects on kube-apiserver: %w", err)
	}
	our, err := newLoad(ctx, ours)
	if err != nil {
		return fmt.Errorf("laying objects on Barque: %w", err)
	}
	fmt.Println("\n| case | kube-apiserver: a second, p50, CPU s for 1,000 of servers + clients | Barque | as many | CPU |\n|---|---|---|---|---|")
	for _, c := range cases {
		progress("%s", c)
		var samples [2][]sample
		for range o.repeats {
			for i, l := range []*load{their, our} {
				s, err := l.measure(ctx, c, o.each) // brief: how long it is measured, not a bound
				if err != nil {
					return err
				}
				samples[i] = append(samples[i], s)
			}
		}
		fmt.Println(row(c.String(), middle(samples[0]), middle(samples[1])))
	}
	return nil
}

// middle takes the median of each figure.
func middle(samples []sample) sample {
	pick := func(of func(sample) float64) float64 {
		var values []float64
		for _, s := range samples {
			values = append(values, of(s))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	out := sample{
		perSecond: pick(func(s sample) float64 { return s.perSecond }),
		median:    time.Duration(pick(func(s sample) float64 { return float64(s.median) })),
		cpu:       time.Duration(pick(func(s sample) float64 { return float64(s.cpu) })),
		clients:   time.Duration(pick(func(s sample) float64 { return float64(s.clients) })),
		writes:    pick(func(s sample) float64 { return s.writes }),
	}
	for _, s := range samples {
		out.failed += s.failed
	}
	return out
}

func row(name string, theirs, ours sample) string {
	return fmt.Sprintf("| %s | %s | %s | %.1fx | %.2fx |", name, theirs, ours, ours.perSecond/theirs.perSecond, ours.cpu.Seconds()/theirs.cpu.Seconds())
}

// String shows a sample in a table.
func (s sample) String() string {
	text := fmt.Sprintf("%.0f", s.perSecond)
	if s.perSecond < 100 {
		text = fmt.Sprintf("%.1f", s.perSecond)
	}
	if s.median > 0 {
		text += fmt.Sprintf(", %.1f ms", float64(s.median)/1e6)
	}
	text += fmt.Sprintf(", %.3g + %.3g", s.cpu.Seconds(), s.clients.Seconds())
	if s.writes > 0 {
		text += fmt.Sprintf(", %.2f writes", s.writes)
	}
	if s.failed > 0 {
		text += fmt.Sprintf(" (%d failed)", s.failed)
	}
	return text
}
