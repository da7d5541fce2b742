// Package router caches the route of the API server that a request takes.
//
// The API machinery looks for it among all routes of a group version: the core group has hundreds.
// It copies the routes that fit the path, and then compares the method and two headers. The answer
// depends on nothing else: not on the name of an object or of its namespace, but on whether a part
// of the path is a word that some route has at that place. So a [Router] looks a route up once for
// each shape of a path, and answers requests of the same shape by itself.
//
// Invariant: the answer is that of restful.CurlyRouter. It is called for routes with conditions,
// regular expressions or verbs, which shapes do not cover, and for all requests that it refuses.
package router

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/emicklei/go-restful/v3"
)

const (
	// most bounds the cache, which grows with the headers that clients send.
	most = 4096
	// longest is the length of a shape, in bytes, up to which it is cached.
	longest = 512
)

// Router is a restful.RouteSelector. Services must not get routes after they were added to their
// container. Any goroutine may use it.
type Router struct {
	next  restful.CurlyRouter
	table atomic.Pointer[table]
}

var _ restful.RouteSelector = (*Router)(nil)

// SelectRoute implements restful.RouteSelector.
func (r *Router) SelectRoute(
	services []*restful.WebService, req *http.Request,
) (*restful.WebService, *restful.Route, error) {
	t := r.table.Load()
	if t == nil || !slices.Equal(t.services, services) {
		t = newTable(services)
		r.table.Store(t)
	}
	var room [longest]byte
	shape, ok := t.shape(room[:0], req)
	if !ok {
		return r.next.SelectRoute(services, req)
	}
	if f, ok := t.get(shape); ok {
		return f.service, f.route, nil
	}
	service, route, err := r.next.SelectRoute(services, req)
	if err == nil && route != nil {
		t.put(shape, found{service, route})
	}
	return service, route, err
}

// table is the routing table of the services.
type table struct {
	services []*restful.WebService
	// words are the words of routes, by their place in the path; nil when shapes cannot be used.
	words []map[string]bool

	mu    sync.RWMutex
	found map[string]found // by shape
}

type found struct {
	service *restful.WebService
	route   *restful.Route
}

func newTable(services []*restful.WebService) *table {
	t := &table{services: slices.Clone(services), words: []map[string]bool{}, found: make(map[string]found)}
	for _, s := range services {
		paths := []string{s.RootPath()}
		for _, route := range s.Routes() {
			if len(route.If) > 0 {
				t.words = nil
				return t
			}
			paths = append(paths, route.Path)
		}
		for _, path := range paths {
			if !t.learn(path) {
				t.words = nil
				return t
			}
		}
	}
	return t
}

// learn notes the words of a route. It is false when the route has conditions on parts of a path.
func (t *table) learn(path string) bool {
	for i, part := range strings.Split(strings.Trim(path, "/"), "/") {
		if i == len(t.words) {
			t.words = append(t.words, make(map[string]bool))
		}
		if parameter := strings.HasPrefix(part, "{"); !parameter {
			t.words[i][part] = true
		}
		if strings.Contains(strings.TrimSuffix(part, ":*}"), ":") {
			return false
		}
	}
	return true
}

// shape appends all of a request that its route depends on. It is false for one that is not to
// be cached.
func (t *table) shape(b []byte, req *http.Request) ([]byte, bool) {
	if t.words == nil || req.URL.Path == "/" { // which has no parts, unlike "//"
		return nil, false
	}
	// No header and no method has a line break. A part of a path that is no word is left out.
	b = append(b, req.Method...)
	b = append(b, '\n')
	b = append(b, req.Header.Get("Accept")...)
	b = append(b, '\n')
	b = append(b, req.Header.Get("Content-Type")...)
	b = append(b, '\n')
	rest, more := strings.TrimLeft(req.URL.Path, "/"), true
	for i := 0; more && len(b) < longest; i++ {
		var part string
		part, rest, more = strings.Cut(rest, "/")
		switch {
		case i < len(t.words) && t.words[i][part]:
			b = append(b, part...)
		case part != "":
			b = append(b, '\n')
		}
		b = append(b, '/')
	}
	return b, len(b) < longest
}

func (t *table) get(shape []byte) (found, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	f, ok := t.found[string(shape)]
	return f, ok
}

func (t *table) put(shape []byte, f found) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.found) >= most {
		clear(t.found)
	}
	t.found[string(shape)] = f
}
