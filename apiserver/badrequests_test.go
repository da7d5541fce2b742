package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	restclient "k8s.io/client-go/rest"

	bounded "github.com/barque/barque/internal/await"
)

// badClient sends a server requests of any kind, as an administrator, so that only the server
// itself refuses them.
type badClient struct {
	*cluster
	client    *http.Client
	endpoints []endpoint
	panics    atomic.Int64
	largest   uint64 // bytes that a request made the process allocate, itself included
}

// endpoint is a resource or subresource. Objects of it are called "default" or the like, so that
// some exist.
type endpoint struct {
	collection, object string // paths; an object's subresource has no collection
	absent             string // path of an object that does not exist: a delete uses its body, and may not be a dry run
	apiVersion, kind   string
	verbs              []string
}

// existing are objects that every cluster has, so that requests about them come further.
var existing = map[string]string{
	"configmaps": "settings", "deployments": "settings", "serviceaccounts": "default", "namespaces": "default",
	"services":        "kubernetes",
	"priorityclasses": "system-node-critical", "clusterroles": "view", "flowschemas": "exempt",
}

func newBadClient(t testing.TB) *badClient {
	t.Helper()
	s := &badClient{cluster: startCluster(t)}
	if err := s.ensure(t.Context(), s.cluster.client); err != nil {
		t.Fatal(err)
	}
	must(
		s.admin.CoreV1().ConfigMaps("default").Create(t.Context(), configMap(existing["configmaps"], nil),
			metav1.CreateOptions{}))(t)
	must(
		s.admin.AppsV1().Deployments("default").Create(t.Context(), deployment(existing["deployments"]),
			metav1.CreateOptions{}))(t)
	var err error
	if s.client, err = restclient.HTTPClientFor(s.ca.client(t, s.host, admin())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.CloseIdleConnections)
	_, lists, err := s.admin.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		for _, r := range list.APIResources {
			s.endpoints = append(s.endpoints, newEndpoint(list.GroupVersion, r))
		}
	}
	if len(s.endpoints) < 80 {
		t.Fatalf("only %d resources are served", len(s.endpoints))
	}
	handlers := utilruntime.PanicHandlers
	utilruntime.PanicHandlers = append(slices.Clone(handlers), func(_ context.Context, what any) {
		if err, is := what.(error); !is || !errors.Is(err, http.ErrAbortHandler) {
			s.panics.Add(1)
		}
	})
	t.Cleanup(func() {
		utilruntime.PanicHandlers = handlers
		if n := s.panics.Load(); n > 0 {
			t.Errorf("the server panicked %d times", n)
		}
	})
	return s
}

func newEndpoint(groupVersion string, r metav1.APIResource) endpoint {
	e := endpoint{kind: r.Kind, apiVersion: groupVersion, verbs: r.Verbs}
	if r.Version != "" {
		e.apiVersion = strings.TrimPrefix(r.Group+"/"+r.Version, "/")
	}
	root := "/apis/" + groupVersion
	if groupVersion == "v1" {
		root = "/api/v1"
	}
	if r.Namespaced {
		root += "/namespaces/default"
	}
	resource, sub, isSub := strings.Cut(r.Name, "/")
	name := existing[resource]
	if name == "" {
		name = "nobody"
	}
	e.collection, e.object, e.absent = root+"/"+resource, root+"/"+resource+"/"+name, root+"/"+resource+"/nobody"
	if isSub {
		e.object += "/" + sub
		e.collection = e.object
	}
	return e
}

