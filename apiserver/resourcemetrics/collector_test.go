package resourcemetrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/request"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// world is some nodes whose kubelets answer in virtual time: each node uses half a core, each
// container a quarter.
type world struct {
	mu     sync.Mutex
	asked  map[string]int
	hangs  map[string]bool
	broken map[string]bool
	now    int // requests at this moment
	most   int

	nodes, pods cache.Indexer
	began       time.Time
}

func newWorld() *world {
	return &world{
		asked: map[string]int{}, hangs: map[string]bool{}, broken: map[string]bool{}, began: time.Now().Add(-time.Hour),
		nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}),
		pods: cache.NewIndexer(cache.MetaNamespaceKeyFunc,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
	}
}

func (w *world) node(name string, labels map[string]string) {
	_ = w.nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

func (w *world) pod(namespace, name, node string, phase corev1.PodPhase) {
	_ = w.pods.Add(
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
			Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}})
}

// Get implements Kubelets.
func (w *world) Get(ctx context.Context, node *corev1.Node, path string) (*http.Response, error) {
	w.mu.Lock()
	w.asked[node.Name]++
	w.now++
	w.most = max(w.most, w.now)
	hangs, broken := w.hangs[node.Name], w.broken[node.Name]
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.now--
	}()
	if path != "/metrics/resource" {
		return nil, fmt.Errorf("asked for %s", path)
	}
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if broken {
		return nil, errors.New("connection refused")
	}
	select {
	case <-time.After(50 * time.Millisecond): // the time of an answer
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ms := time.Now().UnixMilli()
	used := time.Since(w.began).Seconds()
	text := &strings.Builder{}
	fmt.Fprintf(text, "node_cpu_usage_seconds_total %f %d\nnode_memory_working_set_bytes 1.073741824e+09 %d\n", used/2,
		ms, ms)
	for _, obj := range w.pods.List() {
		pod := obj.(*corev1.Pod)
		if pod.Spec.NodeName != node.Name {
			continue
		}
		for _, container := range []string{"b", "a"} {
			of := fmt.Sprintf("{container=%q,namespace=%q,pod=%q}", container, pod.Namespace, pod.Name)
			fmt.Fprintf(text,
				"container_cpu_usage_seconds_total%s %f %d\ncontainer_memory_working_set_bytes%s 1048576 %d\n", of,
				used/4, ms, of, ms)
		}
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text.String()))}, nil
}

func (w *world) count(node string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[node]
}

func (w *world) set(m map[string]bool, node string, value bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m[node] = value
}

func (w *world) collector(t *testing.T) *Collector {
	t.Helper()
	lister := corelisters.NewNodeLister(w.nodes)
	c, err := New(
		Config{Kubelets: w, Nodes: func() ([]*corev1.Node, error) { return lister.List(labels.Everything()) }})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) storages(c *Collector) (*nodeMetrics, *podMetrics) {
	return &nodeMetrics{collector: c, nodes: corelisters.NewNodeLister(w.nodes)},
		&podMetrics{collector: c, pods: corelisters.NewPodLister(w.pods)}
}

func nodesOf(t *testing.T, m *nodeMetrics, options *metainternalversion.ListOptions) []string {
	t.Helper()
	list, err := m.List(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, n := range list.(*metricsv1beta1.NodeMetricsList).Items {
		names = append(names, n.Name)
	}
	return names
}

func wantNames(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// The first request, long after the previous one, has an answer within seconds.
func TestFirstRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.node("n1", map[string]string{"zone": "a"})
		w.node("n2", nil)
		w.pod("ns", "p", "n1", corev1.PodRunning)
		w.pod("ns", "done", "n1", corev1.PodSucceeded)
		w.pod("other", "q", "n2", corev1.PodRunning)
		c := w.collector(t)
		defer c.Close()
		if w.count("n1") != 0 {
			t.Error("nodes are sampled although nobody has asked")
		}
		nodes, pods := w.storages(c)
		began := time.Now()
		obj, err := nodes.Get(t.Context(), "n1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited != First+50*time.Millisecond {
			t.Errorf("the first request waited %s", waited)
		}
		n := obj.(*metricsv1beta1.NodeMetrics)
		if cpu := n.Usage.Cpu().MilliValue(); cpu < 499 || cpu > 501 || n.Usage.Memory().String() != "1Gi" ||
			n.Labels["zone"] != "a" || n.Window.Duration != First {
			t.Errorf("%+v", n)
		}
		wantNames(t, "all nodes", nodesOf(t, nodes, nil), "n1", "n2")
		wantNames(t, "by label",
			nodesOf(t, nodes, &metainternalversion.ListOptions{LabelSelector: labels.Set{"zone": "a"}.AsSelector()}),
			"n1")
		wantNames(t, "by name",
			nodesOf(t, nodes,
				&metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "n2")}),
			"n2")

		in := func(namespace string) context.Context { return request.WithNamespace(t.Context(), namespace) }
		obj, err = pods.Get(in("ns"), "p", nil)
		if err != nil {
			t.Fatal(err)
		}
		p := obj.(*metricsv1beta1.PodMetrics)
		if len(p.Containers) != 2 || p.Containers[0].Name != "a" || p.Labels["app"] != "p" {
			t.Errorf("%+v", p)
		}
		if cpu := p.Containers[0].Usage.Cpu().MilliValue(); cpu < 249 || cpu > 251 {
			t.Errorf("a container uses %dm", cpu)
		}
		for _, name := range []string{"done", "none"} {
			if _, err := pods.Get(in("ns"), name, nil); !apierrors.IsNotFound(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		list := func(namespace string, options *metainternalversion.ListOptions) []string {
			obj, err := pods.List(in(namespace), options)
			if err != nil {
				t.Fatal(err)
			}
			names := []string{}
			for _, p := range obj.(*metricsv1beta1.PodMetricsList).Items {
				names = append(names, p.Namespace+"/"+p.Name)
			}
			return names
		}
		wantNames(t, "all pods", list("", nil), "ns/p", "other/q")
		wantNames(t, "of a namespace", list("other", nil), "other/q")
		wantNames(t, "by label",
			list("", &metainternalversion.ListOptions{LabelSelector: labels.Set{"app": "q"}.AsSelector()}), "other/q")
		wantNames(t, "by field",
			list("",
				&metainternalversion.ListOptions{
					FieldSelector: fields.OneTermEqualSelector("metadata.namespace", "ns")}), "ns/p")
	})
}

