package rawlist

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// listBoats serves a list of boats by a handler that gets the List, filled, of a request that takes
// one, and nil of any other.
func listBoats(t *testing.T, w *httptest.ResponseRecorder, handler func(http.ResponseWriter, *List)) {
	t.Helper()
	f := newBoatFormat(t)
	boat := newBoat()
	boat.SetName("a")
	value := marked(t, f, boat)
	served := Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, l := Start(r.Context())
		if l != nil {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(boats.GroupVersion().WithKind("BoatList"))
			if !l.Takes(f) || !l.Begin(f, 1, nil) {
				t.Fatal("no list is made of documents")
			}
			if err := l.Add(r.Context(), "a", value, 7); err != nil {
				t.Fatal(err)
			}
			l.End(list, nil)
		}
		handler(w, l)
	}))
	r := httptest.NewRequest(http.MethodGet, "/apis/sea.example.com/v1/boats", nil)
	r.Header.Set("Accept", runtime.ContentTypeJSON)
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "list", APIGroup: boats.Group,
		APIVersion: boats.Version, Resource: "boats"}
	w.Header().Set("Audit-Id", "x")
	served.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
}

// writeEmpty writes as a handler of custom resources does, in the same parts.
func writeEmpty(t *testing.T, w http.ResponseWriter, mediaType string, status int) {
	t.Helper()
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(status)
	for _, part := range []string{`{"apiVersion":"sea.example.com/v1","items":[`, `],"kind":"BoatList"}`, "\n"} {
		if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
}

const oneBoat = `{"apiVersion":"sea.example.com/v1","items":[{"apiVersion":"sea.example.com/v1","kind":"Boat","metadata":{"name":"a","resourceVersion":"7"}}],"kind":"BoatList"}` + "\n"

// TestResponses: a List takes the place of the list without items, and of nothing else.
func TestResponses(t *testing.T) {
	const empty = `{"apiVersion":"sea.example.com/v1","items":[],"kind":"BoatList"}` + "\n"
	for name, c := range map[string]struct {
		handler func(http.ResponseWriter, *List)
		status  int
		body    string
		calls   int
	}{
		"JSON": {func(w http.ResponseWriter, l *List) {
			l.Respond()
			writeEmpty(t, w, runtime.ContentTypeJSON, http.StatusOK)
		}, http.StatusOK, oneBoat, 1},
		"a List that is not the answer": {func(w http.ResponseWriter, _ *List) {
			writeEmpty(t, w, runtime.ContentTypeJSON, http.StatusOK)
		}, http.StatusOK, empty, 1},
		"another list after it": {func(w http.ResponseWriter, l *List) {
			l.Respond()
			l.Abandon()
			l.Respond()
			writeEmpty(t, w, runtime.ContentTypeJSON, http.StatusOK)
		}, http.StatusOK, empty, 1},
		"an error": {func(w http.ResponseWriter, l *List) {
			l.Respond()
			w.Header().Set("Retry-After", "1")
			http.Error(w, "no", http.StatusNotAcceptable)
		}, http.StatusNotAcceptable, "no\n", 1},
		"YAML": {func(w http.ResponseWriter, l *List) {
			l.Respond()
			w.Header().Add("Warning", "once")
			if l != nil {
				writeEmpty(t, w, runtime.ContentTypeYAML, http.StatusOK)
				return
			}
			w.Header().Set("Content-Type", runtime.ContentTypeYAML)
			_, _ = w.Write([]byte("items: [boat]\n"))
		}, http.StatusOK, "items: [boat]\n", 2},
	} {
		t.Run(name, func(t *testing.T) {
			calls, w := 0, httptest.NewRecorder()
			listBoats(t, w, func(w http.ResponseWriter, l *List) {
				calls++
				c.handler(w, l)
			})
			if w.Code != c.status || w.Body.String() != c.body || calls != c.calls {
				t.Errorf("got %d, %d calls\n%s\nwant %d, %d calls\n%s", w.Code, calls, w.Body, c.status, c.calls,
					c.body)
			}
			if got := w.Header().Values("Warning"); w.Header().Get("Audit-Id") != "x" || len(got) > 1 {
				t.Errorf("headers are %v", w.Header())
			}
			if want := map[bool]string{true: "1"}[c.status != http.StatusOK]; w.Header().Get("Retry-After") != want {
				t.Errorf("headers are %v", w.Header())
			}
		})
	}
}

// TestResponseOfHandlerThatPanics: nothing is sent in its name.
func TestResponseOfHandlerThatPanics(t *testing.T) {
	w := httptest.NewRecorder()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the handler's panic is lost")
			}
		}()
		listBoats(t, w, func(_ http.ResponseWriter, l *List) {
			l.Respond()
			panic(http.ErrAbortHandler)
		})
	}()
	if w.Body.Len() > 0 {
		t.Errorf("%s was sent", w.Body)
	}
}
