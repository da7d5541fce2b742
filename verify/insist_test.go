package verify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// lossy is an API server that makes any object by name. It loses its first answers: it executes the
// request and breaks the connection.
type lossy struct {
	loses   int
	refuses int // status of every answer to a POST; 0: none
	objects map[string][]byte
	posts   int
}

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(code int, body []byte) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
	}
	said := func(code int, reason metav1.StatusReason) (*http.Response, error) {
		return answer(code,
			fmt.Appendf(nil, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": %d, "reason": %q}`,
				code, reason))
	}
	if r.Method == http.MethodGet {
		if object, there := l.objects[r.URL.Path]; there {
			return answer(http.StatusOK, object)
		}
		return said(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
	l.posts++
	if l.refuses != 0 {
		return said(l.refuses, metav1.StatusReasonForbidden)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &object); err != nil {
		return nil, err
	}
	path := r.URL.Path + "/" + object.Name
	if _, there := l.objects[path]; there {
		return said(http.StatusConflict, metav1.StatusReasonAlreadyExists)
	}
	l.objects[path] = body
	if l.loses > 0 {
		l.loses--
		return nil, io.ErrUnexpectedEOF
	}
	return answer(http.StatusCreated, body)
}

func checkingOf(t *testing.T, l *lossy) *checking {
	t.Helper()
	config := &rest.Config{Host: "http://s1", Transport: l,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	l.objects = map[string][]byte{}
	return &checking{Options: Options{Config: config, Progress: t.Logf}, client: client, namespace: "ns",
		report: &Report{}}
}

// TestLostAnswers: a lost answer ends no run, and no object is made twice.
func TestLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lossy{loses: 1}
		c := checkingOf(t, l)
		if err := c.makeNamespace(t.Context()); err != nil || l.posts != 2 {
			t.Errorf("the namespace: %v, after %d requests", err, l.posts)
		}
		l.loses, l.posts = 1, 0
		if err := c.create(t.Context(), c.startService); err != nil || l.posts != 2 || len(l.objects) != 2 {
			t.Errorf("the Service: %v, after %d requests; there are %d objects", err, l.posts, len(l.objects))
		}
	})
}

// TestFinalAnswers: a refusal counts at once, and the namespace of another run is not taken.
func TestFinalAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lossy{refuses: http.StatusForbidden}
		c := checkingOf(t, l)
		if err := c.makeNamespace(t.Context()); !apierrors.IsForbidden(err) || l.posts != 1 {
			t.Errorf("forbidden: %v, after %d requests", err, l.posts)
		}
		l.refuses, l.posts = 0, 0
		l.objects["/api/v1/namespaces/ns"] = []byte(
			`{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "ns", "labels": {"barque.io/verify-run": "another"}}}`)
		if err := c.makeNamespace(t.Context()); !apierrors.IsAlreadyExists(err) || l.posts != 1 {
			t.Errorf("another run's: %v, after %d requests", err, l.posts)
		}
		if err := c.create(t.Context(), c.startService); err != nil {
			t.Error(err)
		}
		if err := c.create(t.Context(), c.startService); !apierrors.IsAlreadyExists(err) {
			t.Errorf("what was there before the first attempt: %v", err)
		}
	})
}

// TestKnownDeadNodes: no pod is awaited on a node that gossip declares dead, also while its Node is
// still Ready.
func TestKnownDeadNodes(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a1"},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
		if change != nil {
			change(n)
		}
		return n
	}
	alive := []member{{Name: "a1", Gossip: "alive"}, {Name: "a2", Gossip: "dead"}}
	for name, c := range map[string]struct {
		node *corev1.Node
		seen []member
		want string
	}{
		"well":           {node(nil), alive, ""},
		"not a member":   {node(nil), nil, ""},
		"dead by gossip": {node(nil), []member{{Name: "a1", Gossip: "dead"}}, "the servers see it as dead"},
		"has left":       {node(nil), []member{{Name: "a1", Gossip: "left"}}, "the servers see it as left"},
		"its server is away": {node(nil), []member{{Name: "a1", Gossip: "alive", Problem: "refused"}},
			"its server does not answer: refused"},
		"not Ready": {node(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
			alive, "it is not Ready"},
		"found unreachable": {
			node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable}} }), alive,
			"it is unreachable"},
		"cordoned, as wanted": {node(func(n *corev1.Node) { n.Spec.Unschedulable = true }), alive, ""},
	} {
		if got := refuses(c.node, &status{Members: c.seen}); (c.want == "") != (got == "") ||
			!strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