// A node that does not answer is left out; no request waits for it longer than Patience, and its
// last figures are given until they are stale.
func TestDeadNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for _, name := range []string{"good", "hangs", "refuses"} {
			w.node(name, nil)
		}
		w.hangs["hangs"], w.broken["refuses"] = true, true
		c := w.collector(t)
		defer c.Close()
		nodes, _ := w.storages(c)
		began := time.Now()
		wantNames(t, "at first", nodesOf(t, nodes, nil), "good")
		if waited := time.Since(began); waited > Patience {
			t.Errorf("the first request waited %s", waited)
		}
		if _, err := nodes.Get(t.Context(), "hangs", nil); !apierrors.IsNotFound(err) {
			t.Errorf("of a node that hangs: %v", err)
		}
		w.set(w.hangs, "hangs", false)
		w.set(w.broken, "refuses", false)
		time.Sleep(3 * Period)
		wantNames(t, "when all answer", nodesOf(t, nodes, nil), "good", "hangs", "refuses")

		w.set(w.broken, "good", true)
		time.Sleep(Stale - Period)
		wantNames(t, "after two samples were missed", nodesOf(t, nodes, nil), "good", "hangs", "refuses")
		time.Sleep(Period + time.Second)
		wantNames(t, "when it is stale", nodesOf(t, nodes, nil), "hangs", "refuses")

		_ = w.nodes.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "hangs"}})
		wantNames(t, "without the one that has gone", nodesOf(t, nodes, nil), "refuses")
		w.node("new", nil)
		time.Sleep(nodesEvery + First + time.Second)
		wantNames(t, "with the one that came", nodesOf(t, nodes, nil), "new", "refuses")
	})
}

// However many nodes do not answer, those that do have figures.
func TestLivingNodesBesideDeadOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for i := range 1000 {
			name := fmt.Sprintf("dead%04d", i)
			w.node(name, nil)
			w.hangs[name] = true
		}
		w.node("good", nil)
		c := w.collector(t)
		defer c.Close()
		nodes, _ := w.storages(c)
		nodesOf(t, nodes, nil)
		time.Sleep(2 * time.Minute) // each has been sampled once
		for range 60 {
			time.Sleep(Period)
			wantNames(t, "beside a thousand dead nodes", nodesOf(t, nodes, nil), "good")
		}
	})
}

// Nodes are sampled every Period while there are requests, and not otherwise.
func TestOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.node("n", nil)
		c := w.collector(t)
		defer c.Close()
		nodes, _ := w.storages(c)
		wantNames(t, "at first", nodesOf(t, nodes, nil), "n")
		before := w.count("n")
		time.Sleep(10 * Period)
		if got := w.count("n") - before; got != 10 {
			t.Errorf("%d samples in ten periods", got)
		}
		wantNames(t, "then", nodesOf(t, nodes, nil), "n")
		time.Sleep(Idle + Period)
		idle := w.count("n")
		time.Sleep(time.Hour)
		if got := w.count("n"); got != idle {
			t.Errorf("%d samples in an hour in which nobody asked", got-idle)
		}
		began := time.Now()
		wantNames(t, "after the pause", nodesOf(t, nodes, nil), "n")
		if waited := time.Since(began); waited > Patience {
			t.Errorf("the request after the pause waited %s", waited)
		}
	})
}

// With any number of nodes, the number of concurrent requests is bounded; a caller that leaves does
// not wait.
func TestManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for i := range 1000 {
			w.node(fmt.Sprintf("n%04d", i), nil)
		}
		c := w.collector(t)
		defer c.Close()
		nodes, _ := w.storages(c)
		began := time.Now()
		if got := nodesOf(t, nodes, nil); len(got) != 1000 {
			t.Errorf("%d nodes", len(got))
		}
		if waited := time.Since(began); waited > Patience {
			t.Errorf("the first request waited %s", waited)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.most > Concurrency {
			t.Errorf("%d kubelets were asked at a time", w.most)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.node("n", nil)
		w.hangs["n"] = true
		c := w.collector(t)
		nodes, _ := w.storages(c)
		left, leave := context.WithCancel(t.Context())
		leave()
		if _, err := nodes.List(left, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("of a caller that has left: %v", err)
		}
		done := make(chan []string)
		go func() { done <- nodesOf(t, nodes, nil) }()
		synctest.Wait()
		c.Close()
		wantNames(t, "of a server that ends", <-done)
		wantNames(t, "after that", nodesOf(t, nodes, nil))
	})
}

// The samples of many nodes do not come all at once for ever.
func TestSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for i := range 300 {
			w.node(fmt.Sprintf("n%03d", i), nil)
		}
		c := w.collector(t)
		defer c.Close()
		nodes, _ := w.storages(c)
		nodesOf(t, nodes, nil)
		time.Sleep(2 * Period)
		w.mu.Lock()
		w.most = 0
		w.mu.Unlock()
		time.Sleep(2 * Period)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.most > Concurrency/2 {
			t.Errorf("%d kubelets are asked at a time", w.most)
		}
	})
}
