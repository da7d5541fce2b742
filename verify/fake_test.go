package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// fakeCluster is one store of ConfigMaps behind some servers, which are right in all that they say
// but for what a test has them do wrong. It belongs into a bubble of synctest.
type fakeCluster struct {
	servers  []*fakeServer
	slowList time.Duration // what a list takes

	mu       sync.Mutex
	revision int
	objects  map[string]*corev1.ConfigMap
	history  []fakeEvent
	changed  chan struct{} // closed when anything changes
	removed  bool          // the namespace is
}

type fakeEvent struct {
	revision int
	kind     watch.EventType
	object   *corev1.ConfigMap
}

// health is how a server is.
type health int

const (
	well   health = iota
	away          // it refuses connections, and those that there were are broken
	silent        // it says nothing, and breaks nothing
	mute          // it answers, and tells watchers nothing
	full          // it takes no writes
)

// fakeServer is one way to the store.
type fakeServer struct {
	*fakeCluster
	name   string
	health health // under mu, as what follows
	lost   int    // revision that its watchers are not told of
}

// firstRevision is that of a store in which nothing has happened.
const firstRevision = 100

func newFakeCluster(t *testing.T, servers int) (*fakeCluster, []Server) {
	c := &fakeCluster{objects: make(map[string]*corev1.ConfigMap), changed: make(chan struct{}), revision: firstRevision}
	var out []Server
	for i := range servers {
		s := &fakeServer{fakeCluster: c, name: fmt.Sprintf("s%d", i+1)}
		server, err := NewServer(s.name, "http://"+s.name, &rest.Config{Transport: s})
		if err != nil {
			t.Fatal(err)
		}
		c.servers, out = append(c.servers, s), append(out, server)
	}
	return c, out
}

// turn makes servers, by number, be in some health.
func (c *fakeCluster) turn(to health, servers ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range servers {
		c.servers[n-1].health = to
	}
	c.tell()
}

// lose has a server not tell its watchers of the next change.
func (c *fakeCluster) lose(server int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers[server-1].lost = c.revision + 1
}

// tell wakes up who waits for changes; mu is held.
func (c *fakeCluster) tell() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// happen notes a change; mu is held.
func (c *fakeCluster) happen(kind watch.EventType, m *corev1.ConfigMap) *corev1.ConfigMap {
	c.revision++
	m = m.DeepCopy()
	m.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	m.ResourceVersion = strconv.Itoa(c.revision)
	if kind == watch.Deleted {
		delete(c.objects, m.Name)
	} else {
		c.objects[m.Name] = m
	}
	c.history = append(c.history, fakeEvent{c.revision, kind, m})
	c.tell()
	return m
}

// RoundTrip answers a request. The way takes a moment, and the way back, too: what was done may not
// be told.
func (s *fakeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := s.travel(r, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}); err != nil {
		return nil, err
	}
	q := r.URL.Query()
	if q.Get("watch") == "true" {
		after, seconds := number(q.Get("resourceVersion")), number(q.Get("timeoutSeconds"))
		return s.watch(r, after, time.Duration(seconds)*time.Second, q.Get("labelSelector")), nil
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/configmaps") {
		pause(r.Context(), s.slowList)
	}
	s.mu.Lock()
	var answer any = &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: insufficientStorage, Message: "full"}}
	if s.health != full || r.Method == http.MethodGet {
		answer = s.answer(r.Method, strings.Split(strings.Trim(r.URL.Path, "/"), "/"), q.Get("labelSelector"), body)
	}
	code := http.StatusOK
	if refused, ok := answer.(*apierrors.StatusError); ok {
		answer, code = &refused.ErrStatus, int(refused.ErrStatus.Code)
	}
	data, err := json.Marshal(answer)
	s.mu.Unlock()
	if err := s.travel(r, syscall.ECONNRESET); err != nil {
		return nil, err
	}
	return response(r, code, io.NopCloser(bytes.NewReader(data))), err
}

