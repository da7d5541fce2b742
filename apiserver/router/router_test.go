package router

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"
)

// service makes a service of routes, each a method and a path below its root.
func service(root string, routes ...string) *restful.WebService {
	s := new(restful.WebService).Path(root)
	for _, r := range routes {
		method, path, _ := strings.Cut(r, " ")
		b := s.Method(method).Path(path).Operation(root+r).Produces("application/json",
			"application/vnd.kubernetes.protobuf").To(func(*restful.Request, *restful.Response) {})
		if method == http.MethodPatch {
			b.Consumes("application/merge-patch+json")
		}
		s.Route(b)
	}
	return s
}

func services() []*restful.WebService {
	return []*restful.WebService{
		service("/", "GET /"),
		service("/version", "GET /"),
		service("/api", "GET /"),
		service("/api/v1", "GET /", "GET /namespaces", "POST /namespaces", "GET /namespaces/{name}",
			"PUT /namespaces/{name}/status",
			"GET /namespaces/{namespace}/pods", "GET /namespaces/{namespace}/pods/{name}",
			"PATCH /namespaces/{namespace}/pods/{name}",
			"GET /namespaces/{namespace}/pods/{name}/proxy/{path:*}", "GET /pods",
			"GET /watch/namespaces/{namespace}/pods/{name}"),
		service("/apis/apps/v1", "GET /", "GET /deployments", "DELETE /namespaces/{namespace}/deployments/{name}"),
		service("/apis/{group}/{version}", "GET /anything/{name}"),
		service("/empty"),
	}
}

// compare calls both routers twice, the second time for cached answers.
func compare(t *testing.T, r *Router, of []*restful.WebService, req *http.Request) (remembered bool) {
	t.Helper()
	wantService, wantRoute, wantErr := restful.CurlyRouter{}.SelectRoute(of, req)
	for range 2 {
		gotService, gotRoute, err := r.SelectRoute(of, req)
		if gotService != wantService || fmt.Sprint(err) != fmt.Sprint(wantErr) ||
			(gotRoute == nil) != (wantRoute == nil) ||
			gotRoute != nil && (gotRoute.Operation != wantRoute.Operation || gotRoute.String() != wantRoute.String()) {
			t.Fatalf("%s %q %v: got %v %v, want %v %v", req.Method, req.URL.Path, req.Header, gotRoute, err, wantRoute,
				wantErr)
		}
	}
	var room [longest]byte
	if shape, ok := r.table.Load().shape(room[:0], req); ok {
		_, remembered = r.table.Load().get(shape)
	}
	return remembered
}

func request(method, path, accept, contentType string) *http.Request {
	header := http.Header{}
	if accept != "" {
		header.Set("Accept", accept)
	}
	if contentType != "" {
		header.Set("Content-Type", contentType)
	}
	return &http.Request{Method: method, URL: &url.URL{Path: path}, Header: header}
}

var (
	methods = []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", ""}
	accepts = []string{"", "*/*", "application/json", "application/vnd.kubernetes.protobuf,*/*", "text/html"}
	bodies  = []string{"", "application/json", "application/merge-patch+json"}
	parts   = []string{"version", "api", "apis", "v1", "apps", "namespaces", "pods", "proxy", "watch", "status",
		"deployments", "anything", "empty", "default", "x", "", ".", "\n", "{name}"}
)

// TestRouter compares random requests, of which some have the same shape and some nearly.
func TestRouter(t *testing.T) {
	r, of, remembered := &Router{}, services(), 0
	for range 20_000 {
		path := []string{"/api/v1/namespaces", "/api/v1", "/apis/apps/v1", "", "/"}[rand.IntN(5)]
		for range rand.IntN(6) {
			path += "/" + parts[rand.IntN(len(parts))]
		}
		if compare(t, r, of,
			request(methods[rand.IntN(len(methods))], path, accepts[rand.IntN(len(accepts))],
				bodies[rand.IntN(len(bodies))])) {
			remembered++
		}
	}
	if remembered < 200 {
		t.Errorf("%d of 20,000 requests were answered from memory", remembered)
	}
}

func FuzzRouter(f *testing.F) {
	f.Add("GET", "/api/v1/namespaces/default/pods/x", "*/*", "")
	f.Add("PATCH", "/api/v1/namespaces//pods/x/", "application/json", "application/merge-patch+json")
	r, of := &Router{}, services()
	f.Fuzz(func(t *testing.T, method, path, accept, contentType string) {
		if strings.ContainsAny(method+accept+contentType, "\n") {
			return // the server refuses it
		}
		compare(t, r, of, request(method, path, accept, contentType))
	})
}

// TestObjectsHaveOneShape: a name is not cached, unless it is a word of some route.
func TestObjectsHaveOneShape(t *testing.T) {
	r, of := &Router{}, services()
	for i := range 100 {
		compare(t, r, of, request("GET", fmt.Sprintf("/api/v1/namespaces/n%d/pods/p%d", i, i), "", ""))
	}
	compare(t, r, of, request("GET", "/api/v1/namespaces/pods/pods/status", "", ""))
	if n := len(r.table.Load().found); n != 1 {
		t.Errorf("%d shapes are remembered, want one", n)
	}
}

// TestWhatIsNotRemembered: conditions and parts of a path are evaluated each time, and paths and
// headers of clients' own making do not grow the cache without a bound.
func TestWhatIsNotRemembered(t *testing.T) {
	conditional := service("/api")
	conditional.Route(
		conditional.GET("/x").If(func(req *http.Request) bool { return req.Header.Get("Accept") == "*/*" }).To(
			func(*restful.Request, *restful.Response) {}))
	for name, of := range map[string][]*restful.WebService{
		"conditions":          {conditional},
		"regular expressions": {service("/api", "GET /{name:[a-z]+}")},
		"verbs":               {service("/api", "GET /{name}:start")},
	} {
		r := &Router{}
		for _, path := range []string{"/api/x", "/api/x:start", "/api/7"} {
			if compare(t, r, of, request("GET", path, "*/*", "")) {
				t.Errorf("%s: %s is remembered", name, path)
			}
		}
	}
	r, of := &Router{}, services()
	for i := range most + 10 {
		compare(t, r, of, request("GET", "/api", fmt.Sprintf("application/json;n=%d", i), ""))
	}
	if n := len(r.table.Load().found); n == 0 || n > most {
		t.Errorf("%d shapes are remembered, want at most %d", n, most)
	}
	if compare(t, r, of, request("GET", "/api", strings.Repeat("*/*,", longest/4), "")) {
		t.Error("a long shape is remembered")
	}
}

// TestNewServices: answers from other services count no more.
func TestNewServices(t *testing.T) {
	r, of := &Router{}, services()
	compare(t, r, of, request("GET", "/apis/new/v1/anything/x", "", ""))
	compare(t, r, append(of, service("/apis/new/v1", "GET /anything/{name}")),
		request("GET", "/apis/new/v1/anything/x", "", ""))
}
