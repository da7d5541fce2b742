package disruption

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// server answers requests by path.
type server map[string]string

func (s server) RoundTrip(r *http.Request) (*http.Response, error) {
	body, ok := s[r.URL.Path]
	code := http.StatusOK
	if !ok {
		code, body = http.StatusNotFound,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
	}
	return &http.Response{StatusCode: code, Request: r, Body: io.NopCloser(bytes.NewBufferString(body)),
		Header: http.Header{"Content-Type": {"application/json"}}}, nil
}

func TestScaleSubresources(t *testing.T) {
	const things = "/apis/example.com/v1/namespaces/d/things/"
	s := server{
		"/apis/example.com/v1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/v1","resources":[
			{"name":"things","kind":"Thing","namespaced":true},{"name":"things/status","kind":"Thing","namespaced":true},
			{"name":"things/scale","kind":"Scale","group":"autoscaling","version":"v1","namespaced":true},
			{"name":"plains","kind":"Plain","namespaced":true}]}`,
		things +
			"a/scale": `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"a","namespace":"d","uid":"ua"},"spec":{"replicas":4}}`,
		things +
			"b/scale": `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"b","namespace":"d","uid":"ub"},"spec":{}}`,
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://server", Transport: s})
	if err != nil {
		t.Fatal(err)
	}
	tm := &term{Controller: &Controller{},
		scales: &scales{discovery: client.Discovery(), known: map[schema.GroupVersionKind]string{}}}
	owned := func(kind, name, uid string) *corev1.Pod {
		yes := true
		p := pod(kind+name, true)
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "example.com/v1", Kind: kind, Name: name, UID: types.UID(uid), Controller: &yes}}
		return p
	}
	for _, c := range []struct {
		name      string
		pods      []*corev1.Pod
		want      int32
		unmanaged int
		problem   string
	}{
		{"one", []*corev1.Pod{owned("Thing", "a", "ua")}, 4, 0, ""},
		{"two pods of one and one of another that wants none",
			[]*corev1.Pod{owned("Thing", "a", "ua"), owned("Thing", "a", "ua"), owned("Thing", "b", "ub")}, 4, 0, ""},
		{"a pod of nobody", []*corev1.Pod{pod("p", true), owned("Thing", "a", "ua")}, 4, 1, ""},
		{"another of that name", []*corev1.Pod{owned("Thing", "a", "other")}, 0, 0, "found no controllers for pod"},
		{"gone", []*corev1.Pod{owned("Thing", "c", "uc")}, 0, 0, "found no controllers for pod"},
		{"no scale subresource", []*corev1.Pod{owned("Plain", "a", "ua")}, 0, 0,
			"plains.example.com does not implement the scale subresource"},
		{"no such kind", []*corev1.Pod{owned("Other", "a", "ua")}, 0, 0, `no matches for kind "Other"`},
	} {
		total, unmanaged, err := tm.expected(t.Context(), c.pods)
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: error %v, want %q", c.name, err, c.problem)
			}
			continue
		}
		if err != nil || total != c.want || len(unmanaged) != c.unmanaged {
			t.Errorf("%s: %d, unmanaged %v, %v; want %d", c.name, total, unmanaged, err, c.want)
		}
	}
	// The informer gives the pods in another order each time.
	a, b := owned("Thing", "a", "other"), owned("Thing", "c", "uc")
	_, _, err = tm.expected(t.Context(), []*corev1.Pod{a, b})
	_, _, again := tm.expected(t.Context(), []*corev1.Pod{b, a})
	if err == nil || again == nil || err.Error() != again.Error() {
		t.Errorf("the problem depends on the order of the pods: %v, %v", err, again)
	}
}