// travel takes a moment, and fails as the server's health is; broken is the error of one that is
// away.
func (s *fakeServer) travel(r *http.Request, broken error) error {
	pause(r.Context(), time.Millisecond)
	s.mu.Lock()
	how := s.health
	s.mu.Unlock()
	switch how {
	case away:
		return broken
	case silent:
		<-r.Context().Done()
	}
	return context.Cause(r.Context())
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

func response(r *http.Request, code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}
}

func matches(m *corev1.ConfigMap, selector string) bool {
	return selector == RunLabel+"="+m.Labels[RunLabel]
}

// answer does what is asked for; mu is held. The path is api/v1/namespaces/N[/configmaps[/NAME]].
func (c *fakeCluster) answer(method string, path []string, selector string, body []byte) any {
	name, in := "", new(corev1.ConfigMap)
	switch len(path) {
	case 4:
		return c.namespace(method)
	case 6:
		name = path[5]
	}
	if method == http.MethodPost || method == http.MethodPut {
		if err := json.Unmarshal(body, in); err != nil {
			panic(err)
		}
		name = in.Name
	}
	old, resource := c.objects[name], schema.GroupResource{Resource: "configmaps"}
	switch {
	case method == http.MethodPost && old != nil:
		return apierrors.NewAlreadyExists(resource, name)
	case method == http.MethodPost:
		return c.happen(watch.Added, in)
	case name == "" && method == http.MethodGet:
		list := &corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}}
		list.ResourceVersion = strconv.Itoa(c.revision)
		for _, m := range c.objects {
			if matches(m, selector) {
				list.Items = append(list.Items, *m)
			}
		}
		return list
	case name == "":
		for _, m := range c.objects {
			if matches(m, selector) {
				c.happen(watch.Deleted, m)
			}
		}
		return &metav1.Status{Status: metav1.StatusSuccess}
	case old == nil:
		return apierrors.NewNotFound(resource, name)
	case method == http.MethodPut && in.ResourceVersion != old.ResourceVersion:
		return apierrors.NewConflict(resource, name, nil)
	case method == http.MethodPut:
		return c.happen(watch.Modified, in)
	case method == http.MethodDelete:
		options := new(metav1.DeleteOptions)
		if err := json.Unmarshal(body, options); err != nil {
			panic(err)
		}
		if *options.Preconditions.ResourceVersion != old.ResourceVersion {
			return apierrors.NewConflict(resource, name, nil)
		}
		return c.happen(watch.Deleted, old)
	}
	return old
}

func (c *fakeCluster) namespace(method string) any {
	if c.removed {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "n")
	}
	c.removed = method == http.MethodDelete
	return &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
}

// watch streams what happens. What it starts ends with the request, or when that is over.
func (s *fakeServer) watch(r *http.Request, after int, limit time.Duration, selector string) *http.Response {
	reader, writer := io.Pipe()
	go func() {
		over := time.After(limit) // brief: in virtual time
		for {
			s.mu.Lock()
			how, lost, changed := s.health, s.lost, s.changed
			var events []fakeEvent
			for _, e := range s.history[max(0, after-firstRevision):] {
				if how != mute && how != silent && e.revision > after && e.revision != lost && matches(e.object, selector) {
					events = append(events, e)
				}
			}
			s.mu.Unlock()
			if how == away {
				writer.CloseWithError(syscall.ECONNRESET)
				return
			}
			for _, e := range events {
				// Who has left does not listen, which the end of the request tells.
				_ = json.NewEncoder(writer).Encode(map[string]any{"type": e.kind, "object": e.object})
				after = e.revision
			}
			select {
			case <-changed:
			case <-over:
				writer.Close()
				return
			case <-r.Context().Done():
				writer.CloseWithError(context.Cause(r.Context()))
				return
			}
		}
	}()
	return response(r, http.StatusOK, reader)
}
