package apiserver

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/barque/barque/apiserver/router"
)

// TestRoutes compares the router's routes of all served requests with those of the API machinery.
func TestRoutes(t *testing.T) {
	services := startCluster(t).chain.own.Handler.GoRestfulContainer.RegisteredWebServices()
	parameter := regexp.MustCompile(`\{[^}]*\}`)
	remembering, n := &router.Router{}, 0
	for _, s := range services {
		for _, route := range s.Routes() {
			for _, name := range []string{"some-name", "other", "status", "namespaces", "a/b", ""} {
				path := parameter.ReplaceAllLiteralString(route.Path, name)
				for _, method := range []string{route.Method, http.MethodDelete} {
					for _, accept := range []string{"", runtime.ContentTypeProtobuf, "text/plain"} {
						r := httptest.NewRequest(method, "http://host/", nil)
						r.URL.Path = path
						r.Header.Set("Accept", accept)
						r.Header.Set("Content-Type", strings.Join(route.Consumes, ""))
						wantService, want, wantErr := restful.CurlyRouter{}.SelectRoute(services, r)
						service, got, err := remembering.SelectRoute(services, r)
						if service != wantService || fmt.Sprint(err) != fmt.Sprint(wantErr) ||
							(got == nil) != (want == nil) ||
							got != nil && (got.String() != want.String() || got.Operation != want.Operation) {
							t.Fatalf("%s %s, %q: got %v, %v, want %v, %v", method, path, accept, got, err, want,
								wantErr)
						}
						n++
					}
				}
			}
		}
	}
	if n < 10_000 {
		t.Errorf("%d requests only", n)
	}
}
