package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
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

// encoding is how objects are written on the wire.
type encoding struct {
	name, media string
	encode      func(runtime.Object) ([]byte, error)
}

var (
	inProtobuf = encoding{"protobuf", "application/vnd.kubernetes.protobuf", func(obj runtime.Object) ([]byte, error) {
		var b bytes.Buffer
		err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(obj, &b)
		return b.Bytes(), err
	}}
	inJSON = encoding{"JSON", "application/json", func(obj runtime.Object) ([]byte, error) { return json.Marshal(obj) }}
)

// load is the clients of a side.
type load struct {
	*sides.Side
	clients  [mostClient]connection
	names    atomic.Int64    // of new objects
	pods     []string        // names of those that cases write
	versions [objects]string // of the laid custom resources; each is its client's
}

// connection leads to one of the servers. The clients are spread over all of them.
type connection struct {
	*http.Client
	url string
}

// do sends a request and reads the answer without looking at it.
func (c connection) do(ctx context.Context, method, path string, e encoding, body []byte) error {
	_, err := c.read(ctx, method, path, e, body)
	return err
}

// answer is the measure of an answer whose content is not read.
type answer struct {
	first time.Duration // from the request until the first byte of the body
	bytes int64         // of the body
}

// read sends a request and reads the answer.
func (c connection) read(ctx context.Context, method, path string, e encoding, body []byte) (answer, error) {
	return c.copy(ctx, io.Discard, method, path, e, body)
}

// write sends a request with an object and reads the answer.
func (c connection) write(ctx context.Context, method, path string, e encoding, obj runtime.Object) (answer, error) {
	body, err := e.encode(obj)
	if err != nil {
		return answer{}, err
	}
	return c.read(ctx, method, path, e, body)
}

// copy sends a request and copies the body of the answer.
func (c connection) copy(
	ctx context.Context, to io.Writer, method, path string, e encoding, body []byte,
) (a answer, err error) {
	began := time.Now()
	res, err := c.send(ctx, method, path, e.media, body)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	var one [1]byte
	_, err = io.ReadFull(res.Body, one[:])
	a.first = time.Since(began)
	if errors.Is(err, io.EOF) {
		return a, nil
	} else if err != nil {
		return a, err
	}
	if _, err := to.Write(one[:]); err != nil {
		return a, err
	}
	rest, err := io.Copy(to, res.Body)
	a.bytes = int64(len(one)) + rest
	return a, err
}

// refusal is an answer that is none of success.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

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
		return nil,
			errors.Join(refusal{res.StatusCode, fmt.Sprintf("%s %s: %s: %s", method, path, res.Status, said)},
				res.Body.Close())
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

// newLoad makes the clients of a side, and the namespaces.
func newLoad(ctx context.Context, s *sides.Side) (*load, error) {
	l := &load{Side: s}
	for i := range l.clients {
		l.clients[i] = l.connect(i)
	}
	for _, name := range []string{laid, long, made} {
		body, err := inJSON.encode(
			&corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
				ObjectMeta: metav1.ObjectMeta{Name: name}})
		if err == nil {
			err = l.clients[0].do(ctx, http.MethodPost, "/api/v1/namespaces", inJSON, body)
		}
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// layFor makes the objects that cases read and update.
func (l *load) layFor(ctx context.Context, cases []testCase, o options) error {
	for _, k := range kinds {
		if !slices.ContainsFunc(cases, func(c testCase) bool { return c.kind == k }) {
			continue
		}
		if err := l.layKind(ctx, k); err != nil {
			return err
		}
		if slices.ContainsFunc(cases, func(c testCase) bool { return c.kind == k && c.lists() }) {
			if err := l.lay(ctx, k, long, o.listed); err != nil {
				return err
			}
		}
	}
	return nil
}

// layKind makes the objects of a kind that are read and updated one by one, and its definition.
func (l *load) layKind(ctx context.Context, k *kind) error {
	if k.definition == nil {
		return l.lay(ctx, k, laid, objects)
	}
	if err := l.define(ctx, k); err != nil {
		return err
	}
	if err := l.lay(ctx, k, laid, objects); err != nil {
		return err
	}
	note := func(ctx context.Context, client, i int) error {
		_, err := l.noting(ctx, k, client, i, http.MethodGet, nil)
		return err
	}
	return l.each(ctx, objects, "resourceVersions of "+k.many, note)
}

// lay makes objects of known names.
func (l *load) lay(ctx context.Context, k *kind, namespace string, n int) error {
	return l.each(ctx, n, k.many+" in "+namespace, func(ctx context.Context, client, i int) error {
		path, obj := k.path(namespace, ""), k.object(namespace, laidName(i), 0)
		_, err := l.clients[client].write(ctx, http.MethodPost, path, k.encodings[0], obj)
		return err
	})
}

const (
	// eachBound is how long something may take that all clients do many times.
	eachBound = 30 * time.Minute
	// reported is the number of calls between two lines of progress.
	reported = 5000
)

// each has all clients call do n times in all, and reports progress. i counts from 0.
func (l *load) each(ctx context.Context, n int, what string, do func(ctx context.Context, client, i int) error) error {
	return l.by(ctx, mostClient, n, what, do)
}

// by is each with a number of clients.
func (l *load) by(
	ctx context.Context, clients, n int, what string, do func(ctx context.Context, client, i int) error,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, eachBound, fmt.Errorf("%d %s took more than %v", n, what, eachBound))
	defer cancel()
	began := time.Now()
	var begun, ended atomic.Int64
	failures := make([]error, mostClient)
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for i := begun.Add(1) - 1; i < int64(n) && failures[client] == nil; i = begun.Add(1) - 1 {
				if failures[client] = do(ctx, client, int(i)); failures[client] != nil {
					continue
				}
				if done := ended.Add(1); done%reported == 0 || done == int64(n) {
					progress("%d of %d %s, %.0f a second", done, n, what, float64(done)/time.Since(began).Seconds())
				}
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(failures...)
}

// use is CPU time: that of a side's processes, and that of the clients.
type use struct {
	servers, clients time.Duration
	writes           int64 // system calls of the servers
}

// use returns the use so far. Watchers are a process of their own.
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

// since is the use after an earlier moment.
func (l *load) since(before use, watchers ...*watchers) (use, error) {
	now, err := l.use(watchers...)
	return use{now.servers - before.servers, now.clients - before.clients, now.writes - before.writes}, err
}

func (u use) perThousand(n int) (servers, clients time.Duration) {
	each := 1000 / float64(max(1, n))
	return time.Duration(float64(u.servers) * each), time.Duration(float64(u.clients) * each)
}
