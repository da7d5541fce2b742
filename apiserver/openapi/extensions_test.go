package openapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime"
)

// answers is an extension that answers paths with texts, and all else with 404.
func answers(texts map[string]string) Extension {
	return Extension{Group: "stars.example.com", Version: "v1",
		Get: func(_ context.Context, path string, _ http.Header) (*http.Response, error) {
			w := httptest.NewRecorder()
			switch text, ok := texts[path]; {
			case text == "dead":
				return nil, errors.New("connection refused")
			case !ok:
				w.WriteHeader(http.StatusNotFound)
			default:
				_, _ = w.WriteString(text)
			}
			return w.Result(), nil
		}}
}

// Any document of an extension shows up in the documents, and harms no other document.
func TestExtensions(t *testing.T) {
	const path = "/apis/stars.example.com/v1"
	const good = `{"swagger":"2.0","info":{"title":"t","version":"1"},"paths":{
		"` + path + `/stars":{"get":{"description":"lists stars","responses":{"200":{"description":"OK"}}}},
		"/apis/apps/v1/deployments":{"get":{"description":"not theirs","responses":{"200":{"description":"OK"}}}}}}`
	const root = `{"paths":{"apis/stars.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/stars.example.com/v1?hash=A"},
		"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=B"}}}`
	for name, test := range map[string]struct {
		texts  map[string]string
		listed bool   // in the list of v3
		code   int    // of the document of v3
		v3, v2 string // parts of the documents
	}{
		"v3 and v2": {map[string]string{V3Path: root, V3Path + path: "their v3", V2Path: good}, true, 200,
			"their v3", "lists stars"},
		"v2 alone": {map[string]string{V2Path: good}, true, 200, "lists stars", "lists stars"},
		"nothing":  {nil, false, 404, "", ""},
		"dead":     {map[string]string{V2Path: "dead", V3Path: "dead"}, false, 404, "", ""},
		"no JSON":  {map[string]string{V2Path: "<html>", V3Path: "<html>"}, false, 404, "", ""},
		"null":     {map[string]string{V2Path: "null", V3Path: "null"}, false, 404, "", ""},
		"no responses": {
			map[string]string{V2Path: `{"paths":{"` + path + `/stars":{"get":{"description":"lists stars"}}}}`}, true,
			500, "malformed", "lists stars"},
		"no paths": {map[string]string{V2Path: `{"swagger":"2.0"}`}, true, 200, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Config{
				Parts:      []Part{{Services: restful.NewContainer(), Scheme: runtime.NewScheme()}},
				Extensions: func() []Extension { return []Extension{answers(test.texts)} },
				Version:    "v1",
			})
			ask := func(path string) (int, string) {
				w := httptest.NewRecorder()
				s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
				return w.Code, w.Body.String()
			}
			if code, body := ask(V3Path); code != 200 || strings.Contains(body, "stars") != test.listed ||
				strings.Contains(body, "apps") {
				t.Errorf("list: %d %s", code, body)
			}
			if code, body := ask(V3Path + path); code != test.code || !strings.Contains(body, test.v3) {
				t.Errorf("v3: %d %s", code, body)
			}
			if code, body := ask(V2Path); code != 200 || !strings.Contains(body, test.v2) ||
				strings.Contains(body, "not theirs") {
				t.Errorf("v2: %d %s", code, body)
			}
		})
	}
}
