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

// fakeCluster is one store of ConfigMaps behind several servers. They answer correctly, except for
// the faults that a test gives them. It needs a bubble of synctest.
type fakeCluster struct {
	servers  []*fakeServer
	slowList time.Duration // the duration of a list

	mu       sync.Mutex
	revision int
	objects  map[string]*corev1.ConfigMap
	history  []fakeEvent
	changed  chan struct{} // closed at the next change
	removed  bool          // the namespace is removed
}

type fakeEvent struct {
	revision int
	kind     watch.EventType
	object   *corev1.ConfigMap
}

// health is the state of a server.
type health int

const (
	well   health = iota
	away          // refuses connections, and has broken the established ones
	silent        // sends nothing, and closes no connection
	mute          // answers, and sends watchers no events
	full          // refuses writes
)

// fakeServer is one server in front of the store.
type fakeServer struct {
	*fakeCluster
	name   string
	health health // under mu, as is lost
	lost   int    // the revision whose event its watchers do not get
}

// firstRevision is the revision of an empty store.
const firstRevision = 100

func newFakeCluster(t *testing.T, servers int) (*fakeCluster, []Server) {
	c := &fakeCluster{objects: make(map[string]*corev1.ConfigMap), changed: make(chan struct{}),
		revision: firstRevision}
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

// turn sets the health of some servers, by number.
func (c *fakeCluster) turn(to health, servers ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range servers {
		c.servers[n-1].health = to
	}
	c.tell()
}

// lose makes a server keep the next change from its watchers.
func (c *fakeCluster) lose(server int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers[server-1].lost = c.revision + 1
}

// tell wakes the watchers; mu is held.
func (c *fakeCluster) tell() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// happen records a change; mu is held.
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

// RoundTrip answers a request. Request and answer each take a moment, so that an answer can be lost
// after the write.
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
	var answer any = &apierrors.StatusError{
		ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: insufficientStorage, Message: "full"}}
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

// travel takes a moment, and fails by the server's health. broken is the error of a server that is
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
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: body,
		Request: r}
}

func matches(m *corev1.ConfigMap, selector string) bool {
	return selector == RunLabel+"="+m.Labels[RunLabel]
}

// answer executes a request; mu is held. The path is api/v1/namespaces/N[/configmaps[/NAME]].
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

// watch streams events. Its goroutine ends with the request, or when the watch is over.
func (s *fakeServer) watch(r *http.Request, after int, limit time.Duration, selector string) *http.Response {
	reader, writer := io.Pipe()
	go func() {
		over := time.After(limit) // brief: in virtual time
		for {
			s.mu.Lock()
			how, lost, changed := s.health, s.lost, s.changed
			var events []fakeEvent
			for _, e := range s.history[max(0, after-firstRevision):] {
				if how != mute && how != silent && e.revision > after && e.revision != lost &&
					matches(e.object, selector) {
					events = append(events, e)
				}
			}
			s.mu.Unlock()
			if how == away {
				writer.CloseWithError(syscall.ECONNRESET)
				return
			}
			for _, e := range events {
				// A client that has gone fails the write; the end of the request ends the loop.
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
