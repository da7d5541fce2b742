package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Comparisons of runs depend on the names of the cases.
func TestNames(t *testing.T) {
	const parcel = "/apis/apibench.barque.example/v1/namespaces/n/parcels/c"
	const configMap = "/api/v1/namespaces/n/configmaps/c"
	for _, c := range []struct {
		testCase
		name, path string
	}{
		{testCase{"get", configMaps, inProtobuf, 1}, "get protobuf 1", configMap},
		{testCase{"list", configMaps, inJSON, 16}, "list JSON 16", configMap},
		{testCase{"watch", customResources, inJSON, 200}, "watch custom 200", parcel},
	} {
		one, all := c.kind.path("n", "c"), c.kind.path("n", "")
		if c.String() != c.name || one != c.path || all+"/c" != c.path {
			t.Errorf("%s, %s, %s instead of %s, %s", c, one, all, c.name, c.path)
		}
	}
}

// All objects are of about the same size, and their contents differ.
func TestObjects(t *testing.T) {
	for _, k := range kinds {
		obj := k.object("n", "c", 7)
		data, err := json.Marshal(obj)
		if err != nil || len(data) < size || len(data) > size+200 {
			t.Errorf("%s: %d bytes, %s, %v", k.many, len(data), data, err)
		}
		if obj.GetNamespace() != "n" || obj.GetName() != "c" {
			t.Errorf("%s: %s", k.many, data)
		}
		other, err := json.Marshal(k.object("n", "c", 8))
		if err != nil || string(other) == string(data) {
			t.Errorf("%s: %s, %v", k.many, other, err)
		}
	}
}

// A server keeps all of a custom resource, and adds the field that has a default.
func TestCustomResource(t *testing.T) {
	d := customResources.definition
	if d.Name != "parcels.apibench.barque.example" {
		t.Error(d.Name)
	}
	var schema apiextensions.JSONSchemaProps
	convert := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps
	if err := convert(d.Spec.Versions[0].Schema.OpenAPIV3Schema, &schema, nil); err != nil {
		t.Fatal(err)
	}
	structural, err := structuralschema.NewStructural(&schema)
	if err != nil {
		t.Fatal(err)
	}
	if err := structuralschema.ValidateStructural(nil, structural).ToAggregate(); err != nil {
		t.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(&schema)
	if err != nil {
		t.Fatal(err)
	}
	obj := customResource("n", "c", 7)
	options := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	if pruned := pruning.PruneWithOptions(obj.Object, structural, true, options); len(pruned) > 0 {
		t.Errorf("pruned: %v", pruned)
	}
	defaulting.Default(obj.Object, structural)
	if n, _, err := unstructured.NestedInt64(obj.Object, "spec", "attempts"); err != nil || n != 3 {
		t.Errorf("%v, %v", obj.Object, err)
	}
	if err := validation.ValidateCustomResource(nil, obj.Object, validator).ToAggregate(); err != nil {
		t.Error(err)
	}
}

// parcels has the versions of objects, and refuses updates of others. The nth request is written,
// and its answer is lost.
type parcels struct {
	t        *testing.T
	versions map[string]int
	asks     int
	lost     int
}

func (p *parcels) RoundTrip(r *http.Request) (*http.Response, error) {
	p.asks++
	code, current := http.StatusOK, p.versions[r.URL.Path]
	if r.Method == http.MethodPut {
		var obj unstructured.Unstructured
		if data, err := io.ReadAll(r.Body); err != nil || obj.UnmarshalJSON(data) != nil {
			p.t.Errorf("%s, %v", data, err)
		}
		switch {
		case obj.GetResourceVersion() != fmt.Sprint(current):
			code = http.StatusConflict
		case p.asks == p.lost:
			p.versions[r.URL.Path]++
			return nil, io.ErrUnexpectedEOF
		default:
			current++
			p.versions[r.URL.Path] = current
		}
	}
	body := fmt.Sprintf(`{"metadata":{"name":"c","resourceVersion":"%d","uid":"u"}}`, current)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

// Updates of custom resources name the version that they replace, also after an update of
// unknown outcome.
func TestUpdateCustomResources(t *testing.T) {
	p := &parcels{t: t, versions: map[string]int{}, lost: 7}
	var l load
	l.clients[3] = connection{&http.Client{Transport: p}, "http://server"}
	for n := 3; n < objects; n += mostClient {
		p.versions[customResources.path(laid, laidName(n))] = 1000 * n
		if _, err := l.noting(t.Context(), customResources, 3, n, http.MethodGet, nil); err != nil {
			t.Fatal(err)
		}
	}
	p.asks = 0
	const updates = 200
	c := testCase{"update", customResources, inJSON, mostClient}
	for i := range updates {
		_, err := l.request(t.Context(), c, 3)
		if lost := i+1 == p.lost; lost != errors.Is(err, io.ErrUnexpectedEOF) || !lost && err != nil {
			t.Errorf("update %d: %v", i+1, err)
		}
	}
	if p.asks != updates+1 {
		t.Errorf("%d requests for %d updates, of which one was lost", p.asks, updates)
	}
}

// asked notes the requests and answers nothing.
type asked struct{ method, path, accept, sent string }

func (a *asked) RoundTrip(r *http.Request) (*http.Response, error) {
	*a = asked{r.Method, r.URL.Path, r.Header.Get("Accept"), r.Header.Get("Content-Type")}
	return nil, io.ErrUnexpectedEOF
}

// Each case sends its own request, in its encoding and for objects of its kind.
func TestRequests(t *testing.T) {
	var a asked
	var l load
	l.clients[0] = connection{&http.Client{Transport: &a}, "http://server"}
	for _, c := range wanted(regexp.MustCompile("^(create|get|list|first) .* 1$|^update (protobuf|JSON) 1$")) {
		want := asked{http.MethodGet, c.kind.path(laid, ""), c.encoding.media, ""}
		switch c.operation {
		case "create":
			want = asked{http.MethodPost, c.kind.path(made, ""), c.encoding.media, c.encoding.media}
		case "update":
			want.method, want.sent = http.MethodPut, c.encoding.media
		case "list", "first":
			want.path = c.kind.path(long, "")
		}
		if _, err := l.request(t.Context(), c, 0); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", c, err)
		}
		if c.operation == "get" || c.operation == "update" { // of one of the objects
			a.path = path.Dir(a.path)
		}
		if a != want {
			t.Errorf("%s: %+v instead of %+v", c, a, want)
		}
	}
}

func TestVersionIn(t *testing.T) {
	for text, want := range map[string]string{
		`{"metadata":{"name":"c","resourceVersion":"17","uid":"u"}}`: "17",
		`{"metadata":{"name":"c"}}`:                                  "",
		`{"metadata":{"resourceVersion":"1`:                          "",
	} {
		if got, err := versionIn([]byte(text)); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}