// wholeObject is an object of the endpoint's kind with these fields.
func (e endpoint) wholeObject(fields string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s}`, e.apiVersion, e.kind, fields)
}

// send makes a request, and fails the test when the answer is an internal error.
func (s *badClient) send(t *testing.T, method, path, contentType string, body []byte) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bounded.Hang)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.host+path, bytes.NewReader(body))
	if err != nil {
		return 0 // no client can send it
	}
	req.Header.Set("Content-Type", contentType)
	res, err := s.client.Do(req)
	if err != nil {
		t.Fatalf("%s %s (%s) %.200q: %v", method, path, contentType, body, err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("%s %s (%s) %.200q: %v", method, path, contentType, body, err)
	}
	if res.StatusCode >= http.StatusInternalServerError && !librarys(method, contentType, res.StatusCode, answer) {
		t.Errorf("%s %s (%s) %.300q:\n%d %.1000s", method, path, contentType, body, res.StatusCode, answer)
	}
	return res.StatusCode
}

// librarys reports whether the library answers 500 where 400 is meant: k8s.io/apiserver does not
// classify the errors of strategic merge patches and of applied objects whose fields have the wrong
// types. kube-apiserver answers the same. A version that is not reached yet is a time-out, 504, by
// the protocol.
func librarys(method, contentType string, code int, answer []byte) bool {
	var status metav1.Status
	if err := json.Unmarshal(answer, &status); err != nil {
		return false
	}
	if code == http.StatusGatewayTimeout {
		return status.Reason == metav1.StatusReasonTimeout &&
			strings.Contains(status.Message, "Too large resource version")
	}
	patch := contentType == string(types.StrategicMergePatchType) ||
		strings.HasPrefix(contentType, "application/apply-patch+")
	return code == http.StatusInternalServerError && method == http.MethodPatch && patch && status.Reason == ""
}

// sendMeasured is send, with the request's cost in memory. The runtime counts all allocations of
// the process, the work of other tests' servers included. That comes and goes, so the least of a
// few tries is closest to the request's own cost.
func (s *badClient) sendMeasured(t *testing.T, method, path, contentType string, body []byte) int {
	t.Helper()
	var before, after runtime.MemStats
	code, cost := 0, uint64(math.MaxUint64)
	for try := 0; try < 5 && cost > mostMemory; try++ {
		runtime.ReadMemStats(&before)
		code = s.send(t, method, path, contentType, body)
		runtime.ReadMemStats(&after)
		cost = min(cost, after.TotalAlloc-before.TotalAlloc)
	}
	s.largest = max(s.largest, cost)
	if cost > mostMemory {
		t.Errorf("%s %s (%s) %.200q of %d bytes took %d MiB", method, path, contentType, body, len(body), cost>>20)
	}
	return code
}

// mostMemory is the limit of a request's allocations in all, released again or not: a body of the
// largest size, 3 MiB, in all the forms that it takes on its way.
const mostMemory = 256 << 20

// nested is left so many times, the middle, and right as many times.
func nested(left, right, middle string, times int) string {
	return strings.Repeat(left, times) + middle + strings.Repeat(right, times)
}

const cborType = "application/cbor"

type badBody struct {
	contentType string
	body        func(e endpoint) string
}

// badBodies are bodies that are no objects, or faulty ones.
var badBodies = slices.Concat(
	whole(apiruntime.ContentTypeJSON, "", "{", "null", "[]", `"x"`, "1", "{}", `{"apiVersion":"x/y/z","kind":"?"}`,
		`{"kind":"Status","apiVersion":"v1"}`,
		nested(`{"a":`, "}", "1", 20_000), nested("[", "]", "", 200_000), strings.Repeat("[", 1_000_000),
		"\xff\xfe\x00"+`{"a":1}`, strings.Repeat(" ", 4<<20)),
	objectsWith(apiruntime.ContentTypeJSON,
		`"metadata":null`, `"metadata":{"name":"x"}`, `"metadata":[]`, `"metadata":"x"`,
		`"metadata":{"name":"x"},"spec":null,"status":null,"data":null`,
		`"metadata":{"name":"x"},"spec":{},"data":{},"rules":[{}],"subjects":[{}],"roleRef":{},"webhooks":[{}],"endpoints":[{}],"ports":[{}],"value":1,"handler":""`,
		`"metadata":{"name":"x"},"spec":{"rules":[{}],"template":{"spec":{"containers":[{}],"volumes":[{}]}},"containers":[{}],"ports":[{}],"versions":[{}],"podSelector":{},"ingress":[{}],"egress":[{}],"tls":[{}],"selector":{}}`,
		`"metadata":{"name":"x"},"spec":[],"data":[],"rules":{}`,
		`"metadata":{"name":"x"},"spec":"x","data":1,"rules":true`,
		`"metadata":{"name":"x","labels":{"a":null},"ownerReferences":[{}],"finalizers":[""],"managedFields":[{"manager":"x","operation":"Apply","fieldsType":"FieldsV1","fieldsV1":{"f:a":1},"apiVersion":"nosuch/v9"}]}`,
		`"metadata":{"name":"x","managedFields":[{"operation":"Update","fieldsType":"FieldsV1","fieldsV1":[],"apiVersion":"v1"}]}`,
		`"metadata":{"name":"../x","generateName":"y","uid":"u","resourceVersion":"-1","creationTimestamp":"yesterday"}`,
		`"metadata":{"name":"x","resourceVersion":"99999999999999999999","generation":1e400}`,
		`"metadata":{"name":"x","name":"y"},"metadata":{}`, `"metadata":{"name":"\ud800"}`,
		`"metadata":{"name":"`+strings.Repeat("x", 100_000)+`"}`, badLabels(10_000),
		`"metadata":{"name":"x"},"spec":`+nested(`{"a":`, "}", "1", 20_000)),
	whole(apiruntime.ContentTypeYAML, bomb(), strings.Repeat("[", 10_000), strings.Repeat("{a: ", 10_000),
		strings.Repeat("- - - ", 5_000), strings.Repeat("? ", 5_000), "--- !!binary x\n", "a: *a", "\t"),
	whole(apiruntime.ContentTypeProtobuf, "", "k8s\x00", "k8s\x00\xff\xff\xff\xff\xff",
		"k8s\x00\x0a\x0e\x0a\x02v1\x12\x08Pod", "k8s\x00\x0a\x07\x0a\x02v1\x12\x01X\x12\xff\xff\xff\xff\x7f"),
	protobufs("", "\x0a\x00", "\x0a\x00\x12\x00\x1a\x00", "\x0a\xff\xff\xff\xff\x0f", "\x12\x02\x0a\x00",
		strings.Repeat("\x0b", 3_000), "\x0a\x02\x0a\xff", strings.Repeat("\x12\x04\x12\x02\x12\x00", 1_000)),
	whole(cborType, "\xd9\xd9\xf7"+strings.Repeat("\x81", 100_000), "\xd9\xd9\xf7\xbb\xff\xff\xff\xff\xff\xff\xff\xff"),
	whole("text/plain", "x"), whole("application/x-www-form-urlencoded", "a=b"), whole(";;", "x"), whole("", "{}"),
)

// whole are bodies that are the same for every endpoint.
func whole(contentType string, all ...string) (out []badBody) {
	for _, text := range all {
		out = append(out, badBody{contentType, func(endpoint) string { return text }})
	}
	return out
}

// objectsWith are objects of the right kind with these fields.
func objectsWith(contentType string, all ...string) (out []badBody) {
	for _, text := range all {
		out = append(out, badBody{contentType, func(e endpoint) string { return e.wholeObject(text) }})
	}
	return out
}

// badLabels is the metadata of an object with so many labels, all of them invalid.
func badLabels(n int) string {
	var labels strings.Builder
	for i := range n {
		fmt.Fprintf(&labels, `"-%d":"",`, i)
	}
	return `"metadata":{"name":"x","labels":{` + labels.String() + `"a":"b"}}`
}

// protobufs are objects of the right kind with these messages inside.
func protobufs(all ...string) (out []badBody) {
	for _, text := range all {
		out = append(out, badBody{apiruntime.ContentTypeProtobuf, func(e endpoint) string {
			unknown := apiruntime.Unknown{TypeMeta: apiruntime.TypeMeta{APIVersion: e.apiVersion, Kind: e.kind},
				Raw: []byte(text)}
			data, err := unknown.Marshal()
			if err != nil {
				panic(err)
			}
			return "k8s\x00" + string(data)
		}})
	}
	return out
}

// bomb is a YAML document whose aliases would make 9⁹ words.
func bomb() string {
	text := "a: &a [" + strings.Repeat("x,", 9) + "]\n"
	for c := 'b'; c <= 'i'; c++ {
		text += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 9))
	}
	return text
}

// badPatches are patches that no object can take, or barely.
var badPatches = slices.Concat(
	whole(string(types.JSONPatchType), "", "null", "{}", "[]", "[{}]", "[null]", "[1]", `[{"op":"x"}]`,
		`[{"op":"add"}]`, `[{"op":"remove","path":""}]`,
		`[{"op":"replace","path":"","value":null}]`, `[{"op":"replace","path":"","value":[]}]`,
		`[{"op":"add","path":"/metadata/-","value":1}]`, `[{"op":"copy","from":"","path":"/metadata/annotations"}]`,
		`[{"op":"replace","path":"/metadata","value":null}]`, `[{"op":"replace","path":"/metadata","value":[]}]`,
		`[{"op":"remove","path":"/metadata"}]`, `[{"op":"remove","path":"/metadata/resourceVersion"}]`,
		`[{"op":"test","path":"/a/b/c/d"}]`, `[{"op":"add","path":"/x~2","value":1}]`, `[{"path":"/metadata/name"}]`,
		"["+strings.Repeat(`{"op":"test","path":"/kind","value":"x"},`, 10_001)+"{}]", copyBomb(),
		`[{"op":"add","path":"/spec","value":`+nested(`{"a":`, "}", "1", 5_000)+`}]`),
	mergePatches(string(types.MergePatchType)), mergePatches(string(types.StrategicMergePatchType)),
	whole(string(types.ApplyYAMLPatchType), "", "null", "[]", "x", "{}", "apiVersion: v1", "kind: X", "a: b: c",
		strings.Repeat("{a: ", 5_000), bomb()),
	objectsWith(string(types.ApplyYAMLPatchType), `"metadata":null`, `"metadata":{"name":"other"}`,
		`"spec":[],"data":[]`, `"spec":{"template":{"spec":{"containers":[{},{}]}},"ports":[{},{}]}`,
		`"metadata":{"managedFields":[{}]}`,
		`"metadata":{"finalizers":["a","a"]}`, `"metadata":{"ownerReferences":[{},{}]}`,
		`"status":{"conditions":[{},{}]}`),
	whole(string(types.ApplyCBORPatchType), "\xa0"), whole("application/nothing", "x"), whole("", "{}"),
)

func mergePatches(contentType string) []badBody {
	return whole(contentType, "", "null", "[]", `"x"`, "{}", `{"metadata":null}`, `{"metadata":[]}`, `{"metadata":"x"}`,
		`{"spec":null,"data":null,"status":null}`, `{"kind":null}`, `{"apiVersion":"x/y/z"}`, `{"spec":[]}`,
		`{"metadata":{"managedFields":null}}`, `{"metadata":{"managedFields":[{}]}}`,
		`{"metadata":{"ownerReferences":[{"$patch":"delete"}]}}`, `{"$patch":"replace"}`, `{"$patch":"delete"}`,
		`{"$patch":"nonsense"}`, `{"metadata":{"$patch":"delete"}}`,
		`{"$retainKeys":["x"]}`, `{"metadata":{"$retainKeys":1}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":1}}`,
		`{"metadata":{"$setElementOrder/finalizers":["a"],"finalizers":["b"]}}`,
		`{"metadata":{"$setElementOrder/ownerReferences":[{"uid":"a"}],"ownerReferences":[null]}}`,
		`{"spec":{"$setElementOrder/containers":1}}`, `{"spec":{"containers":[1]}}`, `{"spec":{"containers":[null]}}`,
		`{"spec":{"template":{"spec":{"containers":[[]]}}}}`, nested(`{"a":`, "}", "1", 20_000),
		`{"metadata":{"annotations":`+nested(`{"a":`, "}", "1", 20_000)+`}}`)
}

// copyBomb doubles an annotation with each operation.
func copyBomb() string {
	ops := []string{`{"op":"add","path":"/metadata/annotations","value":{"a":"` + strings.Repeat("x", 1_000) + `"}}`}
	for i := range 60 {
		ops = append(ops,
			fmt.Sprintf(`{"op":"copy","from":"/metadata/annotations","path":"/metadata/annotations/%d"}`, i))
	}
	return "[" + strings.Join(ops, ",") + "]"
}

// badQueries are options that no list can have, or barely.
var badQueries = []string{
	"limit=-1", "limit=x", "continue=x", "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiXHUwMDAwIn0",
	"limit=1&continue=" + strings.Repeat("A", 5_000), "resourceVersion=-1", "resourceVersion=x",
	"resourceVersion=1&resourceVersionMatch=Exact", "resourceVersionMatch=x", "fieldSelector=a",
	"fieldSelector=metadata.name", "fieldSelector=metadata.name%3D%3D%3Dx", "labelSelector=a+in", "labelSelector=%00",
	"labelSelector=" + strings.Repeat("a,", 3_000), "timeoutSeconds=x", "pretty=x", "%zz", "sendInitialEvents=true",
	"watch=true&resourceVersion=x", "watch=true&sendInitialEvents=true&resourceVersionMatch=x",
	"watch=true&allowWatchBookmarks=x&timeoutSeconds=0&fieldSelector=a",
	"timeout=x", "timeout=-1s", "dryRun=x", "fieldValidation=x", "fieldManager=" + strings.Repeat("x", 200),
	"propagationPolicy=x", "gracePeriodSeconds=-1&dryRun=All", "gracePeriodSeconds=x", "orphanDependents=x",
}

// TestBadRequests sends every bad body to every resource, each with every verb. In its short form a
// body goes to some of the resources only.
func TestBadRequests(t *testing.T) {
	s, share := newBadClient(t), 1
	if testing.Short() {
		share = 16
	}
	sent := 0
	for i, e := range s.endpoints {
		t.Run(strings.TrimPrefix(e.object, "/api"), func(t *testing.T) {
			chosen := func(j int) bool { return (i+j)%share == 0 }
			for j, b := range badBodies {
				if !chosen(j) {
					continue
				}
				body := []byte(b.body(e))
				for verb, to := range map[string]struct{ method, path string }{
					"create": {http.MethodPost, e.collection}, "update": {http.MethodPut, e.object},
					"delete": {http.MethodDelete, e.absent},
				} {
					if slices.Contains(e.verbs, verb) {
						s.sendMeasured(t, to.method, to.path+"?dryRun=All", b.contentType, body)
						sent++
					}
				}
			}
			for j, b := range badPatches {
				if chosen(j) && slices.Contains(e.verbs, "patch") {
					query := "?dryRun=All"
					if strings.Contains(b.contentType, "apply") {
						query += "&fieldManager=f&force=true"
					}
					s.sendMeasured(t, http.MethodPatch, e.object+query, b.contentType, []byte(b.body(e)))
					sent++
				}
			}
			for j, q := range badQueries {
				if chosen(j) && slices.Contains(e.verbs, "list") {
					s.sendMeasured(t, http.MethodGet, e.collection+"?"+q, "", nil)
					sent++
				}
				if chosen(j) && slices.Contains(e.verbs, "patch") && !strings.Contains(q, "watch") {
					s.sendMeasured(t, http.MethodPatch, e.object+"?"+q, string(types.MergePatchType), []byte("{}"))
					sent++
				}
			}
		})
	}
	if sent < 500 {
		t.Errorf("only %d requests were sent", sent)
	}
	t.Logf("%d requests; the most that one allocated is %d MiB", sent, s.largest>>20)
	// It serves as before.
	if code := s.send(t, http.MethodGet, "/api/v1/namespaces/default/configmaps/settings", "",
		nil); code != http.StatusOK {
		t.Errorf("afterwards a read is answered with %d", code)
	}
}

// TestRandomRequests sends random objects of every kind, which are well-formed and have no meaning.
func TestRandomRequests(t *testing.T) {
	s, w, times := newBadClient(t), newTrips(t), 20
	if testing.Short() {
		times = 2
	}
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	for _, k := range w.kinds {
		var at endpoint
		for _, e := range s.endpoints {
			if e.kind == k.Kind && e.apiVersion == k.GroupVersion().String() && e.collection != e.object {
				at = e
			}
		}
		if at.kind == "" {
			t.Errorf("%s is not served", k.GroupVersionKind)
			continue
		}
		t.Run(k.resource.String(), func(t *testing.T) {
			fill := w.filler(seed)
			for i := range times {
				object, err := w.scheme.New(k.GroupVersionKind)
				if err != nil {
					t.Fatal(err)
				}
				fill.Fill(object)
				if m, err := meta.Accessor(object); err == nil && i%2 == 0 {
					m.SetName(at.object[strings.LastIndex(at.object, "/")+1:])
					m.SetNamespace("")
					m.SetResourceVersion("")
					m.SetUID("")
				}
				for _, mediaType := range wireTypes {
					info, _ := apiruntime.SerializerInfoForMediaType(w.codecs.SupportedMediaTypes(), mediaType)
					data, err := apiruntime.Encode(w.codecs.EncoderForVersion(info.Serializer, k.GroupVersion()),
						object.DeepCopyObject())
					if err != nil {
						t.Fatal(err)
					}
					s.send(t, http.MethodPost, at.collection+"?dryRun=All", mediaType, data)
					s.send(t, http.MethodPut, at.object+"?dryRun=All", mediaType, data)
					s.send(t, http.MethodPut, at.object+"/status?dryRun=All", mediaType, data)
					if mediaType == apiruntime.ContentTypeJSON {
						s.send(t, http.MethodPatch, at.object+"?dryRun=All", string(types.MergePatchType), data)
						s.send(t, http.MethodPatch, at.object+"?dryRun=All", string(types.StrategicMergePatchType),
							data)
						s.send(t, http.MethodPatch, at.object+"?dryRun=All&fieldManager=f&force=true",
							string(types.ApplyYAMLPatchType), data)
						s.send(t, http.MethodPatch, at.object+"/status?dryRun=All", string(types.MergePatchType), data)
					}
				}
			}
		})
	}
}

// TestTruncatedRequests ends connections in the middle of requests. The server survives, and keeps
// no memory for them.
func TestTruncatedRequests(t *testing.T) {
	s := newBadClient(t)
	config, err := restclient.TLSConfigFor(s.ca.client(t, s.host, admin()))
	if err != nil {
		t.Fatal(err)
	}
	s.send(t, http.MethodGet, "/readyz", "", nil)
	before := runtime.NumGoroutine()
	address := strings.TrimPrefix(s.host, "https://")
	head := "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: barque\r\nContent-Type: application/json\r\n"
	for range 20 {
		for _, text := range []string{
			"", "P", "POST /api/v1", head, head + "Content-Length: 1000\r\n\r\n",
			head + "Content-Length: 1000\r\n\r\n{\"kind\":", head + "Content-Length: -1\r\n\r\n",
			head + "Content-Length: 99999999999999\r\n\r\n{}", head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"k",
			head + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
			"GET /api/v1/configmaps?watch=true HTTP/1.1\r\nHost: barque\r\n\r\n",
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00",
			"GET / HTTP/1.1\r\nHost: barque\r\n" + strings.Repeat("X: y\r\n", 10_000),
			"GET " + strings.Repeat("/a", 200_000) + " HTTP/1.1\r\n\r\n",
		} {
			c, err := tls.Dial("tcp", address, config)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, text) // the server may hang up before it has all
			_ = c.Close()
		}
	}
	bounded.True(t, "the goroutines of dead connections end",
		func() bool { return runtime.NumGoroutine() <= before+10 })
	if code := s.send(t, http.MethodGet, "/api/v1/namespaces/default/configmaps/settings", "",
		nil); code != http.StatusOK {
		t.Errorf("afterwards a read is answered with %d", code)
	}
}

// FuzzRequests sends any body with any content type and query to any resource.
func FuzzRequests(f *testing.F) {
	s := newBadClient(f)
	methods := []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodGet}
	contentTypes := []string{
		apiruntime.ContentTypeJSON, apiruntime.ContentTypeYAML, apiruntime.ContentTypeProtobuf, cborType,
		string(types.JSONPatchType), string(types.MergePatchType),
		string(types.StrategicMergePatchType), string(types.ApplyYAMLPatchType), "",
	}
	small := func(bodies []badBody) (out []badBody) {
		return slices.DeleteFunc(slices.Clone(bodies),
			func(b badBody) bool { return len(b.body(s.endpoints[0])) > 2_000 })
	}
	for i, b := range small(badBodies) {
		f.Add(uint8(i%2), uint16(i), uint8(max(0, slices.Index(contentTypes, b.contentType))), "",
			[]byte(b.body(s.endpoints[i%len(s.endpoints)])))
	}
	for i, b := range small(badPatches) {
		f.Add(uint8(2), uint16(i), uint8(max(0, slices.Index(contentTypes, b.contentType))), "fieldManager=f",
			[]byte(b.body(s.endpoints[i%len(s.endpoints)])))
	}
	for i, q := range badQueries {
		f.Add(uint8(4), uint16(i), uint8(0), q, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, method uint8, at uint16, contentType uint8, query string, body []byte) {
		e := s.endpoints[int(at)%len(s.endpoints)]
		m, path := methods[int(method)%len(methods)], e.object
		switch m {
		case http.MethodPost:
			path = e.collection
		case http.MethodDelete:
			path = e.absent
		}
		values, err := url.ParseQuery(query)
		if err != nil {
			values = url.Values{}
		}
		values.Del("timeout") // the client's own time-out is no fault
		for _, streams := range []string{"watch", "follow", "timeoutSeconds"} {
			values.Del(streams)
		}
		values.Set("dryRun", metav1.DryRunAll)
		began := time.Now()
		s.send(t, m, path+"?"+values.Encode(), contentTypes[int(contentType)%len(contentTypes)], body)
		if d := time.Since(began); d > bounded.Hang {
			t.Errorf("%s %s took %s", m, path, d)
		}
	})
}
