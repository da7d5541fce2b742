package openapi

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/spec3"
)

// With any number of concurrent clients, a document is built once.
func TestDocumentIsBuiltOnce(t *testing.T) {
	c := newDocumentCache()
	var built atomic.Int32
	d := document{hash: "h", build: func() (any, error) {
		built.Add(1)
		return &spec3.OpenAPI{Version: "3.0.0"}, nil
	}}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if body, err := c.get("p", d, formV3, mediaJSON); err != nil ||
				string(body) != `{"openapi":"3.0.0","info":null}` {
				t.Errorf("%s, %v", body, err)
			}
		})
	}
	all.Wait()
	if n := built.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
	d.hash = "another"
	if _, err := c.get("p", d, formV3, mediaJSON); err != nil || built.Load() != 2 {
		t.Errorf("after a change built %d times, %v", built.Load(), err)
	}
}

// Documents have the requested form, are compressed for clients that accept that, and are not sent
// again to clients that have them.
func TestForms(t *testing.T) {
	text := `{"swagger":"2.0","info":{"title":"` + strings.Repeat("t", 3000) + `","version":"1"},"paths":{}}`
	s := New(Config{
		Parts:      []Part{{Services: restful.NewContainer(), Scheme: runtime.NewScheme()}},
		Extensions: func() []Extension { return []Extension{answers(map[string]string{V2Path: text})} },
		Version:    "v1",
	})
	ask := func(path string, header ...string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		s.ServeHTTP(w, r)
		return w
	}
	for _, path := range []string{V2Path, V3Path + "/apis/stars.example.com/v1"} {
		f := formV2
		if path != V2Path {
			f = formV3
		}
		for accept, want := range map[string]string{"": mediaJSON, "*/*": mediaJSON, "application/json": mediaJSON,
			f.media: f.media} {
			w := ask(path, "Accept", accept)
			if got := w.Header().Get("Content-Type"); w.Code != 200 || got != want || w.Body.Len() == 0 {
				t.Errorf("%s as %q: %d, %s", path, accept, w.Code, got)
			}
			if again := ask(path, "Accept", accept, "If-None-Match", w.Header().Get("Etag")); again.Code != 304 {
				t.Errorf("%s as %q again: %d", path, accept, again.Code)
			}
		}
	}
	path := V3Path + "/apis/stars.example.com/v1"
	plain := ask(path).Body.String()
	packed := ask(path, "Accept-Encoding", "gzip")
	if packed.Header().Get("Content-Encoding") != "gzip" {
		t.Fatal("not compressed")
	}
	in, err := gzip.NewReader(packed.Body)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(in); err != nil || string(body) != plain {
		t.Errorf("%v, %s", err, body)
	}
}
